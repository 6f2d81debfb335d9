// Sequence numbers, times and schedules (S).
import assert from "node:assert/strict";
import { DAY, HOUR, MINUTE, SECOND, bodies, long, numbers, partitionOf, refused, until }
  from "./world.mjs";

const texts = (count) => Array.from({ length: count }, (_, n) => ({ body: `${n}` }));
const states = (messages) => messages.map((one) => [one.body, one.state]);

export async function theBrokerGivesNumberAndTime(world) {
  const queue = await world.queue("q");
  const before = await world.after(0);
  // What a client writes in their place is not theirs to say.
  await world.send(queue, { body: "x", bodyType: "data", messageAnnotations: {
    "x-opt-sequence-number": 99, "x-opt-enqueued-time": new Date(0) } });
  const message = await world.receiveOne(queue);
  assert.equal(message.sequenceNumber.toString(), "1");
  assert.ok(before <= message.enqueuedTimeUtc, `${message.enqueuedTimeUtc}`);
  assert.ok(message.enqueuedTimeUtc <= await world.after(0));
}

export async function numbersRiseByOne(world) {
  const [queue, other] = [await world.queue("q"), await world.queue("other")];
  await world.send(queue, texts(50));
  await world.send(other, { body: "not counted here" });
  await world.send(queue, { body: "50" }, { body: "51" });
  const found = await world.receive(queue, 52);
  assert.deepEqual(bodies(found), bodies(texts(52)));
  assert.deepEqual(numbers(found), Array.from({ length: 52 }, (_, n) => `${n + 1}`));
  await world.receiver(queue).deadLetterMessage(found[7]);
  assert.deepEqual(numbers(await world.peekDead(queue)), ["8"], "not renumbered");
}

export async function thePartitionIsInTheTopBits(world) {
  const queue = await world.queue("wide", { enablePartitioning: true });
  for (const partitionKey of world.keys) {
    await world.send(queue, { body: "x", partitionKey }, { body: "y", partitionKey });
  }
  const found = await world.peek(queue);
  assert.deepEqual(found.map(partitionOf), world.keys.flatMap((_, index) => [index, index]));
  const counters = found.map((one) => one.sequenceNumber.and(long(2 ** 48 - 1)).toString());
  assert.deepEqual(counters, world.keys.flatMap(() => ["1", "2"]));
}

export async function atTopicsAndWhereItGoesOn(world) {
  const end = await world.queue("end");
  await world.send(end, { body: "was there" });
  const topic = await world.topic("t");
  const kept = await world.subscription(topic, "kept");
  await world.subscription(topic, "on", { forwardTo: end });
  await world.send(topic, { body: 1 }, { body: 2 });
  assert.deepEqual(numbers(await world.peek(kept)), ["1", "2"]);
  const [, ...on] = await world.receive(end, 3);
  assert.deepEqual(bodies(on), [1, 2]);
  assert.deepEqual(numbers(on), ["2", "3"], "new ones");
  assert.deepEqual(on.map((one) => one.enqueuedSequenceNumber), [1, 2], "and the first is kept");
}

export async function whatIsRefusedUsesUpNoNumber(world) {
  const queue = world.name("small");
  await world.others.create_queue(queue, { max_message_bytes: 1_000 });
  await world.send(queue, { body: "a" });
  await refused("MessageSizeExceeded",
    world.send(queue, [{ body: "fits" }, { body: "x".repeat(2_000) }]));
  const due = await world.after(DAY);
  const [number] = await world.sender(queue).scheduleMessages({ body: "s" }, due);
  await world.sender(queue).cancelScheduledMessages(number);
  await world.send(queue, { body: "b" });
  assert.equal(number.toString(), "2");
  assert.deepEqual(numbers(await world.peek(queue)), ["1", "3"]);
}

export async function timesDoNotRunBackwards(world) {
  const queue = await world.queue("q");
  for (const step of [0, SECOND, 0, DAY, 0, 1]) {
    await world.advance(step);
    await world.send(queue, { body: step });
  }
  const stamps = (await world.peek(queue)).map((one) => one.enqueuedTimeUtc.getTime());
  assert.deepEqual(stamps, [...stamps].sort((x, y) => x - y));
  assert.ok(stamps[3] - stamps[2] >= DAY);
  // A clock that has jumped a day ahead does not freeze timers.
  await world.sender(queue).scheduleMessages({ body: "soon" }, await world.after(200));
  await until(async () => (await world.counts(queue)).activeMessageCount === 7);
}

