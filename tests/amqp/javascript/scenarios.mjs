// Runs scenarios as it is asked to, one after the other: node and the SDK are started once.
//
// Requests and answers are lines of JSON. {"run": "duplicates.dropped", ...} runs a function that
// duplicates.mjs exports, and is answered by {"done": true} or {"failed": "why"}. In between a
// scenario may ask for what this SDK has no call for: {"ask": "advance", "given": [60000]}, and is
// told {"answer": ...} or {"error": "why"}.
import { createInterface } from "node:readline";
import { World } from "./world.mjs";

const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]();
const say = (what) => process.stdout.write(`${JSON.stringify(what)}\n`);

async function hear() {
  const { value, done } = await lines.next();
  return done ? undefined : JSON.parse(value);
}

const others = new Proxy({}, {
  get: (_, name) => async (...given) => {
    say({ ask: name, given });
    const told = await hear();
    if ("error" in told) throw new Error(`${name}: ${told.error}`);
    return told.answer;
  },
});

for (let asked = await hear(); asked; asked = await hear()) {
  const [file, name] = asked.run.split(".");
  const world = new World(asked, others);
  let outcome = { done: true };
  try {
    await (await import(`./${file}.mjs`))[name](world);
  } catch (error) {
    outcome = { failed: error.stack ?? String(error) };
  }
  // Before anybody is told: servers may go then, and a client that closes waits for its own.
  await world.close();
  say(outcome);
}
