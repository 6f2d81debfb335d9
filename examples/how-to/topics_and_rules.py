"""Send one message to many subscriptions: python examples/how-to/topics_and_rules.py"""

import asyncio
import tempfile
import time

from onibus import Bus, CorrelationFilter, Filter, Message, Rule, SqlAction, SqlFilter, errors

BILLING = "orders/subscriptions/billing"
ARCHIVE = "orders/subscriptions/archive"
LARGE = "orders/subscriptions/large"


async def publish(bus: Bus) -> None:
    """Create a topic with two subscriptions; both get the message."""
    await bus.create_topic("orders", requires_duplicate_detection=True)
    assert await bus.create_subscription("orders", "billing") == BILLING
    await bus.create_subscription("orders", "archive", default_time_to_live_ms=86_400_000)

    sent = await bus.send("orders", Message(body=b"3 apples", message_id="o-1"))
    for name in (BILLING, ARCHIVE):
        async with bus.receiver(name) as receiver:
            (message,) = await receiver.receive()
            assert message.sequence_number == sent.sequence_number
            await receiver.complete(message)


async def select(bus: Bus) -> None:
    """Create a subscription that gets large or important orders."""
    await bus.create_subscription(
        "orders",
        "large",
        rules=[
            Rule("many", SqlFilter("quantity >= @limit", {"@limit": 100})),
            Rule("important", CorrelationFilter(subject="important")),
        ],
    )
    await bus.send_batch(
        "orders",
        [
            Message(body=b"small", message_id="o-2", properties={"quantity": 1}),
            Message(body=b"many", message_id="o-3", properties={"quantity": 500}),
            Message(body=b"urgent", message_id="o-4", subject="important"),
        ],
    )
    assert [message.body for message in bus.peek(LARGE)] == [b"many", b"urgent"]


async def change_rules(bus: Bus) -> None:
    """Delete, create and replace rules."""
    await bus.delete_rule(LARGE, "important")
    await bus.create_rule(LARGE, Rule("fruit", SqlFilter("kind LIKE 'apple%'")))
    await bus.change_rule(LARGE, Rule("fruit", SqlFilter("kind LIKE 'pear%'")))
    assert [rule.name for rule in bus.subscription(LARGE).rules] == ["many", "fruit"]


async def modify(bus: Bus) -> None:
    """Change the copy of one subscription with an action."""
    action = SqlAction("SET quantity = quantity / 2; SET sys.Subject = 'halved'; REMOVE kind")
    rule = Rule("half", SqlFilter("quantity > 10"), action)
    halved = await bus.create_subscription("orders", "halved", rules=[rule])
    order = Message(message_id="o-5", properties={"quantity": 500, "kind": "apple"})
    await bus.send("orders", order)

    (copy,) = bus.peek(halved)
    assert copy.properties == {"quantity": 250, "RuleName": "half"}
    assert copy.message.subject == "halved"
    assert bus.peek(BILLING)[-1].properties == {"quantity": 500, "kind": "apple"}


async def fail_in_a_filter(bus: Bus) -> None:
    """Divide by zero in a filter: that subscription dead-letters the message."""
    rule = Rule("ratio", SqlFilter("100 / quantity > 5"))
    risky = await bus.create_subscription("orders", "risky", rules=[rule])
    await bus.send("orders", Message(message_id="o-6", properties={"quantity": 0}))
    (dead,) = bus.peek(risky, dead_letters=True)
    assert dead.dead_letter_reason == "FilterEvaluationException"


async def use_sessions(bus: Bus) -> None:
    """Receive one customer's messages in order."""
    ordered = await bus.create_subscription("orders", "ordered", requires_session=True)
    await bus.send("orders", Message(body=b"step 1", message_id="o-7", session_id="customer 5"))
    async with await bus.accept_session(ordered, "customer 5") as session:
        (step,) = await session.receive()
        await session.complete(step)


async def schedule(bus: Bus) -> None:
    """Schedule a message on the topic, and cancel it there."""
    in_an_hour = time.time_ns() // 1_000_000 + 3_600_000
    number = await bus.schedule("orders", Message(body=b"later", message_id="o-8"), in_an_hour)
    assert bus.topic("orders").scheduled_count == 1
    assert [message.state for message in bus.peek("orders")] == ["scheduled"]
    await bus.cancel_scheduled("orders", [number])


async def clean_up(bus: Bus) -> None:
    """Print the counts, then delete a subscription and the topic."""
    for name in bus.topic("orders").subscriptions:
        info = bus.subscription(name)
        print(name, info.active_count, info.dead_lettered_count)

    await bus.purge(ARCHIVE, Filter(state="active"))
    await bus.delete_subscription(LARGE)
    try:
        bus.peek(LARGE)
    except errors.EntityNotFound as error:
        print("rejected:", error)
    await bus.delete_topic("orders")
    assert bus.topics() == []


async def main() -> None:
    """Run every part in a temporary directory."""
    with tempfile.TemporaryDirectory() as directory:
        async with Bus.open(directory) as bus:
            await publish(bus)
            await select(bus)
            await change_rules(bus)
            await modify(bus)
            await fail_in_a_filter(bus)
            await use_sessions(bus)
            await schedule(bus)
            await clean_up(bus)


if __name__ == "__main__":
    asyncio.run(main())
