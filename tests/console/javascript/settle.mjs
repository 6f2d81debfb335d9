// What an operator does to single messages, and what the page shows when a stream ends.

import assert from "node:assert/strict";
import { URL, button, go, walk } from "./browser.mjs";

const inDialog = (page, name) => page.getByRole("dialog").locator(`[name=${name}]`);
const closed = (page) => page.getByRole("dialog").waitFor({ state: "detached" });
const submit = async (page) => {
  await page.getByRole("dialog").getByRole("button", { name: "Send" }).click();
  await closed(page);
};
const row = (page, name) => page.locator("table.messages").getByRole("row", { name });

/** Receive the next message and settle it. */
async function settle(page, verb) {
  if (!(await button(page, "Receive the next message").isVisible())) await page.getByText("Receive with a lock").click();
  await button(page, "Receive the next message").click();
  await button(page, verb).click();
  await button(page, verb).waitFor({ state: "detached" });
}

await walk(async (page) => {
  await go(page, "entity/orders/messages");
  await row(page, /active .*0 first/).waitFor();
  await settle(page, "abandon");
  await row(page, /active .*1 first/).waitFor();
  await settle(page, "defer");
  await row(page, /deferred .*first/).getByRole("button").click();
  await button(page, "Reactivate").click();
  await button(page, "Reactivate it").click();
  await row(page, /active .*first/).waitFor();
  await settle(page, "dead-letter");
  await page.getByText("0 found").waitFor();

  await go(page, "entity/orders/dead-lettered");
  await row(page, /console .*first/).getByRole("button").click();
  await button(page, "Edit and send a copy").click();
  await inDialog(page, "body").fill("edited");
  await inDialog(page, "subject").fill("a correction");
  // The view loads the entity again while the operator types.
  for (let count = 0; count < 2; count += 1) await page.waitForResponse((one) => one.url().endsWith("/v1/queues/orders"));
  assert.equal(await inDialog(page, "subject").inputValue(), "a correction");
  assert.equal(await inDialog(page, "body").inputValue(), "edited");
  await submit(page);

  await go(page, "entity/orders/messages");
  await row(page, /edited/).waitFor();
  await button(page, "Send").click();
  await inDialog(page, "file").setInputFiles(process.env.FILE);
  await submit(page);
  await button(page, "Send").click();
  await inDialog(page, "body").fill("then");
  await inDialog(page, "due").fill("2099-01-02T03:04:05");
  await submit(page);
  await button(page, "Refresh").click();
  await row(page, /scheduled .*then/).waitFor();
  await row(page, /plain two/).waitFor();

  await button(page, "Pause").click();
  await button(page, "Pause now").click();
  await closed(page);
  await button(page, "Resume").click();
  await button(page, "Resume now").click();
  await closed(page);
  await button(page, "Pause").waitFor();
});

// A stream that ends or fails is shown, and the page continues.
await walk(async (page) => {
  await go(page, "entity/short-lived/messages");
  await button(page, "Follow").click();
  await page.getByText("Messages appear here").waitFor();
  assert.equal((await fetch(`${URL}/v1/queues/short-lived`, { method: "DELETE" })).status, 204);
  await page.getByRole("alert").filter({ hasText: "the server ended the stream" }).waitFor();
  await page.locator("button[aria-pressed=false]", { hasText: "Follow" }).waitFor();
  await page.route("**/v1/overview/watch", (one) => one.abort());
  await go(page, "");
  const stale = page.getByRole("alert").filter({ hasText: "figures are not updated: the server does not respond" });
  await stale.waitFor();
  await page.unroute("**/v1/overview/watch");
  await stale.waitFor({ state: "detached" });
});
