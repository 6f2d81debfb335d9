// Beside both clients of Python: on one queue, in one session, and over kills of the server.
import assert from "node:assert/strict";
import { delay, receiveFrom, until } from "./world.mjs";

export async function shareAQueue(world) {
  const { queue, count, held: many } = await world.others.begin();
  // Everybody sends the same ids: whose comes first is stored.
  for (let n = 0; n < count; n += 1) {
    await world.send(queue, { body: "javascript", messageId: `m-${n}` });
  }
  const receiver = world.receiver(queue);
  let held = await receiveFrom(receiver, many);
  await world.others.meet();
  const settled = [];
  do {
    for (const message of held) {
      await receiver.completeMessage(message);
      settled.push(message.messageId);
    }
    held = await receiver.receiveMessages(many, { maxWaitTimeInMs: 500 });
  } while (held.length || await world.others.left());
  await world.others.end(settled);
}

export async function shareASession(world) {
  const { queue, turns, each, last } = await world.others.begin();
  for (let turn = 0; turn < turns; turn += 1) {
    // Waits until nobody has the session, and there is something in it.
    const session = await world.client.acceptNextSession(queue);
    // This client reads what is JSON as such.
    const before = await session.getSessionState() ?? [];
    const messages = await receiveFrom(session, each);
    const next = messages.at(-1).body + 1;
    if (next <= last) {
      await world.send(queue, Array.from({ length: each }, (_, n) =>
        ({ body: next + n, sessionId: session.sessionId })));
    }
    for (const message of messages) await session.completeMessage(message);
    const after = [...before, ...messages.map(({ body }) => ["javascript", body])];
    await session.setSessionState(Buffer.from(JSON.stringify(after)));
    await session.close();
  }
  await world.others.end();
}

// Sends until it is stopped, and again what nobody has acknowledged.
function keepSending(sender) {
  const told = { sent: [], stopping: false };
  told.ended = (async () => {
    while (!told.stopping) {
      const messageId = `javascript-${told.sent.length}`;
      try {
        await sender.sendMessages({ body: "x", messageId });
        told.sent.push(messageId);
      } catch {
        await delay(100);
      }
    }
  })();
  return told;
}

// Completes what comes, until it is closed.
function keepReceiving(receiver) {
  const told = { received: [], completed: [] };
  told.subscription = receiver.subscribe({
    async processMessage(message) {
      told.received.push([message.messageId, message.sequenceNumber.toString()]);
      try {
        await receiver.completeMessage(message);
        told.completed.push(message.messageId);
      } catch {
        // Nobody can tell what became of it: where it is not done it comes again.
      }
    },
    async processError() {},
  }, { autoCompleteMessages: false, maxConcurrentCalls: 5 });
  return told;
}

export async function goOnOverKills(world) {
  const { queue, kills, more } = await world.others.begin();
  const client = world.patient();
  const [sender, receiver] = [client.createSender(queue), client.createReceiver(queue)];
  const sending = keepSending(sender), receiving = keepReceiving(receiver);
  const goesOn = async () => {
    const [sent, completed] = [sending.sent.length + more, receiving.completed.length + more];
    await until(() => sending.sent.length >= sent && receiving.completed.length >= completed);
    await world.others.go_on();
  };
  await goesOn();
  for (let kill = 0; kill < kills; kill += 1) {
    await world.others.kill();
    await goesOn();
  }
  sending.stopping = true;
  await sending.ended;
  await world.others.stop_sending();
  await until(async () => await world.others.left() === 0);
  await receiving.subscription.close();
  await client.close();
  const { sent } = sending, { received, completed } = receiving;
  assert.ok(completed.length, "it has received something");
  await world.others.end({ sent, received, completed });
}
