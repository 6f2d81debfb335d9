"""Topics: sends to 100 subscriptions, of which 10 take each message, against a plain queue."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator

from bench.measure import BODY_BYTES, ROUNDS, Figure, folder, median, opened, rate, send_singly
from onibus import Bus, Message
from onibus.core.rules.rule import Rule, SqlFilter

COUNT = 5_000
SUBSCRIPTIONS = 100
MATCHING = 10


def _messages(prefix: str, count: int) -> Iterator[Message]:
    """Messages of 1 KB; each tenth of the subscriptions wants one of ten colours."""
    body = os.urandom(BODY_BYTES)
    groups = SUBSCRIPTIONS // MATCHING
    return (
        Message(
            body=body,
            message_id=f"{prefix}-{number}",
            properties={"colour": f"colour-{number % groups}", "weight": number % 100},
        )
        for number in range(count)
    )


async def _subscribe(bus: Bus) -> None:
    for number in range(SUBSCRIPTIONS):
        wanted = f"colour = 'colour-{number % (SUBSCRIPTIONS // MATCHING)}' AND weight >= 0"
        await bus.create_subscription("topic", f"s{number}", rules=[Rule("r", SqlFilter(wanted))])


async def _rounds(rounds: int) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {"queue": [], "topic": []}
    with folder() as path:
        async with opened(path / "queue") as queue, opened(path / "topic") as topic:
            await queue.create_queue("queue", requires_duplicate_detection=True)
            await topic.create_topic("topic", requires_duplicate_detection=True)
            await _subscribe(topic)
            for number in range(rounds + 1):
                for name, bus in (("queue", queue), ("topic", topic)):
                    work = send_singly(bus, name, _messages(f"{name}-{number}", COUNT))
                    speed = await rate(COUNT, work)
                    # The first round is for warming up.
                    if number:
                        found[name].append(speed)
    return found


def measure(rounds: int = ROUNDS) -> list[Figure]:
    """Return the figure of topics."""
    found = asyncio.run(_rounds(rounds))
    queue, topic = median(found["queue"]), median(found["topic"])
    return [
        Figure(
            f"sends to {SUBSCRIPTIONS} subscriptions, {MATCHING} match, of a queue's",
            100 * topic / queue,
            25,
            "%",
            note=f"{topic:,.0f}/s against {queue:,.0f}/s",
        )
    ]
