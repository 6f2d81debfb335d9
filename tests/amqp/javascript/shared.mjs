// Shares a queue and a session with a client of another language: sends what is there again, takes
// what it gets, and prints which messages it has completed.
import assert from "node:assert/strict";
import { createRequire } from "node:module";
const { ServiceBusClient } = createRequire(process.env.NODE_HOME + "/")("@azure/service-bus");

const client = new ServiceBusClient(process.env.CONNECTION);
const names = JSON.parse(process.env.NAMES);

const session = await client.acceptSession(names.sessions, "s");
const [first] = await session.receiveMessages(1, { maxWaitTimeInMs: 5000 });
assert.equal(first.body, 1);
await session.completeMessage(first);
await session.setSessionState(Buffer.from("seen by another language"));
await session.close();

const sender = client.createSender(names.queue);
const again = Array.from({ length: 40 }, (_, n) => ({ body: n, messageId: `m-${n}` }));
await sender.sendMessages(again);
await client.createSender(names.sessions).sendMessages({ body: "from JavaScript", sessionId: "s" });

const settled = [];
const receiver = client.createReceiver(names.queue);
for (;;) {
  const messages = await receiver.receiveMessages(5, { maxWaitTimeInMs: 1000 });
  if (!messages.length) break;
  for (const message of messages) {
    await receiver.completeMessage(message);
    settled.push(message.messageId);
  }
}
await client.close();
console.log(JSON.stringify({ settled }));
