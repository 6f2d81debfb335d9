// Queues, topics, subscriptions and rules through ServiceBusAdministrationClient. Each step ends in
// an assertion; the last line says that all of them were reached.
import assert from "node:assert/strict";
import { createRequire } from "node:module";
const { ServiceBusAdministrationClient } = createRequire(process.env.NODE_HOME + "/")(
  "@azure/service-bus");

const client = new ServiceBusAdministrationClient(process.env.CONNECTION);
const names = JSON.parse(process.env.NAMES);

async function refused(code, promise) {
  await assert.rejects(promise, (error) => (assert.equal(error.code, code, error.message), true));
}

async function all(pages) {
  const found = [];
  for await (const page of pages) found.push([...page]);
  return found;
}

const steps = {
  async queue() {
    const chosen = { lockDuration: "PT45S", maxDeliveryCount: 7, maxSizeInMegabytes: 2048,
      defaultMessageTimeToLive: "P3DT1H", deadLetteringOnMessageExpiration: true,
      requiresDuplicateDetection: true, duplicateDetectionHistoryTimeWindow: "PT3M",
      requiresSession: true, autoDeleteOnIdle: "PT2H", userMetadata: "for <us> & them",
      maxMessageSizeInKilobytes: 2048 };
    const made = await client.createQueue(names.queue, chosen);
    for (const found of [made, await client.getQueue(names.queue)]) {
      assert.equal(found.name, names.queue);
      for (const [key, value] of Object.entries(chosen)) assert.equal(found[key], value, key);
      assert.equal(found.status, "Active");
      assert.equal(found.availabilityStatus, "Available");
    }
    await refused("MessageEntityAlreadyExistsError", client.createQueue(names.queue));
    const changed = await client.updateQueue({ ...made, maxDeliveryCount: 3, status: "Disabled" });
    assert.equal(changed.maxDeliveryCount, 3);
    assert.equal(changed.status, "Disabled");
    assert.equal(changed.lockDuration, "PT45S");
    await refused("ServiceError", client.updateQueue({ ...made, requiresSession: false }));
    const about = await client.getQueueRuntimeProperties(names.queue);
    assert.equal(about.totalMessageCount, 0);
    assert.equal(about.activeMessageCount, 0);
    assert.ok(Date.now() - about.createdAt.getTime() < 300_000);
    assert.equal(await client.queueExists(names.queue), true);
    await client.deleteQueue(names.queue);
    assert.equal(await client.queueExists(names.queue), false);
    await refused("MessageEntityNotFoundError", client.getQueue(names.queue));
    await refused("MessageEntityNotFoundError", client.deleteQueue(names.queue));
  },

  async partitioned() {
    const made = await client.createQueue(names.partitioned, { enablePartitioning: true });
    assert.equal(made.maxSizeInMegabytes, 16 * 1024);
    assert.equal((await client.updateQueue(made)).maxSizeInMegabytes, 16 * 1024);
    await refused("ServiceError", client.updateQueue({ ...made, enablePartitioning: false }));
  },

  async forwarding() {
    await client.createQueue(names.target);
    const made = await client.createQueue(names.source, { forwardTo: names.target,
      forwardDeadLetteredMessagesTo: names.target });
    assert.ok(made.forwardTo.endsWith(`/${names.target}`), made.forwardTo);
    assert.equal((await client.updateQueue(made)).forwardTo, made.forwardTo);
    delete made.forwardTo;
    assert.equal((await client.updateQueue(made)).forwardTo, undefined);
  },

  async topics() {
    const made = await client.createTopic(names.topic, { enablePartitioning: true });
    assert.equal(made.name, names.topic);
    const changed = await client.updateTopic({ ...made, defaultMessageTimeToLive: "PT1H" });
    assert.equal(changed.defaultMessageTimeToLive, "PT1H");
    const some = await client.createSubscription(names.topic, "some", { maxDeliveryCount: 4,
      defaultRuleOptions: { name: "first", filter: { subject: "red" } } });
    assert.equal(some.subscriptionName, "some");
    assert.equal(some.topicName, names.topic);
    assert.equal(some.maxDeliveryCount, 4);
    const [[first]] = await all(client.listRules(names.topic, "some").byPage());
    assert.equal(first.name, "first");
    assert.equal(first.filter.subject, "red");
    for (const one of ["a", "b", "c", "d"]) await client.createSubscription(names.topic, one);
    const pages = await all(client.listSubscriptions(names.topic).byPage({ maxPageSize: 2 }));
    assert.deepEqual(pages.map((page) => page.map((one) => one.subscriptionName)),
      [["a", "b"], ["c", "d"], ["some"]]);
    assert.equal((await client.getTopicRuntimeProperties(names.topic)).subscriptionCount, 5);
    const about = await client.getSubscriptionRuntimeProperties(names.topic, "a");
    assert.equal(about.totalMessageCount, 0);
    const again = await client.updateSubscription({ ...some, lockDuration: "PT20S" });
    assert.equal(again.lockDuration, "PT20S");
    await client.deleteSubscription(names.topic, "a");
    assert.equal(await client.subscriptionExists(names.topic, "a"), false);
    const found = (await all(client.listTopics().byPage({ maxPageSize: 1 }))).flat();
    assert.ok(found.some((topic) => topic.name === names.topic));
  },

  async rules() {
    const properties = { text: "a < b", whole: 5, real: 0.5, yes: true,
      time: new Date("2026-01-02T03:04:05Z") };
    const made = await client.createRule(names.topic, "b", "by properties",
      { correlationId: "c", applicationProperties: properties });
    assert.deepEqual(made.filter.applicationProperties, properties);
    assert.equal(made.filter.correlationId, "c");
    const sql = await client.createRule(names.topic, "b", "sql",
      { sqlExpression: "n > @least", sqlParameters: { "@least": 5 } },
      { sqlExpression: "SET seen = 1" });
    assert.deepEqual(sql.filter.sqlParameters, { "@least": 5 });
    assert.equal(sql.action.sqlExpression, "SET seen = 1");
    const changed = await client.updateRule(names.topic, "b",
      { ...sql, filter: { sqlExpression: "n = 1" } });
    assert.equal(changed.filter.sqlExpression, "n = 1");
    await refused("MessageEntityAlreadyExistsError", client.createRule(names.topic, "b", "sql"));
    await refused("ServiceError", client.createRule(names.topic, "b", "bad",
      { sqlExpression: "n >" }));
    await client.deleteRule(names.topic, "b", "by properties");
    const [rules] = await all(client.listRules(names.topic, "b").byPage());
    assert.deepEqual(rules.map((rule) => rule.name), ["$Default", "sql"]);
    assert.equal((await client.getRule(names.topic, "b", "$Default")).filter.sqlExpression, "1=1");
    await refused("MessageEntityNotFoundError", client.getRule(names.topic, "b", "none"));
    await client.deleteTopic(names.topic);
    assert.equal(await client.topicExists(names.topic), false);
  },

  async keys() {
    const key = { claimType: "SharedAccessKey", accessRights: ["Manage", "Send", "Listen"],
      keyName: "boss", primaryKey: "p".repeat(44), secondaryKey: "s".repeat(44) };
    const made = await client.createQueue(names.owned, { authorizationRules: [key] });
    assert.deepEqual(made.authorizationRules, [key]);
    const boss = new ServiceBusAdministrationClient(process.env.BOSS);
    assert.equal((await boss.getQueue(names.owned)).name, names.owned);
    await refused("UnauthorizedRequestError", boss.getQueue(names.target));
    await refused("UnauthorizedRequestError",
      boss.updateQueue({ ...made, forwardTo: names.target }));
    const stranger = new ServiceBusAdministrationClient(process.env.STRANGER);
    await refused("UnauthorizedRequestError", stranger.getQueue(names.owned));
  },

  async namespace() {
    const about = await client.getNamespaceProperties();
    assert.equal(about.name, "localhost");
    assert.equal(about.messagingSku, "Standard");
    assert.ok(about.createdAt <= about.modifiedAt);
  },
};

for (const [name, step] of Object.entries(steps)) {
  try {
    await step();
  } catch (error) {
    console.error(`${name}:`, error);
    process.exit(1);
  }
}
console.log("all done");
