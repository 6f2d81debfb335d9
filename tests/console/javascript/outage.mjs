// A server that stops and comes back, a key that is deleted, an entity that is deleted, two tabs.

import assert from "node:assert/strict";
import { URL, ask, button, dialog, go, inDialog, messages, notice, open, row, walk } from "./browser.mjs";

const CONNECTION = process.env.CONNECTION;
const lost = (page) => page.getByRole("alert").filter({ hasText: "the server does not respond" });

async function signIn(page) {
  await page.getByLabel("Connection string or key name").fill(CONNECTION);
  await button(page, "Sign in").click();
}

await walk(async (page, context) => {
  await page.goto(`${URL}/console/`);
  await signIn(page);
  await page.getByRole("link", { name: "orders", exact: true }).waitFor();
  const other = await context.newPage();
  await other.goto(`${URL}/console/#/entity/orders/messages`);
  // The key is in the memory of the first tab only.
  await signIn(other);
  await messages(other).first().waitFor();

  // A restart: both tabs say that the server does not respond, and continue by themselves.
  await button(other, "Follow").click();
  await other.getByText("Messages appear here").waitFor();
  await button(page, "New entity").click();
  await inDialog(page, "name").fill("typed before the restart");
  await ask("stop");
  await page.getByRole("alert").filter({ hasText: "figures are not updated" }).waitFor();
  await dialog(page).getByRole("button", { name: "Create" }).click();
  await lost(page).filter({ hasText: "It may have done this" }).waitFor();
  assert.equal(await inDialog(page, "name").inputValue(), "typed before the restart");
  await other.getByRole("alert").first().waitFor();
  await ask("start");
  await page.getByRole("alert").filter({ hasText: "figures are not updated" }).waitFor({ state: "detached" });
  await inDialog(page, "name").fill("made-after");
  await dialog(page).getByRole("button", { name: "Create" }).click();
  await notice(page, "created made-after");
  await lost(other).waitFor({ state: "detached" });
  await other.locator("button[aria-pressed=false]", { hasText: "Follow" }).click();
  await other.getByText("Messages appear here").waitFor();

  // What one tab does, the other sees.
  await open(page, "orders", "messages");
  await button(page, "Send").click();
  await inDialog(page, "body").fill("from the first tab");
  await dialog(page).getByRole("button", { name: "Send" }).click();
  await row(other, /from the first tab/).waitFor();

  // Two tabs want the same message: the second one is told that it is held.
  await page.getByText("Receive with a lock").click();
  await button(page, "Receive the next message").click();
  await page.getByRole("button", { name: /^Complete message 1$/ }).waitFor();
  await open(other, "orders", "messages");
  await other.getByText("Receive with a lock").click();
  await button(other, "Receive the next message").click();
  await other.getByRole("button", { name: /^Complete message/ }).waitFor();
  assert.equal(await other.getByRole("button", { name: "Complete message 1" }).count(), 0);
  await page.getByRole("button", { name: "Complete message 1" }).click();
  await notice(page, "complete: message 1");

  // An entity is deleted while it is shown.
  await open(other, "made-after");
  await button(other, "Delete").waitFor();
  await ask("delete-entity");
  await other.getByRole("alert").filter({ hasText: "made-after" }).waitFor();
  await go(other, "");
  await other.getByRole("link", { name: "orders", exact: true }).waitFor();
  assert.equal(await other.getByRole("link", { name: "made-after" }).count(), 0);

  // The key is deleted: the page says so, and signing in again shows the same view.
  await ask("delete-key");
  for (const tab of [page, other]) {
    await tab.getByRole("alert").filter({ hasText: "The server no longer accepts your key" }).waitFor();
  }
  await button(page, "Sign in again").click();
  await signIn(page);
  await page.getByRole("alert").waitFor();
  await ask("new-key");
  await page.getByLabel("Connection string or key name").fill(CONNECTION.replace("operator", "second"));
  await button(page, "Sign in").click();
  await page.getByRole("heading", { name: "Entities / orders" }).waitFor();
  await messages(page).first().waitFor();
});
