// Topics, rules and forwarding (B3, B6).
import assert from "node:assert/strict";
import { bodies, refused, until } from "./world.mjs";

const ruled = (filter, action) => ({ defaultRuleOptions: { name: "r", filter, action } });

// Waits until an entity has just these messages: forwarding takes a moment.
async function comes(world, entity, wanted, options) {
  return until(async () => {
    const found = await world.peek(entity, options);
    return JSON.stringify(bodies(found).sort()) === JSON.stringify([...wanted].sort()) && found;
  });
}

export async function filtersAndActions(world) {
  for (const enablePartitioning of [false, true]) {
    const topic = await world.topic(`t${enablePartitioning}`, { enablePartitioning });
    const every = await world.subscription(topic, "every");
    const large = await world.subscription(topic, "large",
      ruled({ sqlExpression: "amount > 100" }, { sqlExpression: "SET priority = 1" }));
    const red = await world.subscription(topic, "red", ruled({ subject: "red" }));
    const none = await world.subscription(topic, "none", ruled({ sqlExpression: "1=0" }));
    await world.send(topic, { body: 1, subject: "red", applicationProperties: { amount: 500 } },
      { body: 2, applicationProperties: { amount: 5 } });
    assert.deepEqual(bodies(await world.peek(every)).sort(), [1, 2]);
    const [found] = await world.receive(large, 1);
    assert.deepEqual([found.body, found.applicationProperties.priority], [1, 1]);
    assert.deepEqual(bodies(await world.peek(red)), [1]);
    assert.deepEqual(await world.peek(none), []);
    await world.admin.createRule(...none, "blue",
      { correlationId: "c", applicationProperties: { colour: "blue" } });
    await world.admin.deleteRule(...red, "r");
    await world.send(topic,
      { body: 3, correlationId: "c", applicationProperties: { colour: "blue" } },
      { body: 4, subject: "red", correlationId: "c" });
    assert.deepEqual(bodies(await world.peek(none)), [3], "all that a filter names must be so");
    assert.deepEqual(bodies(await world.peek(red)), [1]);
  }
}

export async function rulesAreChanged(world) {
  const topic = await world.topic("t");
  const some = await world.subscription(topic, "some");
  const [manager, twice] = [0, 1].map(() => world.client.createRuleManager(...some));
  await manager.createRule("large", { sqlExpression: "amount >= 10" },
    { sqlExpression: "SET size = 'large'; REMOVE amount" });
  await refused("MessagingEntityAlreadyExists", twice.createRule("large", { subject: "x" }));
  await refused("GeneralError", manager.createRule("bad", { sqlExpression: "amount >" }));
  await manager.deleteRule("$Default");
  await refused("MessagingEntityNotFound", manager.deleteRule("$Default"));
  await world.send(topic, { body: 1, applicationProperties: { amount: 9 } },
    { body: 2, applicationProperties: { amount: 10 } });
  const [found] = await world.receive(some, 1);
  assert.equal(found.body, 2);
  assert.deepEqual(found.applicationProperties, { RuleName: "large", size: "large" });
  const rule = await world.admin.getRule(...some, "large");
  await world.admin.updateRule(...some, { ...rule, filter: { sqlExpression: "amount < 10" } });
  await world.send(topic, { body: 3, applicationProperties: { amount: 9 } });
  assert.deepEqual(bodies(await world.take(some, 1)), [3]);
}

export async function rulesAreListedByName(world) {
  const topic = await world.topic("t");
  const some = await world.subscription(topic, "some");
  // To manage rules over AMQP is to choose what to receive: the right to listen is enough.
  const { client } = await world.limited(topic, "Listen");
  const manager = client.createRuleManager(...some);
  await manager.createRule("sqlRule", { sqlExpression: "price > 10" });
  await manager.createRule("correlationRule", { subject: "red" });
  await manager.createRule("Between", { subject: "blue" });
  const names = ["$Default", "Between", "correlationRule", "sqlRule"];
  const listed = async (rules) => {
    const found = [];
    for await (const rule of rules) found.push(rule.name);
    return found;
  };
  assert.deepEqual(await listed(manager.listRules()), names);
  const pages = [];
  for await (const page of manager.listRules().byPage({ maxPageSize: 1 })) {
    pages.push(...page.map((rule) => rule.name));
  }
  assert.deepEqual(pages, names, "page by page");
  assert.deepEqual(await listed(world.admin.listRules(...some)), names);
  await manager.deleteRule("Between");
  await client.close();
}

export async function subscriptionsDoNotNoticeEachOther(world) {
  const topic = await world.topic("t");
  const [a, b] = [await world.subscription(topic, "a"), await world.subscription(topic, "b")];
  await world.send(topic, ...[1, 2, 3, 4].map((body) => ({ body })));
  const [one, two, three, four] = await world.receive(a, 4);
  const receiver = world.receiver(a);
  await receiver.completeMessage(one);
  await receiver.deferMessage(two);
  await receiver.deadLetterMessage(three, { deadLetterReason: "no" });
  await receiver.abandonMessage(four, { seen: true });
  const about = await world.counts(a);
  assert.deepEqual([about.activeMessageCount, about.deadLetterMessageCount], [1, 1]);
  assert.deepEqual((await world.peek(a)).map((found) => found.state), ["deferred", "active"]);
  assert.deepEqual((await world.peek(b)).map((found) => [found.state, found.deliveryCount]),
    Array(4).fill(["active", 0]));
  await world.admin.deleteSubscription(...a);
  assert.deepEqual(bodies(await world.take(b, 4)), [1, 2, 3, 4]);
}

export async function fourHops(world) {
  let forwardTo;
  for (const hop of [5, 4, 3, 2, 1, 0]) forwardTo = await world.queue(`h${hop}`, { forwardTo });
  const last = await world.admin.getQueue(world.name("h5"));
  await refused("ServiceError", world.admin.updateQueue({ ...last, forwardTo: world.name("h0") }));
  await world.send(world.name("h1"), { body: "from h1" });
  await world.send(world.name("h0"), { body: "from h0" });
  await comes(world, world.name("h5"), ["from h1"]);
  const dead = { subQueueType: "deadLetter" };
  const [letter] = await comes(world, world.name("h4"), ["from h0"], dead);
  assert.equal(letter.deadLetterReason, "MaxTransferHopCountExceeded");
}

export async function deadLettersGoOn(world) {
  const morgue = await world.queue("morgue");
  const queue = await world.queue("in", { forwardDeadLetteredMessagesTo: morgue });
  await world.send(queue, { body: "bad" });
  await world.receiver(queue).deadLetterMessage(await world.receiveOne(queue),
    { deadLetterReason: "r", deadLetterErrorDescription: "d" });
  const [found] = await comes(world, morgue, ["bad"]);
  assert.deepEqual([found.deadLetterReason, found.deadLetterErrorDescription], ["r", "d"]);
  assert.equal(found.deadLetterSource, queue);
}
