// One store of several is taken away from a running server, and given back, while clients go on.
import assert from "node:assert/strict";
import { bodies, delay, numbers, partitionOf, refused, until } from "./world.mjs";

const PARTITIONED = { enablePartitioning: true };
const DETECTING = { requiresDuplicateDetection: true };

async function availability(world, queue) {
  return (await world.admin.getQueue(queue)).availabilityStatus;
}

// Fails unless this is refused for now, and may be tried again.
async function refusedForNow(promise) {
  await assert.rejects(promise, (error) => {
    assert.deepEqual([error.code, error.retryable], ["ServiceBusy", true], error.stack);
    return true;
  });
}

// Uses all partitions until the server has noticed: that files are gone is seen after a commit.
async function noticed(world, queue) {
  await until(async () => {
    for (const partitionKey of world.keys) {
      await world.send(queue, { body: "probe", partitionKey }).catch(() => undefined);
    }
    return await availability(world, queue) === "Limited";
  });
}

// Sends without keys until it is stopped; knows what was taken, and what nobody can tell of.
function keepSending(world, queue) {
  const taken = [], unknown = [];
  let going = true;
  const loop = async () => {
    for (let body = 0; going; body += 1) {
      try {
        await world.send(queue, { body });
        taken.push(body);
      } catch (error) {
        // Only what was under way when the store went: another partition takes all else.
        assert.equal(error.code, "ServiceTimeout", error.stack);
        unknown.push(body);
      }
      await delay(5);
    }
  };
  const ended = loop().catch((error) => error);
  return async () => {
    going = false;
    const failed = await ended;
    if (failed) throw failed;
    return { taken, unknown };
  };
}

export async function takenAwayAndGivenBack(world) {
  const probed = await world.queue("probed", PARTITIONED);
  const wide = await world.queue("wide", { ...PARTITIONED, ...DETECTING });
  const free = await world.queue("free", PARTITIONED);
  const from = await Promise.all([0, 1, 2, 3].map((n) =>
    world.queue(`from${n}`, { forwardTo: wide })));
  const byKey = (more) => world.keys.map((key) => ({ body: key, messageId: key, ...more }));
  await world.send(wide, byKey());
  const before = await world.peek(wide);
  const busy = await world.queue("busy", PARTITIONED);
  const stopSending = keepSending(world, busy);
  await world.others.take_away();
  await noticed(world, probed);
  const lost = await world.others.lost_keys(wide);
  await whileItIsAway(world, { wide, free, from, lost });
  await world.others.give_back();
  for (const queue of [probed, wide, free, busy]) {
    await until(async () => await availability(world, queue) === "Available");
  }
  const { taken, unknown } = await stopSending();
  const there = bodies(await world.peek(busy));
  assert.deepEqual(taken.filter((body) => !there.includes(body)), [], "all that was taken");
  assert.deepEqual(there.filter((body) => ![...taken, ...unknown].includes(body)), []);
  assert.equal(new Set(there).size, there.length);
  await until(async () => (await world.peek(wide)).some((one) => one.body === "forwarded"));
  // What was refused is not there, and its id was not recorded: the retry gets in.
  await world.send(wide, { body: "retried", messageId: "new", partitionKey: lost[0] });
  await world.send(wide, byKey({ body: "dropped" }));
  const old = numbers(before);
  const found = await world.peek(wide);
  assert.deepEqual(bodies(found.filter((one) => !old.includes(`${one.sequenceNumber}`))).sort(),
    ["forwarded", "retried"]);
  assert.equal(found.filter((one) => old.includes(`${one.sequenceNumber}`)).length, 8,
    "what was lost is there again, what was taken is not");
  await world.admin.updateQueue({ ...await world.admin.getQueue(probed), maxDeliveryCount: 3 });
  await world.queue("new", PARTITIONED);
  await world.admin.deleteQueue(wide);
}

async function whileItIsAway(world, { wide, free, from, lost }) {
  const fine = world.keys.filter((key) => !lost.includes(key));
  assert.equal(lost.length, 8);
  assert.equal(await availability(world, wide), "Limited");
  assert.equal((await world.counts(wide)).activeMessageCount, 8, "those that can be counted");
  for (const partitionKey of lost) {
    await refusedForNow(world.send(wide, { body: "never", messageId: "new", partitionKey }));
  }
  await refusedForNow(world.send(wide, [fine[0], lost[0]].map((partitionKey) =>
    ({ body: "never", messageId: "new", partitionKey }))));
  assert.equal((await world.counts(wide)).activeMessageCount, 8, "nothing is stored");
  // Without a key another partition takes it.
  await world.send(free, ...Array.from({ length: 16 }, (_, body) => ({ body })));
  const lostIndexes = (await world.others.lost_keys(free)).map((key) => world.keys.indexOf(key));
  const went = (await world.peek(free)).map(partitionOf);
  assert.equal(went.length, 16);
  assert.ok(went.every((index) => !lostIndexes.includes(index)), `${went}`);
  await world.send(wide, { body: "goes on", messageId: "n", partitionKey: fine[0] });
  // A receive keeps giving out what the other partitions have.
  const received = bodies(await world.take(wide, 9));
  assert.deepEqual(received.sort(), [...fine, "goes on"].sort());
  await waitsAtItsSource(world, from, lost[0]);
  const settings = await world.admin.getQueue(free);
  const code = "ServerBusyError";
  await refused(code, world.queue("new", PARTITIONED));
  await refused(code, world.admin.updateQueue({ ...settings, maxDeliveryCount: 3 }));
  await refused(code, world.admin.deleteQueue(free));
  assert.equal((await world.admin.getQueue(free)).maxDeliveryCount, 10);
}

// Of several queues one has its partition in another store than the one that is gone.
async function waitsAtItsSource(world, from, partitionKey) {
  for (const queue of from) {
    if (await availability(world, queue) !== "Available") continue;
    await world.send(queue, { body: "forwarded", messageId: "f", partitionKey });
    assert.equal((await world.counts(queue)).totalMessageCount, 1, "the destination is down");
    return;
  }
  assert.fail("every source is in the lost store");
}

export async function startedWithoutIt(world) {
  const queue = await world.queue("wide", PARTITIONED);
  await world.send(queue, world.keys.map((key) => ({ body: key, partitionKey: key })));
  const all = numbers(await world.peek(queue));
  await world.others.end();
  await world.others.take_away();
  await world.reconnect(await world.others.start());
  assert.equal(await availability(world, queue), "Limited");
  assert.equal((await world.peek(queue)).length, 8);
  await world.others.give_back();
  await until(async () => await availability(world, queue) === "Available");
  assert.deepEqual(numbers(await world.peek(queue)), all);
}
