// Markup in everything that users can choose changes nothing on any page: it is shown as it is.

import assert from "node:assert/strict";
import { URL, button, closed, dialog, go, inDialog, messages, open, walk } from "./browser.mjs";

const MARKUP = process.env.MARKUP;

/** Check that a view shows the markup, and that none of it became an element. */
async function shown(page, view) {
  await page.getByText("onerror=alert").first().waitFor();
  const planted = await page.evaluate(() => document.querySelectorAll("img[src=x], iframe, .planted, script:not([src])").length);
  assert.equal(planted, 0, view);
}
const cancel = async (page) => {
  await dialog(page).waitFor();
  await page.keyboard.press("Escape");
  await closed(page);
};

await walk(async (page) => {
  // What others have sent, set, called and reported.
  for (const tab of ["messages", "dead-lettered"]) {
    await open(page, "hostile", tab);
    await messages(page).first().waitFor();
    await shown(page, tab);
    await messages(page).first().getByRole("button").click();
    for (const form of ["text", "hex", "AMQP sections", "json"]) {
      await button(page, form).click();
      await shown(page, `${tab} as ${form}`);
    }
    await page.getByText("Life so far").waitFor();
    await button(page, "Edit and send a copy").click();
    assert.ok((await inDialog(page, "body").inputValue()).includes("<img src=x onerror"));
    await shown(page, "a copy");
    await cancel(page);
  }
  await button(page, "Resubmit these 1").click();
  await shown(page, "resubmit");
  await cancel(page);
  for (const tab of ["readers", "settings"]) {
    await open(page, "hostile", tab);
    await shown(page, tab);
  }
  await button(page, "Change settings").click();
  await dialog(page).getByText("More settings").click();
  await shown(page, "change settings");
  await cancel(page);
  await open(page, "sessions", "sessions");
  await shown(page, "sessions");
  await page.getByRole("row", { name: /onerror/ }).getByRole("link").click();
  await messages(page).first().waitFor();
  await shown(page, "messages of a session");
  await open(page, "news/subscriptions/all", "settings");
  await shown(page, "rules");
  await button(page, "Change rule sql").click();
  await button(page, "Test against waiting messages").click();
  await dialog(page).getByText("matches 1 of the first 1").waitFor();
  await shown(page, "a test of a filter");
  await cancel(page);
  await open(page, "fair", "groups");
  await shown(page, "groups");
  await go(page, "pipeline");
  await page.getByText("1 note").click();
  await shown(page, "pipeline");
  const [report] = await Promise.all([page.context().waitForEvent("page"), button(page, "Open report").click()]);
  await report.waitForLoadState();
  // The page about a lake may have markup of its own. It runs no script, and its origin is none.
  assert.equal(await report.title(), "report");
  assert.equal(await report.evaluate(() => globalThis.ran), undefined);
  await report.close();

  // What the operator types.
  await open(page, "hostile", "messages");
  for (const field of ["text", "path", "equals", "sql", "id", "session"]) {
    await page.locator(`.filter [name=${field}]`).fill(MARKUP);
    await button(page, "Search").click();
    await page.waitForFunction((name) => document.querySelector(`.filter [name=${name}]`).value !== "", field);
    assert.equal(await page.locator("img[src=x], iframe, .planted").count(), 0, field);
    await open(page, "hostile", "messages");
  }
  await button(page, "Purge messages that match").click();
  await cancel(page);
  await button(page, "Move messages that match").click();
  await inDialog(page, "to").fill(MARKUP);
  await dialog(page).getByRole("button", { name: "Dry run" }).click();
  await dialog(page).getByRole("alert").waitFor();
  assert.equal(await page.locator("img[src=x], iframe, .planted").count(), 0);
  await cancel(page);
  await go(page, "");
  await page.getByLabel("Search by name").fill(MARKUP);
  await page.getByText("No entity matches").waitFor();
  await button(page, "New entity").click();
  await inDialog(page, "name").fill(MARKUP);
  await dialog(page).getByRole("button", { name: "Create" }).click();
  await dialog(page).getByRole("alert").filter({ hasText: "onerror" }).waitFor();
  await shown(page, "the name of a new entity");
  await cancel(page);
  await page.goto(`${URL}/console/#/entity/${encodeURIComponent(MARKUP)}/messages/${encodeURIComponent(MARKUP)}`);
  await page.getByRole("heading", { name: /onerror/ }).waitFor();
  await shown(page, "the address");
  // A message, a reason, a rule and a setting, all of them typed.
  const short = MARKUP.slice(0, 100);
  await open(page, "typed", "messages");
  await button(page, "Send").click();
  for (const name of ["body", "subject", "content_type", "correlation_id"]) await inDialog(page, name).fill(MARKUP);
  for (const name of ["message_id", "session_id", "partition_key"]) await inDialog(page, name).fill(short);
  await inDialog(page, "properties").fill(JSON.stringify({ [MARKUP]: MARKUP }));
  await dialog(page).getByRole("button", { name: "Send", exact: true }).click();
  await closed(page);
  await messages(page).first().getByRole("button").click();
  await page.getByLabel("Properties").getByRole("rowheader", { name: MARKUP }).waitFor();
  await shown(page, "a typed message");
  await page.getByText("Receive with a lock").click();
  await button(page, "Receive the next message").click();
  await page.getByRole("button", { name: /^Dead-letter message/ }).click();
  for (const name of ["reason", "description"]) await inDialog(page, name).fill(MARKUP);
  await dialog(page).getByRole("button", { name: "Dead-letter it" }).click();
  await closed(page);
  await page.getByRole("link", { name: "Dead-lettered (1)" }).click();
  await page.getByRole("button", { name: MARKUP, exact: true }).click();
  await messages(page).first().waitFor();
  await shown(page, "a typed reason");
  await open(page, "typed", "settings");
  await button(page, "Change settings").click();
  await dialog(page).getByText("More settings").click();
  await inDialog(page, "user_metadata").fill(MARKUP);
  await dialog(page).getByRole("button", { name: "Save" }).click();
  await closed(page);
  await page.getByRole("row", { name: /user_metadata .*onerror/ }).waitFor();
  await shown(page, "a typed setting");
  await open(page, "news/subscriptions/all", "settings");
  await button(page, "Add rule").click();
  await inDialog(page, "name").fill("<b>typed<b>");
  await page.getByLabel("SQL filter").last().fill(`sys.Label = '${MARKUP.replaceAll("'", "''")}'`);
  await dialog(page).getByRole("button", { name: "Add", exact: true }).click();
  await closed(page);
  await page.getByRole("rowheader", { name: "<b>typed<b>", exact: true }).waitFor();
  await shown(page, "a typed rule");
  // Filters in an address that no form makes: the view stays usable, and the next one is read.
  for (const filter of ["null", '"x"', '{"start": "1 OR 1=1"}', '{"enqueued_from_ms": 1e30}', '{"enqueued_from_ms": "x"}']) {
    await page.goto(`${URL}/console/#/entity/hostile/messages/${encodeURIComponent(filter)}`);
    await page.locator(".filter [name=sql]").waitFor();
    assert.equal(await page.getByText("this view failed").count(), 0, filter);
  }
  await page.goto(`${URL}/console/#/entity/hostile/messages/%7B%7D`);
  await messages(page).first().waitFor();
  // A body of brackets only, as deep as it is long.
  await open(page, "deep", "messages");
  await messages(page).first().getByRole("button").click();
  await page.getByLabel("Body", { exact: true }).getByText("[[[[[").waitFor();
  await page.getByText("Life so far").waitFor();
});
