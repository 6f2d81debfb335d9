// Tasks of an operator, in a real browser, with their clicks counted.

import assert from "node:assert/strict";
import { button, closed, dialog, go, inDialog, messages, notice, open, picture, row, walk } from "./browser.mjs";

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
//: Tasks that begin at the list of entities, as an operator does: docs/console.md has their clicks.
const whole = [];
const start = async (page, name) => {
  begin(name);
  whole.push(name);
  await go(page, "");
  await page.getByText("50 entities").waitFor();
};
/** Find an entity by its name, and open a view of it. */
const enter = async (page, name, view) => {
  await page.getByLabel("Search by name").fill(name);
  await click(page.getByRole("link", { name: name.replace("/subscriptions/", " / "), exact: true }));
  await page.getByRole("heading", { level: 1, name: `Entities / ${name}` }).waitFor();
  if (view) await click(page.getByRole("navigation").getByRole("link", { name: view }));
};
const search = async (page, fields) => {
  for (const [label, text] of Object.entries(fields)) await page.getByLabel(label, { exact: true }).fill(text);
  await click(button(page, "Search"));
};
const submit = (page, name) => click(dialog(page).getByRole("button", { name, exact: true }));
const found = (page, text) => page.getByRole("status").getByText(text).first().waitFor();

async function look(page) {
  await start(page, "find why a queue is stuck");
  await page.getByRole("link", { name: "orders", exact: true }).waitFor();
  await picture(page, "overview");
  await enter(page, "shipments");
  await page.getByText("It is paused: its status is receive-disabled").waitFor();

  await start(page, "find the noisy tenant of a queue with fair delivery");
  await enter(page, "tenants", /^Groups$/);
  await page.getByRole("row", { name: /^loud .*noisy/ }).waitFor();

  begin("see which clients receive");
  await click(page.getByRole("link", { name: "Receivers and readers" }));
  await page.getByRole("row", { name: /^40 0 a receiver/ }).waitFor();
  await page.getByRole("row", { name: /127.0.0.1 .* queue/ }).waitFor();

  await start(page, "see how far a lake is, and open its audit report");
  await click(page.getByRole("link", { name: "Pipeline" }));
  await page.getByRole("row", { name: /jobs messages 0 none 1,000 rows .* PASSED/ }).waitFor();
  await picture(page, "pipeline");
  const [report] = await Promise.all([page.context().waitForEvent("page"), click(button(page, "Open report"))]);
  await report.getByRole("heading", { name: "jobs" }).waitFor();
  assert.equal(await report.title(), "jobs: report");
  await report.close();

  begin("fold the subscriptions of a topic");
  await go(page, "");
  await page.getByRole("link", { name: "news/subscriptions/all" }).waitFor();
  await click(page.getByRole("button", { name: "Subscriptions of news" }));
  await page.getByRole("link", { name: "news/subscriptions/all" }).waitFor({ state: "detached" });

  begin("find the entities with most dead-lettered messages");
  await click(button(page, "Dead-lettered"));
  await page.locator("tbody tr").first().getByRole("link", { name: "jobs" }).waitFor();
}

async function find(page) {
  await start(page, "find a message by a field of its JSON body, among 158,000");
  await enter(page, "orders", /^Messages$/);
  await messages(page).first().waitFor();
  await search(page, { "JSON field": "customer.id", equals: "150042" });
  await found(page, "1 found");
  await click(messages(page).first().getByRole("button"));
  await page.getByLabel("Body", { exact: true }).getByText('"id": 150042').waitFor();
  const number = BigInt(await messages(page).first().getByRole("button").innerText());
  assert.ok(number > 2n ** 48n);
  await page.getByRole("heading", { name: `Message ${number}` }).waitFor();
  await page.getByText("enqueued", { exact: true }).waitFor();

  begin("show a body in every form");
  for (const form of ["text", "hex", "AMQP sections"]) await click(button(page, form));
  await page.getByLabel("message annotations").getByText(`"x-opt-sequence-number": ${number}`).waitFor();
  await picture(page, "message");

  begin("stop a long search, and continue it");
  // It would end before the click if the server responded.
  await page.route("**/search", () => {});
  await search(page, { "JSON field": "customer.id", equals: "nobody" });
  await click(button(page, "Stop"));
  await page.unroute("**/search");
  await click(button(page, "Continue"));
  await found(page, /^0 found, 1\d\d,\d{3} of about/);
}

