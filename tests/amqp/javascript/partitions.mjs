// Partitioned entities (P); what a lost store does: lost_store.mjs.
import assert from "node:assert/strict";
import { MINUTE, bodies, numbers, partitionOf, receiveFrom, refused, until } from "./world.mjs";

const PARTITIONED = { enablePartitioning: true };
const DETECTING = { requiresDuplicateDetection: true };
const ALL = Array.from({ length: 16 }, (_, index) => index);

// Returns the partition in which each message is, by its body.
async function places(world, queue) {
  return Object.fromEntries((await world.peek(queue)).map((one) => [one.body, partitionOf(one)]));
}

const sorted = (values) => [...values].sort((x, y) => x - y);

export async function sixteenOfThem(world) {
  const wide = await world.queue("wide", PARTITIONED);
  const single = await world.queue("single");
  const made = await world.admin.getQueue(wide);
  assert.equal(made.maxSizeInMegabytes, 16 * 1024, "the size is each one's own");
  await refused("ServiceError", world.admin.updateQueue({ ...made, enablePartitioning: false }));
  const other = await world.admin.getQueue(single);
  await refused("ServiceError", world.admin.updateQueue({ ...other, enablePartitioning: true }));
  await world.send(wide, ...ALL.map((body) => ({ body, partitionKey: world.keys[body] })));
  assert.deepEqual(await places(world, wide), Object.fromEntries(ALL.map((one) => [one, one])));
}

export async function aFullOneIsSkipped(world) {
  const queue = world.name("small");
  await world.others.create_queue(queue, { enable_partitioning: true, max_size_bytes: 2_000 });
  const large = { body: "x".repeat(1_500) };
  const keyed = { ...large, partitionKey: world.keys[4] };
  await world.send(queue, keyed);
  await refused("QuotaExceeded", world.send(queue, keyed));
  await world.send(queue, ...Array(15).fill(large));
  const found = await world.peek(queue);
  assert.deepEqual(sorted(found.map(partitionOf)), ALL, "each has one");
  await refused("QuotaExceeded", world.send(queue, large));
}

export async function soManyAndNoMore(world) {
  await world.queue("wide", PARTITIONED);
  await refused("QuotaExceededError", world.queue("wide-2", PARTITIONED));
  await world.queue("q");
  await world.topic("t");
  await refused("QuotaExceededError", world.queue("one-too-many"));
  await world.admin.deleteQueue(world.name("q"));
  await world.queue("instead");
}

export async function theEffectiveKey(world) {
  const queue = await world.queue("wide", { ...PARTITIONED, ...DETECTING });
  const [, one, two, three] = world.keys;
  await world.send(queue,
    { body: "by session", sessionId: one, messageId: three },
    { body: "by key", partitionKey: two, messageId: three },
    { body: "by id", messageId: three },
    { body: "both", sessionId: one, partitionKey: one, messageId: "x" });
  assert.deepEqual(await places(world, queue),
    { "by session": 1, both: 1, "by key": 2, "by id": 3 });
  // This client itself refuses a message whose keys differ; an annotated one it does not look into.
  const differing = { body: "x", bodyType: "data", properties: { groupId: one, messageId: "y" },
    messageAnnotations: { "x-opt-partition-key": two } };
  await refused("GeneralError", world.send(queue, differing));
  // An empty session is a session too, though this client does not compare it with the key.
  await refused("GeneralError",
    world.send(queue, { body: "x", sessionId: "", partitionKey: two, messageId: "y" }));
  assert.equal((await world.counts(queue)).totalMessageCount, 4);
}

export async function withoutAKeyRoundRobin(world) {
  const queue = await world.queue("wide", PARTITIONED);
  // Where duplicates are not detected the id is no key.
  await world.send(queue, ...ALL.map((body) => ({ body, messageId: "the same" })));
  assert.equal(new Set((await world.peek(queue)).map(partitionOf)).size, 16);
  await world.take(queue, 16);
  await world.send(queue, ALL.slice(0, 5).map((body) => ({ body })));
  assert.equal(new Set((await world.peek(queue)).map(partitionOf)).size, 1, "a batch's share one");
  const keyed = (body) => ({ body, partitionKey: "customer-7" });
  await world.send(queue, keyed("a"), [keyed("b"), keyed("c")]);
  const { a, b, c } = await places(world, queue);
  assert.deepEqual([b, c], [a, a]);
}

