// Queues, sessions, topics and rules through @azure/service-bus. Each step ends in an assertion;
// the last line says that all of them were reached.
import assert from "node:assert/strict";
import { createRequire } from "node:module";
const { ServiceBusClient, delay } = createRequire(process.env.NODE_HOME + "/")("@azure/service-bus");

const client = new ServiceBusClient(process.env.CONNECTION, { retryOptions: { maxRetries: 0 } });
const names = JSON.parse(process.env.NAMES);

async function receive(receiver, count) {
  const found = [];
  while (found.length < count) {
    const more = await receiver.receiveMessages(count - found.length, { maxWaitTimeInMs: 10000 });
    assert.ok(more.length, `${found.length} of ${count} came`);
    found.push(...more);
  }
  return found;
}

const steps = {
  async queue() {
    const sender = client.createSender(names.queue);
    const receiver = client.createReceiver(names.queue);
    await sender.sendMessages({ body: { apples: 3 }, messageId: "m-1", subject: "fruit",
      applicationProperties: { n: 1, s: "x" } });
    await sender.sendMessages({ body: "a duplicate", messageId: "m-1" });
    const batch = await sender.createMessageBatch();
    for (const one of [1, 2, 3]) assert.ok(batch.tryAddMessage({ body: one, messageId: `b-${one}` }));
    await sender.sendMessages(batch);
    const [first, second, third, fourth] = await receive(receiver, 4);
    assert.deepEqual(first.body, { apples: 3 });
    assert.equal(first.subject, "fruit");
    assert.deepEqual(first.applicationProperties, { n: 1, s: "x" });
    assert.equal(first.sequenceNumber.toString(), "1");
    await receiver.completeMessage(first);
    await receiver.abandonMessage(second, { tried: true });
    await receiver.deferMessage(third);
    await receiver.deadLetterMessage(fourth, { deadLetterReason: "why",
      deadLetterErrorDescription: "because" });
    const [again] = await receive(receiver, 1);
    assert.equal(again.deliveryCount, 1);
    assert.equal(again.applicationProperties.tried, true);
    await receiver.renewMessageLock(again);
    await receiver.completeMessage(again);
    const [deferred] = await receiver.receiveDeferredMessages(third.sequenceNumber);
    await receiver.completeMessage(deferred);
    assert.deepEqual(await receiver.receiveMessages(1, { maxWaitTimeInMs: 500 }), []);
    const dead = client.createReceiver(names.queue, { subQueueType: "deadLetter" });
    const [letter] = await receive(dead, 1);
    assert.equal(letter.deadLetterReason, "why");
    assert.equal(letter.deadLetterErrorDescription, "because");
    await dead.completeMessage(letter);
    await Promise.all([sender.close(), receiver.close(), dead.close()]);
  },

  async scheduled() {
    const sender = client.createSender(names.queue);
    const receiver = client.createReceiver(names.queue, { receiveMode: "receiveAndDelete" });
    const later = new Date(Date.now() + 3600_000);
    const numbers = await sender.scheduleMessages([{ body: 1 }, { body: 2 }], later);
    const peeked = await receiver.peekMessages(10);
    assert.deepEqual(peeked.map((one) => one.state), ["scheduled", "scheduled"]);
    await sender.cancelScheduledMessages(numbers);
    await sender.scheduleMessages({ body: "soon" }, new Date(Date.now() + 500));
    const [soon] = await receive(receiver, 1);
    assert.equal(soon.body, "soon");
    await Promise.all([sender.close(), receiver.close()]);
  },

  async streaming() {
    const sender = client.createSender(names.queue);
    await sender.sendMessages(Array.from({ length: 50 }, (_, n) => ({ body: n, messageId: `s${n}` })));
    const receiver = client.createReceiver(names.queue);
    const seen = [];
    await new Promise((resolve, reject) => {
      receiver.subscribe({
        async processMessage(message) { seen.push(message.body); if (seen.length === 50) resolve(); },
        async processError({ error }) { reject(error); },
      }, { maxConcurrentCalls: 10 });
    });
    await delay(200); // the last ones are completed after they were processed
    await Promise.all([sender.close(), receiver.close()]);
    assert.equal(new Set(seen).size, 50);
  },

  async sessions() {
    const sender = client.createSender(names.sessions);
    for (const n of [0, 1, 2, 3]) await sender.sendMessages({ body: n, sessionId: "ab"[n % 2] });
    const a = await client.acceptSession(names.sessions, "a");
    assert.equal(a.sessionId, "a");
    assert.ok(a.sessionLockedUntilUtc > new Date());
    await assert.rejects(client.acceptSession(names.sessions, "a"), { code: "SessionCannotBeLocked" });
    const b = await client.acceptNextSession(names.sessions);
    assert.equal(b.sessionId, "b");
    await a.setSessionState(Buffer.from("state"));
    assert.equal((await a.getSessionState()).toString(), "state");
    await a.renewSessionLock();
    const messages = await receive(a, 2);
    assert.deepEqual(messages.map((one) => one.body), [0, 2]);
    for (const one of messages) await a.completeMessage(one);
    await Promise.all([a.close(), b.close(), sender.close()]);
  },

  async rules() {
    const manager = client.createRuleManager(names.topic, "some");
    assert.deepEqual((await manager.getRules()).map((one) => one.name), ["$Default"]);
    await manager.deleteRule("$Default");
    await manager.createRule("big", { sqlExpression: "amount > 10" }, { sqlExpression: "SET big = 'yes'" });
    await manager.createRule("red", { subject: "red", applicationProperties: { n: 1 } });
    const [big, red] = (await manager.getRules()).sort((x, y) => (x.name < y.name ? -1 : 1));
    assert.equal(big.filter.sqlExpression, "amount > 10");
    assert.equal(big.action.sqlExpression, "SET big = 'yes'");
    assert.equal(red.filter.subject, "red");
    await assert.rejects(manager.createRule("red", { subject: "x" }), { code: "MessagingEntityAlreadyExists" });
    const sender = client.createSender(names.topic);
    await sender.sendMessages([
      { body: 1, applicationProperties: { amount: 5 } },
      { body: 2, applicationProperties: { amount: 50 } },
      { body: 3, subject: "red", applicationProperties: { n: 1 } },
    ]);
    const receiver = client.createReceiver(names.topic, "some", { receiveMode: "receiveAndDelete" });
    const found = await receive(receiver, 2);
    assert.deepEqual(found.map((one) => one.body).sort(), [2, 3]);
    await Promise.all([sender.close(), receiver.close()]);
  },

  async errors() {
    const sender = client.createSender("nowhere");
    await assert.rejects(sender.sendMessages({ body: 1 }), { code: "MessagingEntityNotFound" });
  },
};

for (const [name, step] of Object.entries(steps)) {
  await step();
  console.log("done:", name);
}
await client.close();
console.log("all done");
