// Locks, deliveries, expiry, sessions and pauses (B1, B2, B4, B7).
import assert from "node:assert/strict";
import { DAY, MINUTE, SECOND, bodies, numbers, receiveFrom, refused, until }
  from "./world.mjs";

const texts = (...all) => all.map((body) => ({ body }));

export async function lockedMessages(world) {
  const queue = await world.queue("q", { lockDuration: "PT1M" });
  await world.send(queue, ...texts(1, 2, 3));
  const receiver = world.receiver(queue);
  const first = await world.receiveOne(queue);
  const left = first.lockedUntilUtc - await world.after(0);
  assert.ok(left > 0 && left <= MINUTE, `${left}`);
  assert.deepEqual(bodies(await world.take(queue, 1)), [2], "locked: not for others");
  await receiver.completeMessage(first);
  await assert.rejects(receiver.completeMessage(first), /already/);
  const last = await world.receiveOne(queue);
  await world.advance(40 * SECOND);
  assert.ok(await receiver.renewMessageLock(last) - await world.after(0) > 50 * SECOND);
  await world.advance(40 * SECOND);
  await world.nothing(queue, { receiveMode: "receiveAndDelete" });
  await world.advance(20 * SECOND);
  for (const lost of [receiver.completeMessage(last), receiver.renewMessageLock(last)]) {
    await refused("MessageLockLost", lost);
  }
  const again = await world.receiveOne(queue);
  assert.deepEqual([again.body, again.deliveryCount], [3, 1]);
}

export async function everySettlementNeedsItsLock(world) {
  const queue = await world.queue("q", { lockDuration: "PT1M" });
  await world.send(queue, ...texts("complete", "abandon", "defer", "deadLetter"));
  const held = await world.receive(queue, 4);
  await world.advance(MINUTE);
  const receiver = world.receiver(queue);
  for (const one of held) await refused("MessageLockLost", receiver[`${one.body}Message`](one));
  assert.deepEqual((await world.peek(queue)).map((one) => [one.body, one.state]),
    held.map((one) => [one.body, "active"]), "nothing of it was done");
}

async function deliver(world, queue, delivery, end) {
  const receiver = world.receiver(queue);
  const message = end === "defer" && delivery
    ? (await receiver.receiveDeferredMessages((await world.peek(queue))[0].sequenceNumber))[0]
    : await world.receiveOne(queue);
  assert.equal(message.deliveryCount, delivery);
  if (end === "expiry") await world.advance(MINUTE);
  else await receiver[`${end}Message`](message);
}

export async function theLastDeliveryAllowed(world) {
  for (const end of ["abandon", "expiry", "defer"]) {
    const queue = await world.queue(end, { lockDuration: "PT1M" });
    assert.equal((await world.admin.getQueue(queue)).maxDeliveryCount, 10);
    await world.send(queue, { body: "x" });
    for (let delivery = 0; delivery < 10; delivery += 1) await deliver(world, queue, delivery, end);
    assert.deepEqual(await world.peek(queue), []);
    const [dead] = await world.receive(queue, 1, { subQueueType: "deadLetter" });
    assert.equal(dead.deadLetterReason, "MaxDeliveryCountExceeded");
    assert.ok(dead.deadLetterErrorDescription);
    assert.deepEqual([numbers([dead]), dead.deliveryCount], [["1"], 10]);
  }
}

export async function deadLettersAreASubQueue(world) {
  const queue = await world.queue("q");
  await world.send(queue, { body: "x" });
  await world.receiver(queue).deadLetterMessage(await world.receiveOne(queue),
    { deadLetterReason: "bad", deadLetterErrorDescription: "worse", by: "me" });
  const receiver = world.deadLetters(queue);
  const [letter] = await receiveFrom(receiver, 1);
  assert.deepEqual([letter.deadLetterReason, letter.deadLetterErrorDescription], ["bad", "worse"]);
  assert.equal(letter.applicationProperties.by, "me");
  await refused("GeneralError", receiver.deadLetterMessage(letter));
  // To this client what was refused is settled: its lock has to run out.
  await world.advance(MINUTE);
  await receiver.abandonMessage((await receiveFrom(receiver, 1))[0]);
  await receiver.completeMessage((await receiveFrom(receiver, 1))[0]);
  assert.equal((await world.counts(queue)).totalMessageCount, 0);
}

