// What a stop, a kill and a start do to a server with a disk (B8, and what outlives restarts).
import assert from "node:assert/strict";
import { HOUR, Long, bodies, delay, long, numbers, partitionOf, receiveFrom, until }
  from "./world.mjs";

const after = (ms) => new Date(Date.now() + ms);
const texts = (...all) => all.map((body) => ({ body }));
const states = (messages) => messages.map((one) => [one.body, one.state]);

async function restart(world) {
  await world.others.end();
  await world.reconnect(await world.others.start());
}

export async function everythingOutlives(world) {
  const wide = await world.queue("wide",
    { enablePartitioning: true, requiresDuplicateDetection: true });
  const queue = await world.queue("q", { requiresDuplicateDetection: true });
  const sessions = await world.queue("sessions", { requiresSession: true, lockDuration: "PT5S" });
  const customers = Array.from({ length: 20 }, (_, n) => `customer-${n}`);
  const batch = customers.map((key) => ({ body: key, messageId: "m", partitionKey: key }));
  await world.send(wide, batch);
  const before = await world.peek(wide);
  await world.send(queue, ...texts("done", "aside", "bad", "left"));
  const [done, aside, bad] = await world.receive(queue, 3);
  await world.receiver(queue).completeMessage(done);
  await world.receiver(queue).deferMessage(aside);
  await world.receiver(queue).deadLetterMessage(bad, { deadLetterReason: "why" });
  const later = [{ body: "later", messageId: "later" }, after(HOUR)];
  const [scheduled] = await world.sender(queue).scheduleMessages(...later);
  const session = await world.client.acceptSession(sessions, "x");
  await session.setSessionState(Buffer.from("half way"));
  await session.close();
  await restart(world);
  await world.send(wide, batch);
  assert.deepEqual(numbers(await world.peek(wide)), numbers(before), "all were duplicates");
  await world.send(wide, batch.map((one) => ({ ...one, messageId: "new" })));
  const place = Object.fromEntries(before.map((one) => [one.body, partitionOf(one)]));
  const now = await world.peek(wide);
  assert.equal(new Set(numbers(now)).size, 40);
  for (const one of now) assert.equal(partitionOf(one), place[one.body], "keys keep their place");
  assert.deepEqual(states(await world.peek(queue)),
    [["aside", "deferred"], ["left", "active"], ["later", "scheduled"]]);
  const [letter] = await world.peekDead(queue);
  assert.deepEqual([letter.body, letter.deadLetterReason], ["bad", "why"]);
  const [again] = await world.sender(queue).scheduleMessages(...later);
  assert.equal(again.toString(), scheduled.toString(), "it was scheduled before");
  await world.sender(queue).cancelScheduledMessages(scheduled);
  await world.send(queue, { body: "next" });
  assert.equal(numbers(await world.peek(queue)).at(-1), scheduled.add(1).toString());
  const [found] = await world.receiver(queue).receiveDeferredMessages(aside.sequenceNumber);
  await world.receiver(queue).completeMessage(found);
  // A kill may lose that the session was released: its lock expires then.
  const kept = await until(() => world.client.acceptSession(sessions, "x").catch((error) => {
    if (error.code !== "SessionCannotBeLocked") throw error;
  }));
  assert.equal((await kept.getSessionState()).toString(), "half way");
}

export async function aCleanStopKeepsLocks(world) {
  const queue = await world.queue("q", { lockDuration: "PT5M" });
  const sessions = await world.queue("sessions", { requiresSession: true, lockDuration: "PT5M" });
  await world.send(queue, ...texts("held", "free"));
  await world.send(sessions, ...texts(1, 2).map((one) => ({ ...one, sessionId: "a" })));
  const held = await world.receiveOne(queue);
  const session = await world.client.acceptSession(sessions, "a");
  await session.completeMessage((await receiveFrom(session, 1))[0]);
  await restart(world);
  assert.deepEqual(bodies(await world.take(queue, 1)), ["free"]);
  await world.nothing(queue);
  await world.receiver(queue).completeMessage(held);
  assert.deepEqual(await world.peek(queue), []);
  // A session is its link's, and given back with it.
  const again = await world.client.acceptSession(sessions, "a");
  const [next] = await receiveFrom(again, 1);
  assert.deepEqual([next.body, next.deliveryCount], [2, 0]);
}