export async function byPropertyAndByCall(world) {
  const queue = await world.queue("q");
  const sender = world.sender(queue);
  const due = await world.after(MINUTE);
  await world.send(queue, { body: "property", scheduledEnqueueTimeUtc: due });
  const [number] = await sender.scheduleMessages({ body: "call" }, due);
  assert.equal(number.toString(), "2");
  await sender.scheduleMessages({ body: "past" }, await world.after(-MINUTE));
  assert.deepEqual(numbers(await world.take(queue, 1)), ["3"], "the past is now");
  assert.deepEqual(states(await world.peek(queue)),
    [["property", "scheduled"], ["call", "scheduled"]]);
  assert.equal((await world.counts(queue)).scheduledMessageCount, 2);
  await world.nothing(queue);
  await world.advance(MINUTE);
  const found = await world.receive(queue, 2);
  assert.deepEqual(states(found), [["property", "scheduled"], ["call", "scheduled"]],
    "a receiver sees that they were scheduled");
  assert.deepEqual(numbers(found), ["4", "5"]);
}

export async function cancel(world) {
  const queue = await world.queue("q");
  const sender = world.sender(queue);
  const known = await sender.scheduleMessages(texts(5), await world.after(HOUR));
  await sender.cancelScheduledMessages(known[0]);
  for (const wrong of [known[0], long(1_000_000), long(2n ** 60n)]) {
    await refused("MessageNotFound", sender.cancelScheduledMessages([known[1], known[2], wrong]));
  }
  assert.equal((await world.counts(queue)).scheduledMessageCount, 4, "all or none");
  await sender.cancelScheduledMessages(known.slice(1, 3));
  await world.advance(HOUR);
  assert.deepEqual(bodies(await world.take(queue, 2)), ["3", "4"]);
  for (const number of known) {
    await refused("MessageNotFound", sender.cancelScheduledMessages(number));
  }
}

export async function atTheTopic(world) {
  const topic = await world.topic("t");
  const early = await world.subscription(topic, "early");
  const sender = world.sender(topic);
  const due = await world.after(MINUTE);
  const later = { body: "later", subject: "red" };
  const [number] = await sender.scheduleMessages(later, due);
  const [gone] = await sender.scheduleMessages({ body: "cancelled" }, due);
  // Peeked at the topic, as if it were a queue.
  assert.deepEqual(states(await world.peek(topic)),
    [["later", "scheduled"], ["cancelled", "scheduled"]]);
  assert.deepEqual(await world.peek(early), []);
  await sender.cancelScheduledMessages(gone);
  const rule = (sqlExpression) =>
    ({ defaultRuleOptions: { name: "r", filter: { sqlExpression } } });
  const late = await world.subscription(topic, "late", rule("sys.Label = 'red'"));
  const blue = await world.subscription(topic, "blue", rule("sys.Label = 'blue'"));
  await world.advance(MINUTE);
  for (const one of [early, late]) {
    const [found] = await world.receive(one, 1);
    assert.deepEqual([found.body, found.sequenceNumber.toString()], ["later", "3"]);
  }
  assert.deepEqual(await world.peek(blue), [], "rules run at activation");
  await refused("MessageNotFound", sender.cancelScheduledMessages(number));
}

export async function asIfSentNow(world) {
  const queue = await world.queue("q");
  const due = await world.after(2 * MINUTE);
  const [old] = await world.sender(queue).scheduleMessages(
    { body: "x", timeToLive: 2 * MINUTE }, due);
  await world.advance(MINUTE);
  await world.nothing(queue);
  const [waiting] = await world.peek(queue);
  assert.equal(waiting.state, "scheduled");
  assert.equal(waiting.sequenceNumber.toString(), old.toString());
  await world.advance(MINUTE);
  const [message] = await world.peek(queue);
  assert.equal(message.state, "active");
  assert.equal(message.sequenceNumber.toString(), old.add(1).toString(), "a new number");
  assert.ok(due <= message.enqueuedTimeUtc, "and a new time");
  assert.ok(message.enqueuedTimeUtc <= await world.after(0));
  await refused("MessageNotFound", world.sender(queue).cancelScheduledMessages(old));
  await world.advance(MINUTE);
  assert.equal((await world.peek(queue)).length, 1, "its life begins with its activation");
  await world.advance(MINUTE);
  assert.deepEqual(await world.peek(queue), []);
}
