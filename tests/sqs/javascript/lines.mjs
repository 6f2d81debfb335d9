// The JavaScript SDK, told what to ask: a line in is one command, a line out is its answer.
import { createRequire } from "node:module";
import { createInterface } from "node:readline";
const sdk = createRequire(process.env.NODE_HOME + "/")("@aws-sdk/client-sqs");

const client = new sdk.SQSClient({
  region: "us-east-1",
  endpoint: process.env.ENDPOINT,
  credentials: { accessKeyId: "test", secretAccessKey: "test" },
  maxAttempts: 1,
});

async function answer(line) {
  const { action, given } = JSON.parse(line);
  try {
    const { $metadata, ...result } = await client.send(new sdk[`${action}Command`](given));
    return { result };
  } catch (error) {
    // A fault of the SDK itself, such as a digest that differs, has no status.
    const status = error.$metadata?.httpStatusCode ?? 0;
    return { error: { code: error.Code ?? error.name, message: error.message, status } };
  }
}

for await (const line of createInterface({ input: process.stdin })) {
  console.log(JSON.stringify(await answer(line)));
}
