"""Groups under many receivers at once, who also give messages back, hold them on and hang up."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.bus_helpers import run
from tests.server.processes import PATIENCE_S, Served
from tests.sqs.clients import client_of, delete, get, new_fifo
from tests.sqs.still_clock import world

GROUPS = 12
EACH = 20
RECEIVERS = 32


def fill(sqs: Any, url: str) -> None:
    for n in range(EACH):
        for first in range(0, GROUPS, 6):
            entries = [
                {
                    "Id": f"e{group}",
                    "MessageBody": f"{group} {n}",
                    "MessageGroupId": f"g{group}",
                    "MessageDeduplicationId": f"{group}-{n}",
                }
                for group in range(first, first + 6)
            ]
            assert "Failed" not in sqs.send_message_batch(QueueUrl=url, Entries=entries)


class Book:
    """Who holds which group, and what of it was done, as receivers know it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._holders: dict[str, int] = {}
        self._receives = 0
        self.done: dict[str, list[int]] = defaultdict(list)
        self.faults: list[str] = []
        self.given_back = 0

    def take(self, who: int, messages: list[Any]) -> int:
        """Note what a receiver got; return which receive of all this was."""
        with self._lock:
            self._receives += 1
            before = {group: done[-1] for group, done in self.done.items()}
            for message in messages:
                group, n = message["Body"].split()
                other = self._holders.setdefault(group, who)
                if other != who:
                    self.faults.append(f"{who} got {group} {n}, which {other} holds")
                if int(n) != before.get(group, -1) + 1:
                    self.faults.append(f"{group} {n} came after {before.get(group)}")
                before[group] = int(n)
            return self._receives

    def finish(self, group: str, n: int) -> None:
        with self._lock:
            self.done[group].append(n)

    def release(self, *groups: str) -> None:
        """Said before the server is told: from then on others may have these groups."""
        with self._lock:
            for group in groups:
                self._holders.pop(group, None)

    @property
    def complete(self) -> bool:
        with self._lock:
            return sum(map(len, self.done.values())) == GROUPS * EACH


def settle(sqs: Any, url: str, messages: list[Any], book: Book, receive: int) -> None:
    """Delete messages in their order; of every third receive, abandon the last ones."""
    good = len(messages) if receive % 3 else receive // 3 % len(messages)
    groups = [message["Body"].split()[0] for message in messages]
    for at, message in enumerate(messages[:good]):
        if (receive + at) % 5 == 0:
            sqs.change_message_visibility(
                QueueUrl=url, ReceiptHandle=message["ReceiptHandle"], VisibilityTimeout=60
            )
        book.finish(groups[at], int(message["Body"].split()[1]))
        if groups[at] not in groups[at + 1 :]:
            book.release(groups[at])
        delete(sqs, url, message)
    if good < len(messages):
        book.given_back += 1
        book.release(*groups[good:])
        entries = [
            {"Id": f"e{n}", "ReceiptHandle": one["ReceiptHandle"], "VisibilityTimeout": 0}
            for n, one in enumerate(messages[good:])
        ]
        done = sqs.change_message_visibility_batch(QueueUrl=url, Entries=entries)
        assert "Failed" not in done


@pytest.mark.promise("F10")
def test_a_group_has_one_holder_and_keeps_its_order(server: Served, sqs: Any) -> None:
    url = new_fifo(sqs, VisibilityTimeout="120")
    fill(sqs, url)
    book = Book()
    deadline = time.monotonic() + PATIENCE_S

    def receiver(who: int) -> None:
        dice = random.Random(who)
        own = client_of(server.ready["sqs"])
        while not book.complete and not book.faults and time.monotonic() < deadline:
            messages = get(own, url, 1 + dice.randrange(4), WaitTimeSeconds=1)
            if messages:
                settle(own, url, messages, book, book.take(who, messages))

    with ThreadPoolExecutor(RECEIVERS) as pool:
        for future in [pool.submit(receiver, who) for who in range(RECEIVERS)]:
            future.result()
    assert book.faults == []
    # A receive gets at most four messages.
    assert book.given_back >= GROUPS * EACH // 4 // 3
    assert dict(book.done) == {str(group): list(range(EACH)) for group in range(GROUPS)}
    assert get(sqs, url) == []


@run
@pytest.mark.promise("F1", "F10")
async def test_senders_that_repeat_themselves_beside_receivers_that_are_late() -> None:
    """Each message is sent twice; a late receiver deletes nothing, and the next one continues."""
    count, groups, late = 15, 4, 3
    done: dict[str, list[int]] = defaultdict(list)
    refusals: list[str] = []
    async with world() as one:
        attributes = {"FifoQueue": "true", "VisibilityTimeout": "43200"}
        created = await one.ask("create_queue", QueueName="q.fifo", Attributes=attributes)
        url = created["QueueUrl"]

        async def sender(group: int) -> None:
            for n in range(count):
                own = {"MessageGroupId": f"g{group}", "MessageDeduplicationId": f"{group}-{n}"}
                first, again = [
                    await one.ask("send_message", QueueUrl=url, MessageBody=body, **own)
                    for body in (f"{group} {n}", "again")
                ]
                assert again["SequenceNumber"] == first["SequenceNumber"]

        async def delete_one(message: Any) -> None:
            handle = message["ReceiptHandle"]
            await one.ask("delete_message", QueueUrl=url, ReceiptHandle=handle)

        async def receiver(who: int) -> None:
            while sum(map(len, done.values())) < groups * count:
                if who < late:
                    for message in await one.receive(
                        url, MaxNumberOfMessages=1, VisibilityTimeout=1
                    ):
                        await one.pass_seconds(1)
                        # Once the next receiver has deleted it, a late delete succeeds.
                        try:
                            await delete_one(message)
                        except ClientError as error:
                            refusals.append(error.response["Error"]["Message"])
                    continue
                for message in await one.receive(url, MaxNumberOfMessages=2):
                    group, n = message["Body"].split()
                    # Before the delete: after it others may have the next one at once.
                    done[group].append(int(n))
                    await delete_one(message)

        working = [sender(group) for group in range(groups)]
        await asyncio.gather(*working, *(receiver(who) for who in range(8)))
    for group, numbers in done.items():
        assert numbers == list(range(count)), f"group {group}: once each, in order"
    for text in refusals:
        assert text.endswith("The receipt handle has expired.")