export async function transferredDeadLetters(world) {
  const queue = await world.queue("q");
  const some = await world.subscription(await world.topic("t"), "some");
  for (const entity of [queue, some]) {
    await world.send([entity].flat()[0], { body: "x" });
    await world.receiver(entity).deadLetterMessage(await world.receiveOne(entity));
    // There are none ever; those of the entity are not shown for them.
    const options = { subQueueType: "transferDeadLetter" };
    await world.nothing(entity, options);
    assert.deepEqual(await world.peek(entity, options), []);
    assert.equal((await world.peekDead(entity)).length, 1);
  }
}

export async function whoeverIsNotAllowed(world) {
  const [queue, other] = [await world.queue("q"), await world.queue("other")];
  const { client: allowed, stranger } = await world.limited(queue);
  const refusedBy = (sender) => refused("UnauthorizedAccess", sender.sendMessages({ body: "x" }));
  await allowed.createSender(queue).sendMessages({ body: "allowed" });
  await refusedBy(allowed.createSender(other));
  await refusedBy(stranger.createSender(queue));
  await refused("UnauthorizedAccess",
    allowed.createReceiver(queue).receiveMessages(1, { maxWaitTimeInMs: 5000 }));
  assert.deepEqual(bodies(await world.peek(queue)), ["allowed"]);
  await Promise.all([allowed.close(), stranger.close()]);
}

export async function receiveAndDelete(world) {
  const queue = await world.queue("q");
  await world.send(queue, ...texts(1, 2, 3));
  const [first] = await world.take(queue, 1);
  assert.equal(first.lockToken, undefined);
  assert.deepEqual(bodies(await world.peek(queue)), [2, 3], "gone at once");
  // A receiver that waits is given what comes; streaming ones too.
  await world.take(queue, 2);
  const waiting = world.take(queue, 1);
  await world.send(queue, { body: "waited for" });
  assert.deepEqual(bodies(await waiting), ["waited for"]);
  const seen = [];
  const streaming = world.receiver(queue).subscribe({
    async processMessage(message) { seen.push(message.body); },
    async processError({ error }) { seen.push(error); },
  });
  await world.send(queue, ...texts(4, 5));
  await until(async () => (await world.counts(queue)).totalMessageCount === 0);
  await streaming.close();
  assert.deepEqual(seen, [4, 5]);
}

export async function theSmallerTimeToLiveCounts(world) {
  const queue = await world.queue("q", { defaultMessageTimeToLive: "PT4M" });
  await world.send(queue, { body: "own", timeToLive: 2 * MINUTE },
    { body: "queue's", timeToLive: DAY }, { body: "default" });
  const lives = (await world.peek(queue)).map((one) => one.expiresAtUtc - one.enqueuedTimeUtc);
  assert.deepEqual(lives, [2 * MINUTE, 4 * MINUTE, 4 * MINUTE]);
  await world.advance(MINUTE);
  assert.equal((await world.counts(queue)).activeMessageCount, 3);
  await world.advance(MINUTE);
  assert.deepEqual(bodies(await world.peek(queue)), ["queue's", "default"]);
  await world.advance(2 * MINUTE);
  await world.nothing(queue);
  assert.equal((await world.counts(queue)).totalMessageCount, 0, "no dead letters unless wanted");
}

