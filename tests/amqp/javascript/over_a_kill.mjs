// Sends and receives while the server is killed and started again: says "half" when half is sent,
// and prints in the end what was received, what was completed for sure, and what came after that.
import { createRequire } from "node:module";
const { ServiceBusClient, delay } = createRequire(process.env.NODE_HOME + "/")("@azure/service-bus");

const retryOptions = { maxRetries: 5, retryDelayInMs: 200, maxRetryDelayInMs: 1000, timeoutInMs: 5000 };
const client = new ServiceBusClient(process.env.CONNECTION, { retryOptions });
const { queue, count } = JSON.parse(process.env.NAMES);

const received = new Set();
const completed = [];
const again = [];
const receiver = client.createReceiver(queue);
receiver.subscribe(
  {
    async processMessage(message) {
      received.add(message.messageId);
      if (completed.includes(message.messageId)) again.push(message.messageId);
      try {
        await receiver.completeMessage(message);
        completed.push(message.messageId);
      } catch {
        // Nobody can tell what became of it: where it is not done it comes again.
      }
    },
    async processError() {},
  },
  { autoCompleteMessages: false, maxConcurrentCalls: 5 },
);

const sender = client.createSender(queue);
for (let n = 0; n < count; n += 1) {
  if (n === count / 2) console.log("half");
  for (;;) {
    try {
      await sender.sendMessages({ body: n, messageId: `m-${n}` });
      break;
    } catch {
      await delay(100);
    }
  }
}
while (received.size < count) await delay(50);
// What was under way when the last one came.
await delay(1000);
await client.close();
console.log(JSON.stringify({ received: [...received], completed, again }));