export async function aReceiveAsksAll(world) {
  const queue = await world.queue("wide", PARTITIONED);
  for (const index of ALL) {
    await world.send(queue, { body: index, partitionKey: world.keys[index] });
    assert.deepEqual(bodies(await world.take(queue, 1)), [index], "one receive is enough");
  }
  for (const index of [0, 7, 15]) {
    const waiting = world.take(queue, 1);
    await world.send(queue, { body: index, partitionKey: world.keys[index] });
    assert.deepEqual(bodies(await waiting), [index]);
  }
  const many = Array.from({ length: 200 }, (_, n) => ({ body: n, partitionKey: `${n}` }));
  await world.send(queue, many);
  const found = [];
  while (found.length < 200) found.push(...bodies(await world.take(queue, 8)));
  assert.deepEqual(sorted(found), bodies(many));
  await world.nothing(queue);
}

export async function peekWalks(world) {
  const plain = await world.queue("plain");
  const text = "x".repeat(100_000);
  await world.send(plain, ...[0, 1, 2, 3, 4].map((n) => ({ body: `${n}${text}` })));
  const sizes = [];
  // Asked again, this client goes on where it was.
  for (const receiver = world.receiver(plain); ;) {
    const found = await receiver.peekMessages(100);
    if (!found.length) break;
    sizes.push(found.length);
  }
  assert.deepEqual(sizes, [2, 2, 1], "256 KB a call, never nothing while there is more");
  assert.deepEqual(numbers(await world.peek(plain)), ["1", "2", "3", "4", "5"]);
  const wide = await world.queue("wide", PARTITIONED);
  await world.send(wide, ...ALL.map((n) =>
    Array.from({ length: 5 }, (_, turn) => ({ body: n * 5 + turn, partitionKey: world.keys[n] }))));
  const seen = [];
  for (const receiver = world.receiver(wide); ;) {
    const found = await receiver.peekMessages(7);
    if (!found.length) break;
    seen.push(...found);
  }
  assert.deepEqual(bodies(seen), Array.from({ length: 80 }, (_, n) => n), "partition by partition");
  const from = { fromSequenceNumber: seen[40].sequenceNumber };
  assert.deepEqual(bodies(await world.receiver(wide).peekMessages(1, from)), [40]);
}

export async function forwarding(world) {
  const end = await world.queue("end", { ...PARTITIONED, ...DETECTING });
  const middle = await world.queue("middle", { ...PARTITIONED, forwardTo: end });
  const start = await world.queue("start", { forwardTo: middle });
  const batch = world.keys.map((key, body) => ({ body, partitionKey: key, messageId: "m" }));
  await world.send(start, batch, batch);
  await until(async () => await world.others.dropped(end) === 16);
  const found = await world.peek(end);
  assert.deepEqual(found.map((one) => [one.body, partitionOf(one)]), ALL.map((one) => [one, one]),
    "the key decides, and the destination drops what it knows");
  for (const queue of [start, middle]) {
    await until(async () => (await world.counts(queue)).totalMessageCount === 0);
  }
  const back = await world.queue("back");
  await world.queue("from", { ...PARTITIONED, forwardTo: back });
  await world.send(world.name("from"), batch);
  assert.deepEqual(sorted(bodies(await world.take(back, 16))), ALL);
}

export async function countsAreAddedUp(world) {
  const settings = { ...PARTITIONED, ...DETECTING };
  const queue = await world.queue("wide", settings);
  const batch = Array.from({ length: 50 }, (_, n) => ({ body: n, messageId: `${n}` }));
  await world.send(queue, batch);
  const [dead, deferred] = await world.receive(queue, 20);
  await world.receiver(queue).deadLetterMessage(dead);
  await world.receiver(queue).deferMessage(deferred);
  await world.sender(queue).scheduleMessages({ body: "later", messageId: "later" },
    await world.after(MINUTE));
  const about = await world.counts(queue);
  assert.equal(about.activeMessageCount, 48);
  assert.equal(about.deadLetterMessageCount, 1);
  assert.equal(about.scheduledMessageCount, 1);
  assert.equal(about.totalMessageCount, 51);
  assert.equal((await world.admin.getQueue(queue)).availabilityStatus, "Available");
  await world.admin.deleteQueue(queue);
  await world.admin.createQueue(queue, settings);
  assert.deepEqual(await world.peek(queue), [], "a deleted entity takes everything with it");
  await world.send(queue, batch);
  assert.equal((await world.counts(queue)).activeMessageCount, 50, "also what it remembered");
}

