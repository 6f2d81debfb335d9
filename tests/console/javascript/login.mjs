// Signing in: a wrong key, an owner's key, and keys that may only listen, only send or only monitor.

import assert from "node:assert/strict";
import { accessible, button, closed, dialog, go, inDialog, notice, row, walk } from "./browser.mjs";

const SECRET = process.env.SECRET;
const signIn = async (page, name, more = "", key = SECRET) => {
  const connection = `Endpoint=sb://localhost;SharedAccessKeyName=${name};SharedAccessKey=${key};${more}`;
  await page.getByLabel("Connection string or key name").fill(connection);
  await button(page, "Sign in").click();
};
const none = async (page, ...names) => {
  for (const name of names) assert.equal(await button(page, name).count(), 0, name);
};
const leave = async (page) => {
  await button(page, "Sign out").click();
  await go(page, "");
};

await walk(async (page) => {
  await go(page, "");
  await signIn(page, "owner", "", "a-wrong-key-of-some-length");
  await page.getByRole("alert").waitFor();
  await accessible(page, "login");
  assert.equal(await page.getByRole("link", { name: "orders" }).count(), 0);
  await signIn(page, "owner");
  await page.getByRole("link", { name: "orders", exact: true }).waitFor();
  await button(page, "New entity").waitFor();
  assert.equal((await page.context().cookies()).length, 0);
  assert.equal(await page.evaluate(() => localStorage.length + sessionStorage.length), 0);
  // The key is gone with the page.
  await page.reload();
  await page.getByLabel("Connection string or key name").waitFor();
  // A name and a key do as well as a connection string.
  await page.getByLabel("Connection string or key name").fill("owner");
  await page.getByLabel("Key", { exact: false }).last().fill(SECRET);
  await button(page, "Sign in").click();
  await page.getByRole("link", { name: "orders", exact: true }).waitFor();

  // A key of one entity that listens: it sees and settles messages, and changes nothing else.
  await leave(page);
  await signIn(page, "listener", "EntityPath=orders");
  await page.getByRole("link", { name: "orders", exact: true }).click();
  await page.getByRole("heading", { name: "Entities / orders" }).waitFor();
  await page.getByRole("link", { name: "Messages", exact: true }).click();
  await row(page, /for a listener/).getByRole("button").click();
  await page.getByText("Life so far").waitFor();
  await none(page, "Send", "Purge", "Delete", "Pause", "Move", "Delete message", "Edit and send a copy", "Move messages that match");
  await page.getByText("Receive with a lock").click();
  await button(page, "Receive the next message").click();
  await page.getByRole("button", { name: /^Abandon message/ }).click();
  await notice(page, "abandon: message");
  await page.getByRole("link", { name: "Partitions" }).click();
  await page.getByRole("row", { name: /^0 / }).waitFor();
  assert.equal(await page.getByRole("link", { name: /^Settings/ }).count(), 0);
  // Another entity is not shown.
  await page.goto(`${process.env.URL}/console/#/entity/other/messages`);
  await page.getByRole("alert").waitFor();

  // A key for all entities that may not list them opens one by its name.
  await page.goto(`${process.env.URL}/console/#/entity/orders/messages`);
  await page.getByText("Receive with a lock").click();
  await button(page, "Receive the next message").click();
  await page.getByRole("button", { name: /^Complete message/ }).waitFor();
  await leave(page);
  await signIn(page, "reader");
  await page.locator("input[name=name]").fill("orders");
  await accessible(page, "by name");
  await button(page, "Open").click();
  await page.getByRole("heading", { name: "Entities / orders" }).waitFor();
  await page.getByRole("link", { name: "Partitions" }).waitFor();
  assert.equal(await page.getByRole("link", { name: "Pipeline" }).count(), 0);
  // The message that the user before holds is theirs.
  await page.getByRole("link", { name: "Messages", exact: true }).click();
  await row(page, /for a listener/).waitFor();
  assert.equal(await page.getByRole("button", { name: /^Complete message/ }).count(), 0);

  // A key that may only monitor sees counts and lakes, and no message.
  await leave(page);
  await signIn(page, "watcher");
  await page.getByRole("link", { name: "orders", exact: true }).click();
  await page.getByText("Plots and messages need a key with Listen").waitFor();
  await accessible(page, "monitor only");
  assert.equal(await page.getByRole("link", { name: "Messages", exact: true }).count(), 0);
  await none(page, "Send", "Purge", "Delete");
  await page.getByRole("link", { name: "Pipeline" }).click();
  await page.getByText("No lake or other reader is known").waitFor();

  // A key that may only send.
  await leave(page);
  await signIn(page, "sender", "EntityPath=orders");
  await page.getByRole("link", { name: "orders", exact: true }).click();
  await page.getByText("Your key can send messages").waitFor();
  await accessible(page, "send only");
  await button(page, "Send").click();
  await inDialog(page, "body").fill("from a sender");
  await dialog(page).getByRole("button", { name: "Send" }).click();
  await closed(page);
  await notice(page, "sent message");
});
