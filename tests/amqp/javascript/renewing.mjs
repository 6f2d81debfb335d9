// Holds a message of a queue and one of a session for longer than a lock, which this client renews
// by itself; completes them, and prints how often each was delivered before.
import { createRequire } from "node:module";
const { ServiceBusClient, delay } = createRequire(process.env.NODE_HOME + "/")("@azure/service-bus");

const client = new ServiceBusClient(process.env.CONNECTION, { retryOptions: { maxRetries: 0 } });
const { queue, sessions, session, held_ms: held } = JSON.parse(process.env.NAMES);

async function hold(receiver) {
  const [message] = await receiver.receiveMessages(1, { maxWaitTimeInMs: 60_000 });
  await delay(held);
  await receiver.completeMessage(message);
  return message.deliveryCount;
}

const counts = await Promise.all([
  hold(client.createReceiver(queue)),
  client.acceptSession(sessions, session).then(hold),
]);
await client.close();
console.log(JSON.stringify(counts));
