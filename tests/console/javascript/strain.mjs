// A console under strain: large bodies, odd names, a slow server, the back button, many tabs.

import assert from "node:assert/strict";
import { stat } from "node:fs/promises";
import { URL, button, closed, dialog, go, inDialog, messages, notice, open, row, walk } from "./browser.mjs";

const HUGE = Number(process.env.HUGE);
const TABS = Number(process.env.TABS);

async function heap(page) {
  const client = await page.context().newCDPSession(page);
  await client.send("HeapProfiler.collectGarbage");
  const { usedSize } = await client.send("Runtime.getHeapUsage");
  await client.detach();
  return usedSize;
}

/** A body that is much larger than a page can use is shown in part, and saved whole. */
async function large(page) {
  await open(page, "huge", "messages");
  for (const [at, text] of [[0, "The first 1.0 MB of"], [1, "choose AMQP sections"]]) {
    await messages(page).nth(at).getByRole("button").click();
    await page.getByText(text).first().waitFor();
    await page.getByText("The body is too large to edit").waitFor();
    assert.equal(await button(page, "Edit and send a copy").count(), 0);
    await button(page, "AMQP sections").click();
    await page.getByLabel("message annotations").getByText("x-opt-sequence-number").waitFor();
    await button(page, "hex").click();
    await page.getByText("The first 16 KB of").waitFor();
    await button(page, "json").click();
  }
  // So are properties that are more than a page can use.
  await messages(page).nth(2).getByRole("button").click();
  await page.getByText(/^The first 1,\d{3} of 40,000\.$/).waitFor();
  await page.getByText("The properties are too large to edit").waitFor();
  assert.equal(await button(page, "Edit and send a copy").count(), 0);
  await page.getByText("Life so far").waitFor();
  await messages(page).first().getByRole("button").click();
  await page.getByText("The first 1.0 MB of").waitFor();
  const [saved] = await Promise.all([page.waitForEvent("download"), button(page, "Save body").click()]);
  assert.equal((await stat(await saved.path())).size, HUGE);
  assert.ok((await heap(page)) < 40e6);
}

/** Names that every JavaScript object has, of entities and of properties. */
async function names(page) {
  // Without changes that would correct it.
  await page.route("**/v1/overview/watch", (one) => one.abort());
  await go(page, "");
  const shown = page.getByRole("row", { name: /^constructor/ });
  await shown.getByRole("cell", { name: "3", exact: true }).first().waitFor();
  await shown.getByRole("link", { name: "constructor" }).click();
  await page.getByRole("heading", { name: "Entities / constructor" }).waitFor();
  await page.unroute("**/v1/overview/watch");
  await page.getByRole("link", { name: "Messages", exact: true }).click();
  await messages(page).first().getByRole("button").click();
  for (const name of ["__proto__", "toString"]) await page.getByLabel("Properties").getByRole("rowheader", { name }).waitFor();
}

/** The back button closes a dialog: what it counted was about another filter. */
async function back(page) {
  await open(page, "jobs", "messages");
  await messages(page).nth(2).waitFor();
  await page.getByLabel("Body contains").fill("first");
  await button(page, "Search").click();
  await page.getByText("1 found").waitFor();
  await button(page, "Move messages that match").click();
  await inDialog(page, "to").fill("archive");
  await dialog(page).getByRole("button", { name: "Dry run" }).click();
  await dialog(page).getByText("1 would be moved").waitFor();
  await page.goBack();
  await closed(page);
  await page.getByText("3 found").waitFor();
  assert.equal(await page.getByLabel("Body contains").inputValue(), "");
  await page.goForward();
  await page.getByText("1 found").waitFor();
  assert.equal(await page.getByLabel("Body contains").inputValue(), "first");
  await page.goBack();
  await page.goBack();
  await page.getByRole("heading", { name: "Entities / constructor" }).waitFor();
}

