// Deferral (L).
import assert from "node:assert/strict";
import { MINUTE, bodies, long, numbers, receiveFrom, refused } from "./world.mjs";

const states = (messages) => messages.map((one) => [one.body, one.state]);

// Sends messages and defers them; returns their numbers.
async function deferred(world, queue, ...messages) {
  await world.send(queue, ...messages);
  const held = await world.receive(queue, messages.length);
  for (const one of held) await world.receiver(queue).deferMessage(one);
  return held.map((one) => one.sequenceNumber);
}

export async function setAside(world) {
  const queue = await world.queue("q");
  const [number] = await deferred(world, queue, { body: 1 });
  await world.send(queue, { body: 2 });
  assert.deepEqual(bodies(await world.take(queue, 1)), [2]);
  await world.nothing(queue);
  assert.deepEqual(states(await world.peek(queue)), [[1, "deferred"]]);
  const other = world.client.createReceiver(queue, { identifier: "any receiver that knows it" });
  const [found] = await other.receiveDeferredMessages(number);
  assert.equal(found.body, 1);
  await other.completeMessage(found);
  assert.deepEqual(await world.peek(queue), []);
}

export async function byNumberAllOrNone(world) {
  const queue = await world.queue("q");
  const known = await deferred(world, queue, { body: 1 }, { body: 2 }, { body: 3 });
  await world.send(queue, { body: "active" });
  const receiver = world.receiver(queue);
  for (const wrong of [long(4), long(1_000_000), long(2n ** 62n)]) {
    await refused("MessageNotFound", receiver.receiveDeferredMessages([...known, wrong]));
  }
  const found = await receiver.receiveDeferredMessages([known[2], known[0]]);
  assert.deepEqual(bodies(found).sort(), [1, 3], "what failed has locked none of them");
  await refused("MessageNotFound", receiver.receiveDeferredMessages([known[1], known[0]]));
  for (const one of found) await receiver.completeMessage(one);
  assert.deepEqual(states(await world.peek(queue)), [[2, "deferred"], ["active", "active"]]);
  await refused("MessageNotFound", receiver.receiveDeferredMessages(known[0]));
}

export async function itStaysDeferred(world) {
  const queue = await world.queue("q", { lockDuration: "PT1M" });
  const [number] = await deferred(world, queue, { body: "x" });
  const receiver = world.receiver(queue);
  const again = async () => (await receiver.receiveDeferredMessages(number))[0];
  await receiver.abandonMessage(await again());
  await receiver.deferMessage(await again());
  const left = await again();
  await world.advance(MINUTE);
  await refused("MessageLockLost", receiver.completeMessage(left));
  await world.nothing(queue);
  assert.deepEqual(states(await world.peek(queue)), [["x", "deferred"]]);
  const last = await again();
  assert.equal(last.deliveryCount, 4, "first deferred, then abandoned, deferred and left");
  await receiver.completeMessage(last);
  await refused("MessageNotFound", again());
}

export async function deadLetteredOrCompletedWithProperties(world) {
  const queue = await world.queue("q");
  const [first, second] = await deferred(world, queue, { body: 1 }, { body: 2 });
  const receiver = world.receiver(queue);
  const again = async (number) => (await receiver.receiveDeferredMessages(number))[0];
  await receiver.abandonMessage(await again(first), { tried: 1 });
  await receiver.deferMessage(await again(first), { tried: 2 });
  assert.equal((await world.peek(queue))[0].applicationProperties.tried, 2);
  await receiver.deadLetterMessage(await again(first),
    { deadLetterReason: "bad", deadLetterErrorDescription: "worse", by: "me" });
  const [letter] = await world.peekDead(queue);
  assert.deepEqual([letter.body, letter.deadLetterReason, letter.deadLetterErrorDescription],
    [1, "bad", "worse"]);
  assert.deepEqual([letter.applicationProperties.by, letter.applicationProperties.tried], ["me", 2]);
  const taking = world.receiver(queue, { receiveMode: "receiveAndDelete" });
  assert.deepEqual(bodies(await taking.receiveDeferredMessages(second)), [2]);
  assert.deepEqual(await world.peek(queue), []);
}

export async function inASession(world) {
  const queue = await world.queue("q", { requiresSession: true });
  await world.send(queue, { body: 1, sessionId: "s" }, { body: 2, sessionId: "s" },
    { body: "other", sessionId: "t" });
  const holder = await world.client.acceptSession(queue, "s");
  const [first] = await receiveFrom(holder, 1);
  await holder.deferMessage(first);
  assert.deepEqual(bodies(await receiveFrom(holder, 1)), [2]);
  await holder.close();
  const stranger = await world.client.acceptSession(queue, "t");
  await refused("MessageNotFound", stranger.receiveDeferredMessages(first.sequenceNumber));
  await stranger.close();
  const again = await world.client.acceptSession(queue, "s");
  const [found] = await again.receiveDeferredMessages(first.sequenceNumber);
  await again.completeMessage(found);
  assert.deepEqual(bodies(await again.peekMessages(10)), [2]);
}

export async function expiryGoesOn(world) {
  for (const deadLetteringOnMessageExpiration of [false, true]) {
    const queue = await world.queue(`q${deadLetteringOnMessageExpiration}`,
      { lockDuration: "PT5M", deadLetteringOnMessageExpiration });
    const [loose, locked] = await deferred(world, queue,
      { body: "loose", timeToLive: 2 * MINUTE }, { body: "locked", timeToLive: 2 * MINUTE });
    const receiver = world.receiver(queue);
    const [held] = await receiver.receiveDeferredMessages(locked);
    await world.advance(MINUTE);
    assert.equal((await world.peek(queue)).length, 2);
    await world.advance(MINUTE);
    assert.deepEqual(bodies(await world.peek(queue)), ["locked"], "the loose one has expired");
    await receiver.abandonMessage(held);
    assert.deepEqual(await world.peek(queue), [], "as soon as it was let go");
    const dead = await world.peekDead(queue);
    const expected = deadLetteringOnMessageExpiration ? [loose, locked] : [];
    assert.deepEqual(numbers(dead), expected.map(String));
    for (const one of dead) assert.equal(one.deadLetterReason, "TTLExpiredException");
  }
}

export async function forAWhile(world) {
  const queue = await world.queue("q");
  // This SDK cannot say for how long; what another client defers so comes back to this one.
  await world.send(queue, { body: 1 }, { body: 2 });
  await world.others.defer_next(queue, MINUTE);
  assert.deepEqual(states(await world.peek(queue)), [[1, "deferred"], [2, "active"]]);
  await world.advance(MINUTE);
  const found = await world.receive(queue, 2);
  assert.deepEqual(bodies(found), [1, 2]);
  assert.deepEqual(numbers(found), ["1", "2"], "at its number's place");
}

export async function aScheduledMessageThatCarriesTheNumber(world) {
  const queue = await world.queue("q");
  const [number] = await deferred(world, queue, { body: "work" });
  await world.sender(queue).scheduleMessages(
    { body: "reminder", applicationProperties: { number: number.toString() } },
    await world.after(MINUTE));
  await world.advance(MINUTE);
  const reminder = await world.receiveOne(queue);
  assert.equal(reminder.body, "reminder");
  const receiver = world.receiver(queue);
  const known = long(reminder.applicationProperties.number);
  const [work] = await receiver.receiveDeferredMessages(known);
  assert.equal(work.body, "work");
  await receiver.completeMessage(work);
  await receiver.completeMessage(reminder);
  assert.deepEqual(await world.peek(queue), []);
}
