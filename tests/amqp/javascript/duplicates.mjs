// Duplicate detection (D): what is a duplicate, for how long, and that nobody is told.
import assert from "node:assert/strict";
import { MINUTE, bodies, numbers, partitionOf, refused } from "./world.mjs";

const DETECTING = { requiresDuplicateDetection: true };

// Sends under an id and tells whether it was dropped.
async function isDuplicate(world, queue, messageId, more = {}) {
  const before = (await world.counts(queue)).totalMessageCount;
  await world.send(queue, { body: "x", messageId, ...more });
  return (await world.counts(queue)).totalMessageCount === before;
}

export async function acceptedAndDropped(world) {
  const queue = await world.queue("q", DETECTING);
  await world.send(queue, { body: "first", messageId: "a" });
  const before = await world.counts(queue);
  await world.send(queue, { body: "second", messageId: "a" });
  const after = await world.counts(queue);
  for (const count of ["activeMessageCount", "totalMessageCount", "sizeInBytes"]) {
    assert.equal(after[count], before[count], count);
  }
  assert.equal(await world.others.dropped(queue), 1);
  await world.send(queue, { body: "third", messageId: "b" });
  const found = await world.receive(queue, 2);
  assert.deepEqual(bodies(found), ["first", "third"]);
  assert.deepEqual(numbers(found), ["1", "2"]);
  await world.nothing(queue);
}

export async function onlyTheIdentityDecides(world) {
  const queue = await world.queue("q", DETECTING);
  const is = (id, more) => isDuplicate(world, queue, id, more);
  assert.equal(await is("a", { subject: "label", applicationProperties: { n: 1 } }), false);
  assert.equal(await is("a", { body: "y", subject: "other", applicationProperties: { n: 2 } }),
    true);
  assert.equal(await is("b", { subject: "label", applicationProperties: { n: 1 } }), false);
  // Opaque: neither case, nor spaces, nor how a letter is composed is smoothed over.
  for (const id of ["A", "a ", " a", "\u00e4", "a\u0308", "x".repeat(128), "1/p?q#r"]) {
    assert.equal(await is(id), false, id);
    assert.equal(await is(id), true, id);
  }
  // What this client lets nobody write down as a message is refused as an annotated one.
  const long = { body: "x", bodyType: "data", properties: { messageId: "x".repeat(129) } };
  await refused("GeneralError", world.send(queue, long));
}

export async function whatTheIdentityIs(world) {
  const [one, two] = await world.others.keys_of(5);
  const sessions = await world.queue("sessions", { requiresSession: true, ...DETECTING });
  assert.equal(await isDuplicate(world, sessions, "a", { sessionId: "one" }), false);
  assert.equal(await isDuplicate(world, sessions, "a", { sessionId: "two" }), true,
    "also across sessions");
  const wide = await world.queue("wide", { enablePartitioning: true, ...DETECTING });
  const is = (more) => isDuplicate(world, wide, "a", more);
  assert.equal(await is({ partitionKey: one }), false);
  assert.equal(await is({ sessionId: two }), false, "though they share a partition");
  assert.equal(await is({ sessionId: one }), true);
  assert.equal(await is({}), false, "its own id is the key");
  assert.equal(await is({ partitionKey: "a" }), true);
  const places = (await world.peek(wide)).map(partitionOf);
  assert.equal(places.filter((place) => place === 5).length, 2);
}

export async function theWindow(world) {
  const queue = await world.queue("q", DETECTING);
  const made = await world.admin.getQueue(queue);
  assert.equal(made.duplicateDetectionHistoryTimeWindow, "PT10M");
  const window = (duplicateDetectionHistoryTimeWindow) => ({ duplicateDetectionHistoryTimeWindow });
  const change = (more) => world.admin.updateQueue({ ...made, ...more });
  for (const wrong of ["PT0S", "PT19.999S", "P7DT0.001S"]) {
    await refused("ServiceError",
      world.admin.createQueue(world.name("no"), { ...DETECTING, ...window(wrong) }));
    await refused("ServiceError", change(window(wrong)));
  }
  assert.equal(await world.admin.queueExists(world.name("no")), false);
  for (const right of ["PT20S", "P7D"]) {
    const name = await world.queue(`w${right}`, { ...DETECTING, ...window(right) });
    assert.equal((await world.admin.getQueue(name)).duplicateDetectionHistoryTimeWindow, right);
  }
  await refused("ServiceError", change({ requiresDuplicateDetection: false }));
  assert.equal(await isDuplicate(world, queue, "a"), false);
  await world.advance(5 * MINUTE);
  await change(window("PT20M"));
  await world.advance(10 * MINUTE);
  assert.equal(await isDuplicate(world, queue, "a"), true, "longer keeps what is remembered");
  await change(window("PT1M"));
  await change(window("P7D"));
  assert.equal(await isDuplicate(world, queue, "a"), false, "shorter forgets at once");
}