/** While a server is slow, the page says that it waits, and sends no change twice. */
async function slow(page) {
  const held = [];
  await page.route("**/v1/**", (one) => held.push(one));
  await page.goto(`${URL}/console/#/entity/jobs/partitions`);
  await page.getByText("Loading…").first().waitFor();
  for (const one of held) await one.continue();
  await page.unroute("**/v1/**");
  // What the page shows comes below the place where it said that it loads.
  await page.route("**/history", (one) => held.push(one));
  const asked = page.waitForRequest("**/history");
  await page.getByRole("link", { name: "Figures" }).click();
  await asked;
  await page.locator(".figures ~ p", { hasText: "Loading…" }).waitFor();
  await held.at(-1).continue();
  await page.unroute("**/history");
  await page.locator(".figures ~ .charts, .figures ~ p:has-text('The history')").waitFor();
  await page.getByRole("link", { name: "Partitions" }).click();
  await page.getByRole("row", { name: /^0 / }).waitFor();
  await button(page, "Send").click();
  await inDialog(page, "body").fill("once");
  const posts = [];
  await page.route("**/v1/entities/jobs/messages", (one) => posts.push(one));
  const sending = page.waitForRequest("**/v1/entities/jobs/messages");
  for (const _ of [1, 2, 3]) await dialog(page).getByRole("button", { name: "Send" }).click({ force: true });
  await sending;
  await dialog(page).getByText("Waiting for the server…").waitFor();
  assert.equal(posts.length, 1);
  await posts[0].continue();
  await page.unroute("**/v1/entities/jobs/messages");
  await closed(page);
  await notice(page, "sent message");
}

/** Two operators act on one message: the second one is told that it is gone. */
async function two(page, other) {
  for (const tab of [page, other]) {
    await open(tab, "jobs", "dead-lettered");
    await button(tab, "Resubmit these 2").click();
    await dialog(tab).getByRole("button", { name: "Dry run" }).click();
    await dialog(tab).getByText("2 would be resubmitted").waitFor();
  }
  for (const [tab, count] of [[page, 2], [other, 0]]) {
    await dialog(tab).getByRole("button", { name: "Resubmit 2" }).click();
    await closed(tab);
    await notice(tab, `resubmitted ${count}`);
    // By then the other tab has loaded the counts again, and still shows its dialog.
    await other.getByText("Dead-lettered (0)").waitFor();
  }
  for (const tab of [page, other]) {
    await open(tab, "jobs", "messages");
    await row(tab, /first/).getByRole("button").click();
    await tab.getByText("Life so far").waitFor();
    await button(tab, "Delete message").click();
    await dialog(tab).getByRole("button", { name: "Delete it" }).waitFor();
  }
  await dialog(page).getByRole("button", { name: "Delete it" }).click();
  await notice(page, "deleted message");
  await dialog(other).getByRole("button", { name: "Delete it" }).click();
  await dialog(other).getByRole("alert").filter({ hasText: "no message was deleted" }).waitFor();
  await dialog(other).getByRole("button", { name: "Cancel" }).click();
  await other.getByLabel("Message", { exact: true }).getByRole("alert").filter({ hasText: "no message with sequence number" }).waitFor();
}

/** A browser opens six connections to a server: more tabs than that all show changes. */
async function many(page, context) {
  const tabs = [page];
  while (tabs.length < TABS) tabs.push(await context.newPage());
  for (const tab of tabs) await go(tab, "");
  await Promise.all(tabs.map((tab) => tab.getByRole("row", { name: /^archive 0/ }).waitFor()));
  assert.equal((await fetch(`${URL}/v1/entities/archive/messages`, { method: "POST", body: '{"body": "x"}', headers: { "content-type": "application/json" } })).status, 200);
  await Promise.all(tabs.map((tab) => tab.getByRole("row", { name: /^archive 1/ }).waitFor()));
  // Streams of messages are few too: the next tab says why it has none.
  for (const tab of tabs.slice(0, 3)) {
    await open(tab, "archive", "messages");
    await button(tab, "Follow").click();
  }
  await tabs[1].getByText("Messages appear here").waitFor();
  await tabs[2].getByRole("alert").filter({ hasText: "other tabs follow messages already" }).waitFor();
  await Promise.all(tabs.slice(1).map((tab) => tab.close()));
}

/** A tab in the background asks the server nothing until the operator comes back. */
async function hidden(page) {
  const show = (value) => page.evaluate((given) => {
    Object.defineProperty(document, "hidden", { value: given, configurable: true });
    document.dispatchEvent(new Event("visibilitychange"));
  }, value);
  const watching = () => page.waitForRequest("**/v1/overview/watch");
  const [first] = await Promise.all([watching(), go(page, "")]);
  await page.getByRole("row", { name: /^archive 1/ }).waitFor();
  const ended = page.waitForEvent("requestfailed", (one) => one.url() === first.url());
  await show(true);
  await ended;
  await Promise.all([watching(), show(false)]);
  assert.equal(await page.getByRole("alert").count(), 0);
}

await walk(async (page, context) => {
  await large(page);
  await names(page);
  await back(page);
  await slow(page);
  const other = await context.newPage();
  await two(page, other);
  await other.close();
  await many(page, context);
  await hidden(page);
});