async function narrow(page) {
  begin("find messages by SQL, session, time, id and number");
  await open(page, "later", "messages");
  await search(page, { "SQL filter": "region = 'eu'" });
  await found(page, "1 found");
  await search(page, { "SQL filter": "region =" });
  await page.getByRole("alert").getByText("expected a value").waitFor();
  await open(page, "invoices", "sessions");
  await click(page.getByRole("link", { name: "customer-1" }));
  await row(page, /customer-1/).waitFor();
  await found(page, "1 found");
  await search(page, { Session: "", Before: "2020-01-01T00:00:00" });
  await found(page, "0 found");
  await open(page, "region/00", "messages");
  await search(page, { "Message id": "region/00-7" });
  await found(page, "1 found");
  await search(page, { "Message id": "", "Sequence number from": "1040", "Body contains": '"id": 10' });
  await found(page, "13 found");

  begin("page through a large queue");
  await open(page, "region/01", "messages");
  await found(page, "50 found");
  await click(button(page, "Load more"));
  await found(page, "100 found");
  await row(page, /region\/01-0 /).waitFor();
  await click(button(page, "Load more"));
  await page.getByText("51 to 150 shown").waitFor();
  assert.equal(await messages(page).count(), 100);
  await row(page, /region\/01-0 /).waitFor({ state: "detached" });
  await click(button(page, "Show earlier"));
  await row(page, /region\/01-0 /).waitFor();
  await click(button(page, "Show later"));
  await row(page, /region\/01-149 /).waitFor();

  begin("look at a large binary message, and save it");
  await open(page, "large", "messages");
  await click(row(page, /998 KB/).getByRole("button"));
  await page.getByText("The body is not a string in UTF-8").waitFor();
  await click(button(page, "hex"));
  await page.getByText("The first 16 KB of 998 KB").waitFor();
  const [saved] = await Promise.all([page.waitForEvent("download"), click(button(page, "Save body"))]);
  assert.match(saved.suggestedFilename(), /^message-\d+$/);
  await click(row(page, /rows/).getByRole("button"));
  await click(page.getByRole("button", { name: /^Show all [\d,]+ characters/ }));
}

async function repair(page) {
  await start(page, "resubmit 300 of 1,000 dead-lettered messages by reason");
  await click(page.getByRole("link", { name: "1,000", exact: true }));
  await page.getByRole("row", { name: /timeout 300/ }).waitFor();
  await picture(page, "dead-lettered");
  await click(page.getByRole("row", { name: /timeout 300/ }).getByRole("button", { name: "Resubmit these 300" }));
  await submit(page, "Dry run");
  await page.getByText("300 would be resubmitted").waitFor();
  await submit(page, "Resubmit 300");
  await notice(page, "resubmitted 300");
  await page.getByRole("link", { name: "Dead-lettered (700)" }).waitFor();

  await start(page, "correct one dead-lettered message and send it again");
  await enter(page, "jobs", /^Dead-lettered/);
  await click(page.getByRole("button", { name: "too late", exact: true }));
  await found(page, "50 found");
  await click(messages(page).first().getByRole("button"));
  await click(button(page, "Edit and send a copy"));
  await inDialog(page, "body").fill('{"job": "corrected"}');
  await inDialog(page, "replace").check();
  await submit(page, "Send the copy");
  await notice(page, "deleted the original");

  begin("resubmit chosen messages to another queue");
  await open(page, "jobs", "dead-lettered");
  for (const at of [0, 1]) {
    clicks[task] += 1;
    await messages(page).nth(at).getByRole("checkbox").check();
  }
  await click(button(page, "Resubmit 2 selected"));
  await inDialog(page, "to").fill("archive");
  await submit(page, "Dry run");
  await submit(page, "Resubmit 2");
  await notice(page, "resubmitted 2");

  begin("purge the rest of the dead-lettered messages");
  await click(button(page, "Purge messages that match"));
  await submit(page, "Count messages");
  await page.getByText("Messages that match now: 697").waitFor();
  await submit(page, "Delete 697 messages");
  await notice(page, "deleted 697 messages");

  await start(page, "move messages that match to another queue");
  await enter(page, "region/02", /^Messages$/);
  await search(page, { "JSON field": "customer.region", equals: "eu" });
  await found(page, "50 found");
  await click(button(page, "Move messages that match"));
  await inDialog(page, "to").fill("archive");
  await submit(page, "Dry run");
  await page.getByText("526 would be moved").waitFor();
  await submit(page, "Move 526");
  await notice(page, "moved 526");
  await found(page, "0 found");

  begin("purge the messages from a sequence number on");
  await open(page, "region/02", "messages");
  await search(page, { "Sequence number from": "1050" });
  await found(page, "2 found");
  await click(button(page, "Purge messages that match"));
  await submit(page, "Count messages");
  await submit(page, "Delete 2 messages");
  await notice(page, "deleted 2 messages");

  begin("delete one message");
  await open(page, "region/03", "messages");
  await click(messages(page).first().getByRole("button"));
  await click(button(page, "Delete message"));
  await submit(page, "Delete it");
  await notice(page, "deleted message 1");
}

