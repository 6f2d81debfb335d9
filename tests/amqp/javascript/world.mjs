// What a scenario has: both clients of a server, names of its own, words for what is done often.
import assert from "node:assert/strict";
import { createRequire } from "node:module";
const need = createRequire(process.env.NODE_HOME + "/");
const { ServiceBusAdministrationClient, ServiceBusClient, delay } = need("@azure/service-bus");
const Long = need("long");

export const SECOND = 1000, MINUTE = 60 * SECOND, HOUR = 60 * MINUTE, DAY = 24 * HOUR;
// Longer than anything takes that is there to come
const PATIENCE_MS = 60_000;

export { Long, delay };
export const long = (text) => Long.fromString(`${text}`);
export const bodies = (messages) => messages.map((one) => one.body);
export const numbers = (messages) => messages.map((one) => one.sequenceNumber.toString());
export const partitionOf = (message) => message.sequenceNumber.shiftRightUnsigned(48).toNumber();

// Fails unless this is refused in just this way.
export async function refused(code, promise) {
  await assert.rejects(promise, (error) => (assert.equal(error.code, code, error.stack), true));
}

export class World {
  #number;
  #connection;
  #senders = new Map();
  #receivers = new Map();

  constructor({ connection, number, keys }, others) {
    this.#connection = connection;
    this.#number = number;
    // One key for each partition, in their order
    this.keys = keys;
    // Does what this SDK has no call for
    this.others = others;
    this.connect();
  }

  connect() {
    // What is refused for a while is told at once.
    this.client = new ServiceBusClient(this.#connection, { retryOptions: { maxRetries: 0 } });
    this.admin = new ServiceBusAdministrationClient(this.#connection,
      { retryOptions: { maxRetries: 0 } });
  }

  // Another client; as it is, it gets over the start of a server on a busy machine.
  patient(more = {}) {
    const retryOptions = { maxRetries: 5, retryDelayInMs: 200, maxRetryDelayInMs: 1000,
      timeoutInMs: 5000, ...more };
    return new ServiceBusClient(this.#connection, { retryOptions });
  }

  // A client that goes through where nothing but HTTPS does.
  overWebSocket() {
    return new ServiceBusClient(this.#connection,
      { webSocketOptions: { webSocket: WebSocket }, retryOptions: { maxRetries: 0 } });
  }

  // A client whose key has one right on one entity, and one that has not got the key.
  async limited(entity, right = "Send") {
    const [name, key] = await this.others.create_key(entity, right);
    const [client, stranger] = [key, "not the key, but long"].map((shown) => new ServiceBusClient(
      this.#connection.replace(/SharedAccessKeyName=.*;UseDev/,
        `SharedAccessKeyName=${name};SharedAccessKey=${shown};UseDev`),
      { retryOptions: { maxRetries: 0 } }));
    return { client, stranger };
  }

  async close() {
    this.#senders.clear();
    this.#receivers.clear();
    await this.client.close();
  }

  // Other clients, as after a restart.
  async reconnect(connection) {
    await this.close();
    this.#connection = connection;
    this.connect();
  }

  name(word) {
    return `${word}-${this.#number}`;
  }

  async queue(word, settings = {}) {
    await this.admin.createQueue(this.name(word), settings);
    return this.name(word);
  }

  async topic(word, settings = {}) {
    await this.admin.createTopic(this.name(word), settings);
    return this.name(word);
  }

  // Returns what receivers are made of.
  async subscription(topic, name, settings = {}) {
    await this.admin.createSubscription(topic, name, settings);
    return [topic, name];
  }

  sender(entity) {
    if (!this.#senders.has(entity)) this.#senders.set(entity, this.client.createSender(entity));
    return this.#senders.get(entity);
  }

  // An entity is the name of a queue, or of a topic and a subscription. Locks are not renewed.
  receiver(entity, options = {}) {
    const key = JSON.stringify([entity, options]);
    if (!this.#receivers.has(key)) {
      const all = { maxAutoLockRenewalDurationInMs: 0, ...options };
      this.#receivers.set(key, this.client.createReceiver(...[entity].flat(), all));
    }
    return this.#receivers.get(key);
  }

  deadLetters(entity) {
    return this.receiver(entity, { subQueueType: "deadLetter" });
  }

  // Sends one after the other.
  async send(entity, ...messages) {
    for (const message of messages) await this.sender(entity).sendMessages(message);
  }

  // Receives just so many, which must come.
  async receive(entity, count, options) {
    return receiveFrom(this.receiver(entity, options), count);
  }

  async receiveOne(entity, options) {
    return (await this.receive(entity, 1, options))[0];
  }

  // Takes out just so many.
  async take(entity, count) {
    return this.receive(entity, count, { receiveMode: "receiveAndDelete" });
  }

  // Looks at everything, call after call until nothing is returned.
  async peek(entity, options) {
    const found = [];
    for (let start = Long.ZERO; ;) {
      const more = await this.receiver(entity, options).peekMessages(100,
        { fromSequenceNumber: start });
      if (!more.length) return found;
      found.push(...more);
      start = more.at(-1).sequenceNumber.add(1);
    }
  }

  async peekDead(entity) {
    return this.peek(entity, { subQueueType: "deadLetter" });
  }

  // Fails if an ordinary receive returns something.
  async nothing(entity, options) {
    const found = await this.receiver(entity, options).receiveMessages(1,
      { maxWaitTimeInMs: 100 });
    assert.deepEqual(bodies(found), []);
  }

  async counts(entity) {
    const [name, subscription] = [entity].flat();
    return subscription ? this.admin.getSubscriptionRuntimeProperties(name, subscription)
      : this.admin.getQueueRuntimeProperties(name);
  }

  // Lets time pass on the server; returns what time it is there.
  async advance(ms) {
    return new Date(await this.others.advance(ms));
  }

  // Returns when it will be so much later on the server.
  async after(ms) {
    return new Date(await this.others.advance(0) + ms);
  }
}

export async function receiveFrom(receiver, count) {
  const found = [];
  while (found.length < count) {
    const more = await receiver.receiveMessages(count - found.length,
      { maxWaitTimeInMs: PATIENCE_MS });
    assert.ok(more.length, `${found.length} of ${count} came`);
    found.push(...more);
  }
  return found;
}

// Asks again and again until it is so; returns what was told.
export async function until(condition) {
  for (const end = Date.now() + PATIENCE_MS; ;) {
    const told = await condition();
    if (told) return told;
    assert.ok(Date.now() < end, "it did not come to pass");
    await delay(20);
  }
}
