// What the operator types survives a view that loads again; streams that end or fail are shown.

import assert from "node:assert/strict";
import { URL, button, closed, dialog, go, inDialog, open, row, walk } from "./browser.mjs";

await walk(async (page) => {
  await open(page, "orders", "messages");
  await row(page, /first/).getByRole("button").click();
  await button(page, "Edit and send a copy").click();
  await inDialog(page, "body").fill("edited");
  await inDialog(page, "subject").fill("a correction");
  // The view loads the entity again while the operator types.
  for (let count = 0; count < 2; count += 1) await page.waitForResponse((one) => one.url().endsWith("/v1/queues/orders"));
  assert.equal(await inDialog(page, "subject").inputValue(), "a correction");
  assert.equal(await inDialog(page, "body").inputValue(), "edited");
  await dialog(page).getByRole("button", { name: "Send the copy" }).click();
  await closed(page);
  await row(page, /edited/).waitFor();

  // A body that only AMQP clients can send is shown, and not copied as bytes.
  await open(page, "values", "messages");
  await row(page, /00 53 77/).getByRole("button").click();
  await page.getByText("choose AMQP sections").waitFor();
  await page.getByText("to keep it, move the message").waitFor();
  assert.equal(await button(page, "Edit and send a copy").count(), 0);
  await button(page, "AMQP sections").click();
  await page.getByLabel("value", { exact: true }).getByText("hello", { exact: true }).waitFor();

  await open(page, "short-lived", "messages");
  const opened = page.waitForResponse((one) => one.url().endsWith("/tail"));
  await Promise.all([opened, button(page, "Follow").click()]);
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