async function send(page) {
  begin("send, and see a duplicate dropped");
  await open(page, "orders", "messages");
  for (const expected of ["sent message", "dropped as a duplicate of message"]) {
    await click(button(page, "Send"));
    await inDialog(page, "body").fill('{"customer": {"id": -7}}');
    await inDialog(page, "message_id").fill("twice");
    await submit(page, "Send");
    await notice(page, expected);
  }

  await start(page, "send 2,502 messages from a file");
  await enter(page, "archive");
  await click(button(page, "Send"));
  // Neither an empty file nor one that is not UTF-8 can be sent.
  await inDialog(page, "file").setInputFiles({ name: "none.txt", mimeType: "text/plain", buffer: Buffer.from("\n") });
  await page.getByText("none.txt has no message").waitFor();
  await inDialog(page, "file").setInputFiles({ name: "bytes", mimeType: "text/plain", buffer: Buffer.from([0x61, 0xff, 0x0a]) });
  await page.getByText("choose one in UTF-8").waitFor();
  await inDialog(page, "file").setInputFiles(process.env.FILE);
  await page.getByText("many.txt has 2,502 messages").waitFor();
  await submit(page, "Send 2,502 messages");
  await notice(page, "sent 2,502 messages");

  begin("find one of them");
  await open(page, "archive", "messages");
  await search(page, { "Body contains": "plain two" });
  await found(page, "1 found");

  await start(page, "schedule a message, and cancel it");
  await enter(page, "later", /^Messages$/);
  await click(button(page, "Send"));
  await inDialog(page, "body").fill("next century");
  await inDialog(page, "due").fill("2099-01-02T03:04:05");
  await submit(page, "Send");
  await notice(page, "scheduled message");
  await page.getByLabel("State").selectOption("scheduled");
  await search(page, { "Body contains": "next century" });
  await found(page, "1 found");
  await click(messages(page).first().getByRole("button"));
  await click(page.getByLabel("Message", { exact: true }).getByRole("button", { name: "Cancel", exact: true }).first());
  await submit(page, "Cancel the message");
  await notice(page, "cancelled");

  begin("follow arriving messages");
  await open(page, "archive", "messages");
  await click(button(page, "Follow"));
  await page.getByText("Messages appear here as they arrive").waitFor();
  await click(button(page, "Send"));
  await inDialog(page, "body").fill("just arrived");
  await submit(page, "Send");
  await row(page, /just arrived/).waitFor();
  assert.equal(await messages(page).count(), 1);
}

/** Receive the next message and settle it. */
async function settle(page, verb) {
  if (!(await button(page, "Receive the next message").isVisible())) await click(page.getByText("Receive with a lock"));
  await click(button(page, "Receive the next message"));
  const action = page.getByRole("button", { name: new RegExp(`^${verb} message`) });
  await click(action);
  // A notice may be that of the message before.
  if (verb !== "Dead-letter") await action.waitFor({ state: "detached" });
}

async function receive(page) {
  begin("abandon, defer, reactivate and dead-letter a message");
  await open(page, "later", "messages");
  await row(page, /active .*0 now/).waitFor();
  await settle(page, "Abandon");
  await row(page, /active .*1 now/).waitFor();
  await settle(page, "Defer");
  await click(row(page, /deferred .*now/).getByRole("button"));
  await page.getByText("abandoned after").waitFor();
  await click(button(page, "Reactivate"));
  await submit(page, "Reactivate it");
  await row(page, /active .*now/).waitFor();
  await settle(page, "Dead-letter");
  await inDialog(page, "reason").fill("wrong address");
  await submit(page, "Dead-letter it");
  await closed(page);
  await open(page, "later", "dead-lettered");
  await row(page, /wrong address .*now/).waitFor();

  begin("complete a dead-lettered message");
  await click(page.getByText("Receive with a lock"));
  await click(button(page, "Receive the next dead-lettered message"));
  // The page still holds the message after a look at another view.
  await click(page.getByRole("link", { name: "Partitions" }));
  await page.getByRole("row", { name: /^0 main/ }).waitFor();
  await click(page.getByRole("link", { name: /^Dead-lettered/ }));
  await click(page.getByRole("button", { name: /^Complete message/ }));
  await notice(page, "complete: message");

  begin("settle a message of a session");
  await open(page, "invoices", "messages");
  await click(page.getByText("Receive with a lock"));
  await page.getByLabel("Session to accept").fill("customer-2");
  await click(button(page, "Accept session"));
  await button(page, "Release session").waitFor();
  await settle(page, "Complete");
  await notice(page, "complete: message");
  await click(button(page, "Release session"));
  await notice(page, "released session customer-2");

  begin("settle a message of a FIFO queue");
  await open(page, "steps", "messages");
  await settle(page, "Complete");
  await notice(page, "complete: message");
  await page.getByRole("link", { name: "Groups" }).click();
  await page.getByRole("row", { name: /^anna 2/ }).waitFor();
}

