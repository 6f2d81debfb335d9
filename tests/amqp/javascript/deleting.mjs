// Deletes messages in batches: some, those before a time, all of a partitioned queue, those of one
// session behind many of another, and dead letters.
import assert from "node:assert/strict";
import { createRequire } from "node:module";
const { ServiceBusClient } = createRequire(process.env.NODE_HOME + "/")("service-bus-beta");

const client = new ServiceBusClient(process.env.CONNECTION);
const names = JSON.parse(process.env.NAMES);
const texts = (count, more) => Array.from({ length: count }, (_, n) => ({ body: `${n}`, ...more }));
// Clients say "before now", which may be the very millisecond of what they have just sent.
const all = { beforeEnqueueTime: new Date(Date.now() + 3600000) };

const sender = client.createSender(names.queue);
await sender.sendMessages(texts(10));
const receiver = client.createReceiver(names.queue);
const [held] = await receiver.receiveMessages(1);
// What is held is passed over; the oldest go first.
assert.equal(await receiver.deleteMessages({ maxMessageCount: 4, ...all }), 4);
const left = await receiver.peekMessages(20);
assert.deepEqual(left.map((one) => one.body), ["0", "5", "6", "7", "8", "9"]);
const beforeEnqueueTime = left[1].enqueuedTimeUtc;
assert.equal(await receiver.deleteMessages({ maxMessageCount: 20, beforeEnqueueTime }), 0);
await receiver.deadLetterMessage(held);
const dead = client.createReceiver(names.queue, { subQueueType: "deadLetter" });
assert.equal(await dead.deleteMessages({ maxMessageCount: 20, ...all }), 1);

const wide = client.createSender(names.partitioned);
for (let n = 0; n < 6; n += 1) {
  for (const key of ["a", "b", "c"]) await wide.sendMessages(texts(60, { partitionKey: key }));
}
assert.equal(await client.createReceiver(names.partitioned).purgeMessages(all), 1080);

const sessions = client.createSender(names.sessions);
await sessions.sendMessages(texts(600, { sessionId: "first" }));
await sessions.sendMessages(texts(5, { sessionId: "second" }));
const session = await client.acceptSession(names.sessions, "second");
assert.equal(await session.deleteMessages({ maxMessageCount: 3, ...all }), 3);
assert.equal(await session.purgeMessages(all), 2);
await client.close();
console.log("all done");
