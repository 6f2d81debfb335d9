// Fourteen tasks of an operator, in a real browser.

import assert from "node:assert/strict";
import { accessible, button, go, notice, picture, walk } from "./browser.mjs";

const clicks = {};
let task = "";
const click = async (place) => {
  clicks[task] += 1;
  await place.click();
};
const begin = (name) => {
  task = name;
  clicks[task] = 0;
};
const search = async (page, fields) => {
  for (const [label, text] of Object.entries(fields)) await page.getByLabel(label, { exact: true }).fill(text);
  await click(button(page, "Search"));
};

await walk(async (page) => {
  begin("find the noisy group");
  await go(page, "entity/tenants/groups");
  await page.getByRole("row", { name: /^loud .*noisy/ }).waitFor();
  await accessible(page, "groups");
  begin("find why jobs are stuck");
  await go(page, "");
  await page.getByRole("link", { name: "orders", exact: true }).waitFor();
  await accessible(page, "overview");
  await picture(page, "overview");
  await page.getByLabel("Search by name").fill("jobs");
  await click(page.getByRole("link", { name: "900", exact: true }));
  await page.getByRole("row", { name: /timeout 300/ }).waitFor();
  await accessible(page, "dead-lettered");
  await picture(page, "dead-lettered");

  begin("resubmit 300 of 900 by reason");
  await click(page.getByRole("row", { name: /timeout 300/ }).getByRole("button", { name: "Resubmit these 300" }));
  await click(button(page, "Dry run"));
  await page.getByText("would resubmit 300").waitFor();
  await click(button(page, "Resubmit 300"));
  await notice(page, "resubmitted 300");
  await page.getByRole("link", { name: "Dead-lettered (600)" }).waitFor();

  begin("find a message by a field of its JSON body");
  await go(page, "entity/orders/messages");
  await page.getByRole("columnheader", { name: "Number" }).waitFor();
  await search(page, { "JSON field": "customer.id", equals: "42" });
  const rows = page.locator("table.messages tbody tr");
  await page.getByText("1 found").waitFor();
  assert.equal(await rows.count(), 1);
  await click(rows.first().getByRole("button"));
  await page.getByLabel("Body", { exact: true }).getByText('"id": 42').waitFor();
  await page.getByText("enqueued", { exact: true }).waitFor();
  await click(button(page, "AMQP sections"));
  await page.getByLabel("message annotations").getByText("x-opt-sequence-number").waitFor();
  await accessible(page, "message");
  await picture(page, "message");

  begin("send, and see a duplicate dropped");
  for (const expected of ["sent message", "dropped as a duplicate of message"]) {
    await click(button(page, "Send"));
    await page.getByLabel("Body", { exact: true }).last().fill('{"customer": {"id": 7}}');
    await page.getByLabel("Message id").last().fill("twice");
    await click(page.getByRole("dialog").getByRole("button", { name: "Send" }));
    await notice(page, expected);
  }

  begin("cancel a scheduled message");
  await go(page, "entity/later/messages");
  await page.getByLabel("State").selectOption("scheduled");
  await search(page, {});
  await page.getByText("1 found").waitFor();
  await click(rows.first().getByRole("button"));
  await click(page.getByLabel("Message", { exact: true }).getByRole("button", { name: "Cancel", exact: true }).first());
  await click(button(page, "Cancel the message"));
  await notice(page, "cancelled");

  begin("follow arriving messages");
  await go(page, "");
  await go(page, "entity/later/messages");
  await click(button(page, "Follow"));
  await page.getByText("Messages appear here as they arrive").waitFor();
  await click(button(page, "Send"));
  await page.getByLabel("Body", { exact: true }).last().fill("just arrived");
  await click(page.getByRole("dialog").getByRole("button", { name: "Send" }));
  await page.getByRole("row", { name: /just arrived/ }).waitFor();
  assert.equal(await rows.count(), 1);

  begin("receive one message and complete it");
  await go(page, "entity/later/messages");
  await click(page.getByText("Receive with a lock"));
  await click(button(page, "Receive the next message"));
  await button(page, "complete").waitFor();
  // The page still holds the message after a look at another view.
  await go(page, "entity/later/partitions");
  await page.getByRole("row", { name: /^0 / }).waitFor();
  await go(page, "entity/later/messages");
  await click(button(page, "complete"));
  await notice(page, "complete: message");

  begin("purge the rest of the dead-lettered messages");
  await go(page, "entity/jobs/dead-lettered");
  await click(button(page, "Purge"));
  await page.getByRole("dialog").getByLabel("State").selectOption("dead-lettered");
  await click(button(page, "Count messages"));
  await page.getByText("600 messages match now").waitFor();
  await click(button(page, "Delete 600 messages"));
  await notice(page, "deleted 600 messages");

  begin("move messages that match to another queue");
  await go(page, "entity/orders/messages");
  await search(page, { "JSON field": "customer.id", equals: "43" });
  await page.getByText("1 found").waitFor();
  await click(button(page, "Move messages that match"));
  await page.getByRole("dialog").getByLabel("To").fill("later");
  await click(button(page, "Count messages"));
  await page.getByText("1 would move").waitFor();
  await click(button(page, "Move 1"));
  await notice(page, "moved 1");
  await page.getByText("0 found").waitFor();

  begin("create, pause and delete a queue");
  await go(page, "");
  await click(button(page, "New entity"));
  await page.getByLabel("Name", { exact: true }).fill("made-here");
  await page.getByLabel("requires session").check();
  await click(button(page, "Create"));
  await notice(page, "created made-here");
  await go(page, "entity/made-here/settings");
  await page.getByRole("row", { name: "requires_session true" }).waitFor();
  await click(button(page, "Pause"));
  await click(button(page, "Pause now"));
  await page.getByText("disabled").first().waitFor();
  await click(button(page, "Delete"));
  await page.getByLabel("Type made-here to confirm").fill("made-here");
  await click(page.getByRole("dialog").getByRole("button", { name: "Delete" }));
  await page.getByRole("heading", { name: "Entities", exact: true }).waitFor();

  begin("add a rule after a test");
  await go(page, "entity/news%2Fsubscriptions%2Fall/settings");
  await click(button(page, "Add rule"));
  await page.getByLabel("Name", { exact: true }).fill("urgent");
  await page.getByLabel("SQL filter").fill("priority > 3");
  await click(button(page, "Test against waiting messages"));
  await page.getByText("matches 1 of the first 3").waitFor();
  await click(button(page, "Add"));
  await notice(page, "rule added");
  await page.getByRole("row", { name: /urgent/ }).waitFor();

  begin("see how far a lake is behind");
  await go(page, "");
  await click(page.getByRole("link", { name: "Pipeline" }));
  await page.getByRole("heading", { name: "lakes/main" }).waitFor();
  await page.getByRole("row", { name: /orders messages lake-1 501 none/ }).waitFor();
  await accessible(page, "pipeline");
  await picture(page, "pipeline");

  begin("watch figures, sessions and partitions");
  await go(page, "entity/invoices/sessions");
  await page.getByRole("row", { name: /^customer-1 / }).waitFor();
  await go(page, "entity/orders/partitions");
  await page.getByRole("row", { name: /^15 / }).waitFor();
  await go(page, "entity/orders/figures");
  await page.getByText("Messages per second").waitFor({ timeout: 30_000 });
  await accessible(page, "figures");
  await picture(page, "figures");
});

// What messages contain changes nothing on the page, at any width and in the dark.
await walk(async (page) => {
  await page.emulateMedia({ colorScheme: "dark" });
  await go(page, "entity/hostile/dead-lettered");
  await page.getByRole("row", { name: /onerror/ }).first().waitFor();
  await page.locator("table.messages tbody tr").first().getByRole("button").click();
  await page.getByLabel("Body", { exact: true }).waitFor();
  await go(page, "entity/hostile/messages");
  await page.locator("table.messages tbody tr").first().getByRole("button").click();
  for (const form of ["text", "hex", "AMQP sections", "json"]) await button(page, form).click();
  assert.equal(await page.locator("img[src=x], iframe, .planted").count(), 0);
  await accessible(page, "dark");
  for (const hash of ["", "entity/orders/figures", "entity/hostile/messages"]) {
    await page.setViewportSize({ width: 400, height: 800 });
    await go(page, hash);
    await page.getByRole("heading", { level: 1 }).waitFor();
    assert.ok((await page.evaluate(() => document.documentElement.scrollWidth)) <= 400, hash);
  }
  await picture(page, "small");
});

console.log(JSON.stringify(clicks));