async function manage(page) {
  await start(page, "pause a queue, and resume it");
  await enter(page, "region/04");
  await click(button(page, "Pause"));
  await submit(page, "Pause now");
  await page.getByText("disabled", { exact: true }).first().waitFor();
  await click(button(page, "Resume"));
  await submit(page, "Resume now");
  await button(page, "Pause").waitFor();

  begin("create, change, pause, resume and delete a queue");
  await go(page, "");
  await click(button(page, "New entity"));
  await inDialog(page, "name").fill("made-here");
  await page.getByLabel("requires session").check();
  await inDialog(page, "lock_duration_ms").fill("10 h");
  await submit(page, "Create");
  await dialog(page).getByRole("alert").getByText("lock_duration_ms is 36000000: it must be from 1000 to 300000").waitFor();
  await inDialog(page, "lock_duration_ms").fill("30 s");
  await submit(page, "Create");
  await notice(page, "created made-here");
  await page.getByLabel("Search by name").fill("made-here");
  await click(page.getByRole("link", { name: "made-here" }));
  await click(page.getByRole("link", { name: "Settings and keys" }));
  await page.getByRole("row", { name: "requires_session true" }).waitFor();
  await page.getByRole("row", { name: "lock_duration_ms 30 s" }).waitFor();
  await page.getByRole("row", { name: /^RootManageSharedAccessKey all entities .*Manage/ }).waitFor();
  await click(button(page, "Change settings"));
  await inDialog(page, "max_delivery_count").fill("3");
  await submit(page, "Save");
  await notice(page, "changed max delivery count");
  await page.getByRole("row", { name: "max_delivery_count 3" }).waitFor();
  await click(button(page, "Pause"));
  await submit(page, "Pause now");
  await page.getByText("disabled", { exact: true }).first().waitFor();
  await click(button(page, "Resume"));
  await submit(page, "Resume now");
  await button(page, "Pause").waitFor();
  await click(button(page, "Delete"));
  await page.getByLabel("Type made-here to confirm").fill("made-here");
  await submit(page, "Delete");
  await page.getByRole("heading", { name: "Entities", exact: true }).waitFor();

  await start(page, "test an SQL filter against waiting messages, and add a rule");
  await enter(page, "news/subscriptions/urgent", /^Settings/);
  await page.getByRole("row", { name: /^high priority > 9/ }).waitFor();
  await click(button(page, "Add rule"));
  await inDialog(page, "name").fill("medium");
  await page.getByLabel("SQL filter").last().fill("priority > 3");
  await dialog(page).getByLabel("Messages of").selectOption("news/subscriptions/all");
  await submit(page, "Test against waiting messages");
  await page.getByText("matches 1 of the first 3 messages").waitFor();
  await submit(page, "Add");
  await notice(page, "rule added");

  begin("change a rule, and delete it");
  await click(button(page, "Change rule medium"));
  await inDialog(page, "kind").selectOption("correlation");
  await inDialog(page, "subject").fill("weather");
  await submit(page, "Save");
  await notice(page, "rule changed");
  await page.getByRole("row", { name: /^medium subject = weather/ }).waitFor();
  await click(button(page, "Delete rule medium"));
  await submit(page, "Delete rule");
  await page.getByRole("row", { name: /^medium/ }).waitFor({ state: "detached" });

  begin("watch figures and partitions");
  await open(page, "orders");
  await page.getByText("Messages per second").waitFor();
  await page.getByText("Dwell p99").waitFor();
  await picture(page, "figures");
  await click(page.getByRole("link", { name: "Partitions" }));
  await page.getByRole("row", { name: /^15 main .* online/ }).waitFor();
}

await walk(async (page) => {
  const parts = { look, find, narrow, repair, send, receive, manage };
  for (const name of (process.env.PARTS || Object.keys(parts).join()).split(",")) await parts[name](page);
});
console.log(JSON.stringify({ clicks, whole: whole.map((name) => [name, clicks[name]]) }));
