// Signing in: a wrong key, an owner's key, and keys that may only listen or only send.

import assert from "node:assert/strict";
import { accessible, button, go, walk } from "./browser.mjs";

const signIn = async (page, text) => {
  await page.getByLabel("Connection string or key name").fill(text);
  await button(page, "Sign in").click();
};
const connection = (name, key, more = "") => `Endpoint=sb://localhost;SharedAccessKeyName=${name};SharedAccessKey=${key};${more}`;

await walk(async (page) => {
  await go(page, "");
  await signIn(page, connection("owner", "a-wrong-key-of-some-length"));
  await page.getByRole("alert").waitFor();
  await accessible(page, "login");
  assert.equal(await page.getByRole("link", { name: "orders" }).count(), 0);
  await signIn(page, connection("owner", process.env.OWNER));
  await page.getByRole("link", { name: "orders", exact: true }).waitFor();
  await button(page, "New entity").waitFor();
  assert.equal((await page.context().cookies()).length, 0);
  assert.equal(await page.evaluate(() => localStorage.length + sessionStorage.length), 0);
  await button(page, "Sign out").click();
  await signIn(page, connection("listener", process.env.LISTENER, "EntityPath=orders"));
  await page.getByRole("link", { name: "orders", exact: true }).click();
  await page.getByRole("heading", { name: "Entities / orders" }).waitFor();
  await page.getByRole("link", { name: "Messages", exact: true }).click();
  await page.getByRole("row", { name: /for a listener/ }).waitFor();
  for (const name of ["Send", "Purge", "Delete"]) assert.equal(await button(page, name).count(), 0);

  // A key for all entities that may not list them opens one by its name.
  await button(page, "Sign out").click();
  await go(page, "");
  await signIn(page, connection("reader", process.env.LISTENER));
  await page.locator("input[name=name]").fill("orders");
  await accessible(page, "by name");
  await button(page, "Open").click();
  await page.getByRole("heading", { name: "Entities / orders" }).waitFor();
  await page.getByRole("link", { name: "Partitions" }).waitFor();
  assert.equal(await page.getByRole("link", { name: "Pipeline" }).count(), 0);

  await button(page, "Sign out").click();
  await signIn(page, connection("sender", process.env.LISTENER, "EntityPath=orders"));
  await page.getByText("Your key can send messages").waitFor();
  await accessible(page, "send only");
  await button(page, "Send").click();
  await page.getByRole("dialog").getByLabel("Body", { exact: true }).fill("from a sender");
  await page.getByRole("dialog").getByRole("button", { name: "Send" }).click();
  await page.getByRole("dialog").waitFor({ state: "detached" });
});