export async function noExpiryWhileHeld(world) {
  const queue = await world.queue("q",
    { lockDuration: "PT2M", deadLetteringOnMessageExpiration: true });
  await world.send(queue, ...texts("completed", "abandoned", "left").map((one) =>
    ({ ...one, timeToLive: MINUTE })));
  const [completed, abandoned] = await world.receive(queue, 3);
  await world.advance(MINUTE);
  assert.equal((await world.counts(queue)).activeMessageCount, 3, "they are held");
  await world.receiver(queue).completeMessage(completed);
  await world.receiver(queue).abandonMessage(abandoned);
  assert.deepEqual(bodies(await world.peekDead(queue)), ["abandoned"]);
  await world.advance(MINUTE);
  await world.advance(100 * DAY);
  const dead = await world.receive(queue, 2, { subQueueType: "deadLetter" });
  assert.deepEqual(bodies(dead), ["abandoned", "left"], "dead letters do not expire");
  for (const one of dead) assert.equal(one.deadLetterReason, "TTLExpiredException");
}

const UNRENEWED = { maxAutoLockRenewalDurationInMs: 0 };

export async function aSessionHasOneHolder(world) {
  const queue = await world.queue("q", { requiresSession: true, lockDuration: "PT1M" });
  const of = (sessionId, ...all) => all.map((body) => ({ body, sessionId }));
  await world.send(queue, ...of("a", 1, 2, 3), ...of("b", 4));
  const accept = () => world.client.acceptSession(queue, "a", UNRENEWED);
  const first = await accept();
  await refused("SessionCannotBeLocked", accept());
  const second = await world.client.acceptNextSession(queue, UNRENEWED);
  assert.equal(second.sessionId, "b");
  await second.close();
  const held = await receiveFrom(first, 2);
  assert.deepEqual(bodies([...held, ...await receiveFrom(first, 1)]), [1, 2, 3]);
  await first.completeMessage(held[0]);
  await world.advance(40 * SECOND);
  assert.ok(await first.renewSessionLock() - await world.after(0) > 50 * SECOND);
  await first.close();
  await assert.rejects(first.completeMessage(held[1]), /closed/);
  const again = await accept();
  const received = await receiveFrom(again, 2);
  assert.deepEqual(received.map((one) => [one.body, one.deliveryCount]), [[2, 0], [3, 0]]);
  await world.advance(MINUTE);
  await refused("SessionLockLost", again.completeMessage(received[0]));
  const last = await accept();
  const counts = (await receiveFrom(last, 2)).map((one) => one.deliveryCount);
  assert.deepEqual(counts, [1, 1], "that counts");
}

export async function sessionState(world) {
  const queue = await world.queue("q", { requiresSession: true });
  const session = await world.client.acceptSession(queue, "empty");
  assert.equal(await session.getSessionState(), null);
  const state = Buffer.from([0, 1, 0xff]);
  await session.setSessionState(state);
  await refused("GeneralError", session.setSessionState(Buffer.alloc(256 * 1024 + 1)));
  await session.close();
  const again = await world.client.acceptSession(queue, "empty");
  assert.deepEqual(Buffer.from(await again.getSessionState()), state, "kept without messages");
  await again.setSessionState(null);
  assert.equal(await again.getSessionState(), null);
}

export async function sessionsAreUsedByTheirOwnReceivers(world) {
  const queue = await world.queue("q", { requiresSession: true });
  const plain = await world.queue("plain");
  await refused("GeneralError",
    world.receiver(queue).receiveMessages(1, { maxWaitTimeInMs: 5000 }));
  await refused("GeneralError", world.client.acceptNextSession(plain));
  await refused("GeneralError", world.send(queue, { body: "no session" }));
  const hasty = world.patient({ maxRetries: 0, timeoutInMs: 500 });
  await refused("ServiceTimeout", hasty.acceptNextSession(queue));
  await hasty.close();
  const waiting = world.client.acceptNextSession(queue);
  await world.send(queue, { body: 1, sessionId: "a" });
  const session = await waiting;
  assert.equal(session.sessionId, "a");
  assert.deepEqual(bodies(await receiveFrom(session, 1)), [1]);
}

