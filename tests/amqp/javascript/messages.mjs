// Messages as they go and come back: fields, bodies, and peeking without bodies.
import assert from "node:assert/strict";
import { HOUR, Long, bodies } from "./world.mjs";

export async function everyFieldComesBack(world) {
  const queue = await world.queue("q");
  const whole = { body: { list: [1, "ä", null] }, messageId: "id", correlationId: "c",
    subject: "subject", to: "to", replyTo: "back", replyToSessionId: "there", sessionId: "s",
    partitionKey: "s", contentType: "text/plain", timeToLive: HOUR,
    applicationProperties: { int: 5, large: 2 ** 40, negative: -5, real: 0.1, yes: true, no: false,
      text: "ä\u0000", empty: "", nothing: null } };
  await world.send(queue, whole);
  const [found] = await world.take(queue, 1);
  for (const [name, value] of Object.entries(whole)) assert.deepEqual(found[name], value, name);
}

export async function overWebSocket(world) {
  const queue = await world.queue("q");
  const client = world.overWebSocket();
  const receiver = client.createReceiver(queue);
  const body = "x".repeat(300_000);
  await client.createSender(queue).sendMessages({ body });
  const [found] = await receiver.receiveMessages(1, { maxWaitTimeInMs: 60_000 });
  assert.equal(found.body, body);
  await receiver.completeMessage(found);
  assert.equal((await world.counts(queue)).totalMessageCount, 0);
  await client.close();
}

export async function bodiesOfAllKinds(world) {
  const queue = await world.queue("q");
  const plain = ["", "x", 5, true, null, [1, 2], Buffer.from([0, 255])];
  await world.send(queue, ...plain.map((body) => ({ body })));
  assert.deepEqual(bodies(await world.take(queue, plain.length)), plain);
  const annotated = [["value", 5], ["value", "x"], ["value", { a: 1 }], ["value", null],
    ["sequence", [[1, 2], ["x"]]], ["data", Buffer.from([0, 255])]];
  await world.send(queue, ...annotated.map(([bodyType, body]) => ({ body, bodyType })));
  const found = await world.take(queue, annotated.length);
  assert.deepEqual(found.map((one) => [one._rawAmqpMessage.bodyType, one.body]), annotated);
  const ids = [0, 7, 2 ** 40, "x"];
  await world.send(queue, ...ids.map((messageId) => ({ body: 1, messageId })));
  assert.deepEqual((await world.take(queue, 4)).map((one) => one.messageId), ids);
}

export async function peekedWithoutBodies(world) {
  const queue = await world.queue("q");
  await world.send(queue, { body: "x".repeat(1_000), subject: "large" },
    { body: [[1], [2]], bodyType: "sequence", applicationProperties: { n: 1 } });
  const from = { fromSequenceNumber: Long.ZERO };
  const found = await world.receiver(queue).peekMessages(5, { ...from, omitMessageBody: true });
  const sizes = found.map(({ _rawAmqpMessage }) =>
    Number(_rawAmqpMessage.deliveryAnnotations["omitted-message-body-size"]));
  assert.deepEqual(bodies(found), [undefined, undefined]);
  assert.ok(sizes[0] > 1_000 && sizes[0] < 1_100, `${sizes}`);
  assert.ok(sizes[1] > 0 && sizes[1] < 100, `${sizes}`);
  assert.equal(found[0].subject, "large");
  assert.deepEqual(found[1].applicationProperties, { n: 1 });
  const [whole] = await world.receiver(queue).peekMessages(1, from);
  assert.equal(whole.body, "x".repeat(1_000));
}
