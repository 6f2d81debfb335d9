// The JavaScript SDK, unmodified: it checks MD5 of bodies, and goes where QueueUrl says.
import assert from "node:assert/strict";
import { createRequire } from "node:module";
const {
  ChangeMessageVisibilityBatchCommand,
  CreateQueueCommand,
  DeleteMessageBatchCommand,
  DeleteMessageCommand,
  GetQueueAttributesCommand,
  QueueDoesNotExist,
  ReceiveMessageCommand,
  SendMessageBatchCommand,
  SendMessageCommand,
  SQSClient,
} = createRequire(process.env.NODE_HOME + "/")("@aws-sdk/client-sqs");

const credentials = { accessKeyId: "test", secretAccessKey: "test" };
const client = new SQSClient({
  region: "eu-west-1",
  endpoint: process.env.ENDPOINT,
  credentials,
  maxAttempts: 1,
});
const ask = (Command, given) => client.send(new Command(given));

const { QueueUrl } = await ask(CreateQueueCommand, {
  QueueName: "javascript.fifo",
  Attributes: { FifoQueue: "true", ContentBasedDeduplication: "true" },
});
assert.equal(new URL(QueueUrl).origin, new URL(process.env.ENDPOINT).origin);

const sent = await ask(SendMessageCommand, {
  QueueUrl,
  MessageBody: "größe <&> 😀",
  MessageGroupId: "g",
  MessageAttributes: {
    n: { DataType: "Number", StringValue: "1.50" },
    data: { DataType: "Binary", BinaryValue: new Uint8Array([0, 255, 7]) },
  },
});
assert.equal(sent.SequenceNumber.length, 20);
const batch = await ask(SendMessageBatchCommand, {
  QueueUrl,
  Entries: [1, 2, 3].map((n) => ({ Id: `e${n}`, MessageBody: `b${n}`, MessageGroupId: `g${n}` })),
});
assert.equal(batch.Successful.length, 3);

// Without an endpoint the SDK goes to the origin of the QueueUrl.
const roaming = new SQSClient({ region: "eu-west-1", credentials, maxAttempts: 1 });
const { Messages } = await roaming.send(
  new ReceiveMessageCommand({
    QueueUrl,
    MaxNumberOfMessages: 10,
    MessageAttributeNames: ["All"],
    MessageSystemAttributeNames: ["All"],
    ReceiveRequestAttemptId: "try",
  }),
);
assert.deepEqual(Messages.map((one) => one.Body), ["größe <&> 😀", "b1", "b2", "b3"]);
assert.equal(Messages[0].MessageId, sent.MessageId);
assert.equal(Messages[0].MD5OfMessageAttributes, sent.MD5OfMessageAttributes);
assert.equal(Messages[0].MessageAttributes.n.StringValue, "1.50");
assert.deepEqual([...Messages[0].MessageAttributes.data.BinaryValue], [0, 255, 7]);
const again = await ask(ReceiveMessageCommand, {
  QueueUrl,
  MaxNumberOfMessages: 10,
  ReceiveRequestAttemptId: "try",
});
assert.deepEqual(
  again.Messages.map((one) => one.ReceiptHandle),
  Messages.map((one) => one.ReceiptHandle),
);

await ask(ChangeMessageVisibilityBatchCommand, {
  QueueUrl,
  Entries: [{ Id: "a", ReceiptHandle: Messages[0].ReceiptHandle, VisibilityTimeout: 60 }],
});
await ask(DeleteMessageCommand, { QueueUrl, ReceiptHandle: Messages[0].ReceiptHandle });
const deleted = await ask(DeleteMessageBatchCommand, {
  QueueUrl,
  Entries: Messages.slice(1).map((one, n) => ({ Id: `d${n}`, ReceiptHandle: one.ReceiptHandle })),
});
assert.equal(deleted.Successful.length, 3);
const { Attributes } = await ask(GetQueueAttributesCommand, { QueueUrl, AttributeNames: ["All"] });
assert.equal(Attributes.ApproximateNumberOfMessages, "0");
assert.equal(Attributes.ApproximateNumberOfMessagesNotVisible, "0");

await assert.rejects(
  ask(ReceiveMessageCommand, { QueueUrl: QueueUrl.replace("javascript", "no-such") }),
  (error) => error instanceof QueueDoesNotExist && error.$metadata.httpStatusCode === 400,
);
console.log("all is well");