export async function anIdleEntityIsDeleted(world) {
  const queue = await world.queue("q", { autoDeleteOnIdle: "PT5M" });
  const kept = await world.queue("kept");
  for (const use of [() => world.send(queue, { body: "x" }), () => world.take(queue, 1)]) {
    await world.advance(4 * MINUTE);
    await use();
  }
  await world.close();
  world.connect();
  await world.advance(4 * MINUTE);
  assert.equal(await world.admin.queueExists(queue), true);
  await world.advance(MINUTE);
  assert.equal(await world.admin.queueExists(queue), false);
  assert.equal(await world.admin.queueExists(kept), true);
  await refused("MessagingEntityNotFound", world.send(queue, { body: "x" }));
}

export async function quotasAndSizes(world) {
  const queue = world.name("small");
  await world.others.create_queue(queue, { max_size_bytes: 5_000, max_message_bytes: 2_000 });
  const large = { body: "x".repeat(1_000) };
  await world.send(queue, large, large, large, large);
  await refused("QuotaExceeded", world.send(queue, [{ body: "small" }, large]));
  await refused("MessageSizeExceeded", world.send(queue, { body: "x".repeat(2_000) }));
  assert.equal((await world.counts(queue)).activeMessageCount, 4);
  await world.take(queue, 1);
  await world.send(queue, large);
  // A batch of this client holds what the entity takes.
  const batch = await world.sender(queue).createMessageBatch();
  assert.equal(batch.maxSizeInBytes, 2_000);
  assert.equal(batch.tryAddMessage({ body: "x".repeat(2_000) }), false);
}

export async function paused(world) {
  for (const status of ["SendDisabled", "ReceiveDisabled", "Disabled"]) {
    const queue = await world.queue(status);
    await world.send(queue, ...texts("held", "waiting"));
    const held = await world.receiveOne(queue);
    const settings = await world.admin.getQueue(queue);
    await world.admin.updateQueue({ ...settings, status });
    const sent = () => world.send(queue, { body: "new" });
    if (status === "ReceiveDisabled") await sent();
    else await refused("MessagingEntityDisabled", sent());
    const receiver = world.receiver(queue, { receiveMode: "receiveAndDelete" });
    const taken = () => receiver.receiveMessages(1, { maxWaitTimeInMs: 5000 });
    if (status === "SendDisabled") assert.deepEqual(bodies(await taken()), ["waiting"]);
    else await refused("MessagingEntityDisabled", taken());
    await world.receiver(queue).completeMessage(held);
    const left = { SendDisabled: [], ReceiveDisabled: ["waiting", "new"], Disabled: ["waiting"] };
    assert.deepEqual(bodies(await world.peek(queue)), left[status], "settling and looking work");
    await world.admin.updateQueue({ ...settings, status: "Active" });
    await world.send(queue, { body: "again" });
  }
}

export async function pausedTopics(world) {
  const topic = await world.topic("t");
  const some = await world.subscription(topic, "some");
  await world.send(topic, { body: 1 });
  const settings = await world.admin.getTopic(topic);
  await world.admin.updateTopic({ ...settings, status: "SendDisabled" });
  await refused("MessagingEntityDisabled", world.send(topic, { body: "never" }));
  await world.admin.updateTopic(settings);
  const chosen = await world.admin.getSubscription(...some);
  await world.admin.updateSubscription({ ...chosen, status: "ReceiveDisabled" });
  await world.send(topic, { body: 2 });
  const options = { receiveMode: "receiveAndDelete" };
  await refused("MessagingEntityDisabled",
    world.receiver(some, options).receiveMessages(1, { maxWaitTimeInMs: 5000 }));
  await world.admin.updateSubscription(chosen);
  assert.deepEqual(bodies(await world.take(some, 2)), [1, 2]);
}