export async function afterAKillALockMayEndEarly(world) {
  const queue = await world.queue("q", { lockDuration: "PT5M" });
  await world.send(queue, { body: "x" });
  const held = await world.receiveOne(queue);
  await restart(world);
  const receiver = world.receiver(queue);
  const free = await receiver.receiveMessages(1, { maxWaitTimeInMs: 1000 });
  const told = await receiver.completeMessage(held).catch((error) => error);
  // Where the hold was not on the disk, somebody else has the message now.
  if (free.length) assert.equal(told.code, "MessageLockLost", told.stack);
  else assert.equal(told, undefined);
  assert.equal((await world.peek(queue)).length, free.length);
}

export async function whatCameDueMeanwhile(world) {
  const queue = await world.queue("q");
  await world.sender(queue).scheduleMessages({ body: "not yet" }, after(HOUR));
  const due = after(2_000);
  const [number] = await world.sender(queue).scheduleMessages({ body: "due" }, due);
  await world.others.end();
  while (Date.now() < due.getTime()) await delay(50);
  await world.reconnect(await world.others.start());
  const [found] = await world.take(queue, 1);
  assert.equal(found.body, "due");
  assert.equal(found.sequenceNumber.toString(), number.add(1).toString());
  assert.deepEqual(states(await world.peek(queue)), [["not yet", "scheduled"]]);
}

// The server has been an hour ahead, and sent something.
export async function aClockThatWasSetBack(world) {
  await world.send("q", ...texts("1", "2"));
  const stamps = (await world.peek("q")).map((one) => one.enqueuedTimeUtc.getTime());
  assert.equal(stamps.length, 3);
  assert.ok(stamps[0] > Date.now() + HOUR / 2);
  assert.deepEqual(stamps, [...stamps].sort((x, y) => x - y), "time is not taken back");
  await world.sender("q").scheduleMessages({ body: "soon" }, after(300));
  await until(async () => (await world.counts("q")).activeMessageCount === 4);
}

// The partition with number 3 has given out all numbers but two.
export async function numbersRollOver(world) {
  const base = Long.fromNumber(3).shiftLeft(48);
  const last = base.add(long(2 ** 48 - 1));
  const partitionKey = world.keys[3];
  await world.send("q", ...texts(1, 2, 3).map((one) => ({ ...one, partitionKey })));
  await restart(world);
  const found = await world.receive("q", 4);
  assert.deepEqual(bodies(found), [0, 1, 2, 3], "their order does not wrap");
  assert.deepEqual(numbers(found).slice(1), [last, base, base.add(1)].map(String));
  const receiver = world.receiver("q");
  await receiver.deferMessage(found[2]);
  assert.deepEqual(bodies(await receiver.receiveDeferredMessages(base)), [2]);
}

export async function forwardedOnceOverAKill(world) {
  const end = await world.queue("end", { enablePartitioning: true });
  const start = await world.queue("start", { forwardTo: end });
  const taken = [];
  let full;
  const half = new Promise((resolve) => { full = resolve; });
  const sender = world.sender(start);
  for (let body = 0; body < 200; body += 1) {
    // What is not answered when the server ends is nobody's concern: it may be there, or not.
    sender.sendMessages({ body, partitionKey: `${body}` }).then(() => {
      taken.push(body);
      if (taken.length === 50) full();
    }, () => undefined);
  }
  await half;
  await world.others.end();
  await world.reconnect(await world.others.start());
  await until(async () => (await world.counts(start)).totalMessageCount === 0);
  const found = bodies(await world.peek(end));
  assert.equal(new Set(found).size, found.length, "none is there twice");
  assert.deepEqual(taken.filter((body) => !found.includes(body)), [], "none is lost");
}