export async function theMemoryOutlivesTheMessage(world) {
  const queue = await world.queue("q",
    { duplicateDetectionHistoryTimeWindow: "PT30M", ...DETECTING });
  const receiver = world.receiver(queue);
  await world.send(queue, { body: 1, messageId: "completed" });
  await receiver.completeMessage(await world.receiveOne(queue));
  await world.send(queue, { body: 2, messageId: "deleted" });
  await world.take(queue, 1);
  await world.send(queue, { body: 3, messageId: "dead" });
  await receiver.deadLetterMessage(await world.receiveOne(queue));
  const [letter] = await world.receive(queue, 1, { subQueueType: "deadLetter" });
  await world.deadLetters(queue).completeMessage(letter);
  const number = await world.sender(queue).scheduleMessages(
    { body: 4, messageId: "cancelled" }, await world.after(MINUTE));
  await world.sender(queue).cancelScheduledMessages(number);
  await world.send(queue, { body: 5, messageId: "expired", timeToLive: MINUTE });
  await world.advance(2 * MINUTE);
  await world.send(queue, { body: 6, messageId: "purged" });
  assert.equal(await world.others.purge(queue), 1);
  assert.equal((await world.counts(queue)).totalMessageCount, 0);
  for (const id of ["completed", "deleted", "dead", "cancelled", "expired", "purged"]) {
    assert.equal(await isDuplicate(world, queue, id), true, id);
  }
}

export async function aDroppedDuplicateDoesNotExtendTheWindow(world) {
  const queue = await world.queue("q", DETECTING);
  const is = () => isDuplicate(world, queue, "a");
  assert.equal(await is(), false);
  await world.advance(5 * MINUTE);
  assert.equal(await is(), true);
  // The machine's own time passes as well: a minute is more than this takes.
  await world.advance(4 * MINUTE);
  assert.equal(await is(), true);
  await world.advance(MINUTE);
  assert.equal(await is(), false);
}

export async function atTheTopic(world) {
  const topic = await world.topic("t", DETECTING);
  const early = await world.subscription(topic, "early");
  await world.send(topic, { body: "first", messageId: "m" });
  const late = await world.subscription(topic, "late");
  await world.send(topic, { body: "again", messageId: "m" });
  assert.deepEqual(bodies(await world.peek(early)), ["first"]);
  assert.deepEqual(await world.peek(late), []);
}

export async function scheduled(world) {
  const queue = await world.queue("q", DETECTING);
  const sender = world.sender(queue);
  const due = await world.after(5 * MINUTE);
  const [first] = await sender.scheduleMessages({ body: "later", messageId: "a" }, due);
  const [again] = await sender.scheduleMessages({ body: "again", messageId: "a" }, due);
  assert.equal(again.toString(), first.toString(), "the number first recorded");
  assert.equal(await isDuplicate(world, queue, "a"), true);
  await world.advance(6 * MINUTE);
  assert.deepEqual(bodies(await world.take(queue, 1)), ["later"]);
  assert.equal(await isDuplicate(world, queue, "a"), true, "the window runs from the scheduling");
  await world.advance(4 * MINUTE);
  assert.equal(await isDuplicate(world, queue, "a"), false);
}

export async function refusedMessagesAreNotRecorded(world) {
  const queue = world.name("small");
  await world.others.create_queue(queue,
    { max_message_bytes: 1_000, max_size_bytes: 1_500, requires_duplicate_detection: true });
  await refused("MessageSizeExceeded",
    world.send(queue, { body: "x".repeat(2_000), messageId: "a" }));
  assert.equal(await isDuplicate(world, queue, "a", { body: "x".repeat(800) }), false);
  await refused("QuotaExceeded",
    world.send(queue, { body: "x".repeat(800), messageId: "b" }));
  await world.take(queue, 1);
  assert.equal(await isDuplicate(world, queue, "b"), false);
}

export async function insideOneBatch(world) {
  const queue = await world.queue("q", DETECTING);
  const batch = await world.sender(queue).createMessageBatch();
  for (const [body, messageId] of [[1, "a"], [2, "a"], [3, "b"]]) {
    assert.ok(batch.tryAddMessage({ body, messageId }));
  }
  await world.sender(queue).sendMessages(batch);
  assert.deepEqual(bodies(await world.take(queue, 2)), [1, 3]);
  await world.nothing(queue);
}

export async function withoutAnId(world) {
  const queue = await world.queue("q", DETECTING);
  const wide = await world.queue("wide", { enablePartitioning: true, ...DETECTING });
  await world.send(queue, { body: "same" }, { body: "same" });
  assert.deepEqual(bodies(await world.take(queue, 2)), ["same", "same"]);
  await refused("GeneralError", world.send(wide, { body: "no key" }));
  await world.send(wide, ...["a key", "again"].map((body) => ({ body, partitionKey: "k" })));
  assert.deepEqual(bodies(await world.take(wide, 2)), ["a key", "again"]);
}