export async function rules(world) {
  const topic = await world.topic("t", PARTITIONED);
  const some = await world.subscription(topic, "some");
  const manager = world.client.createRuleManager(...some);
  await manager.createRule("large", { sqlExpression: "amount > 10" });
  await manager.deleteRule("$Default");
  const send = () => world.send(topic, world.keys.map((key, n) =>
    ({ body: n, partitionKey: key, applicationProperties: { amount: n } })));
  await send();
  assert.deepEqual(bodies(await world.peek(some)), [11, 12, 13, 14, 15]);
  await manager.deleteRule("large");
  await send();
  assert.equal((await world.peek(some)).length, 5, "no rule, no message");
  assert.deepEqual(await manager.getRules(), []);
}

export async function everythingWorks(world) {
  const queue = await world.queue("wide", PARTITIONED);
  const receiver = world.receiver(queue);
  await world.send(queue, world.keys.map((key, body) => ({ body, partitionKey: key })));
  const held = await world.receive(queue, 16);
  for (const one of held) await receiver.deferMessage(one);
  const known = held.map((one) => one.sequenceNumber);
  await refused("MessageNotFound", receiver.receiveDeferredMessages([...known, known[0].add(9)]));
  const again = await receiver.receiveDeferredMessages(known);
  assert.deepEqual(sorted(bodies(again)), ALL, "of all partitions at once");
  const until = await receiver.renewMessageLock(again[0]);
  assert.ok(until >= again[0].lockedUntilUtc);
  for (const one of again) await receiver.completeMessage(one);
  const sender = world.sender(queue);
  const due = await world.after(MINUTE);
  const later = world.keys.map((key, body) => ({ body, partitionKey: key }));
  const scheduled = await sender.scheduleMessages(later, due);
  assert.equal(new Set((await world.peek(queue)).map(partitionOf)).size, 16);
  await sender.cancelScheduledMessages(scheduled.slice(1));
  await refused("MessageNotFound", sender.cancelScheduledMessages(scheduled.slice(0, 2)));
  await world.advance(MINUTE);
  assert.deepEqual(bodies(await world.take(queue, 1)), [0]);
  await world.nothing(queue);
}

export async function sessions(world) {
  const queue = await world.queue("wide", { ...PARTITIONED, requiresSession: true });
  for (const turn of [1, 2]) {
    await world.send(queue, world.keys.map((sessionId) => ({ body: turn, sessionId })));
  }
  const seen = [];
  for (const _ of ALL) {
    const session = await world.client.acceptNextSession(queue);
    seen.push(session.sessionId);
    await refused("SessionCannotBeLocked", world.client.acceptSession(queue, session.sessionId));
    await session.setSessionState(Buffer.from(session.sessionId));
    const until = session.sessionLockedUntilUtc;
    assert.ok(await session.renewSessionLock() >= until);
    const messages = await receiveFrom(session, 2);
    assert.deepEqual(bodies(messages), [1, 2]);
    for (const one of messages) await session.completeMessage(one);
    await session.close();
  }
  assert.deepEqual(seen.sort(), [...world.keys].sort());
  const kept = await world.client.acceptSession(queue, world.keys[9]);
  assert.equal((await kept.getSessionState()).toString(), world.keys[9]);
}

export async function aBatchMayMixKeys(world) {
  const queue = world.name("small");
  await world.others.create_queue(queue, { enable_partitioning: true, max_size_bytes: 20_000 });
  const batch = [0, 1, 2].flatMap((turn) =>
    world.keys.map((key, n) => ({ body: `${n}/${turn}`, partitionKey: key })));
  await world.send(queue, batch);
  const found = await world.peek(queue);
  assert.deepEqual(found.map((one) => [one.body, partitionOf(one)]),
    ALL.flatMap((n) => [0, 1, 2].map((turn) => [`${n}/${turn}`, n])));
  const large = [...world.keys, world.keys[3]].map((key) =>
    ({ body: "x".repeat(15_000), partitionKey: key }));
  await refused("QuotaExceeded", world.send(queue, large));
  assert.deepEqual(numbers(await world.peek(queue)), numbers(found), "nothing is stored of it");
  await world.others.change_queue(queue, { strict_batches: true });
  await refused("GeneralError", world.send(queue, batch));
}
