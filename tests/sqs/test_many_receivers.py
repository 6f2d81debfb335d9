"""Groups under many receivers at once, who also give messages back, hold them on and hang up."""

from __future__ import annotations

import random
import threading
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.server.processes import Served
from tests.sqs.clients import bodies, client_of, delete, get, new_fifo, put

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
        self.done: dict[str, list[int]] = defaultdict(list)
        self.faults: list[str] = []
        self.given_back = 0

    def take(self, who: int, messages: list[Any]) -> None:
        with self._lock:
            before = {group: done[-1] for group, done in self.done.items()}
            for message in messages:
                group, n = message["Body"].split()
                other = self._holders.setdefault(group, who)
                if other != who:
                    self.faults.append(f"{who} got {group} {n}, which {other} holds")
                if int(n) != before.get(group, -1) + 1:
                    self.faults.append(f"{group} {n} came after {before.get(group)}")
                before[group] = int(n)

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


def settle(sqs: Any, url: str, messages: list[Any], book: Book, dice: Any) -> None:
    """Delete messages in their order, or stop in the middle and give the rest back."""
    good = len(messages) if dice.random() < 0.7 else dice.randrange(len(messages))
    groups = [message["Body"].split()[0] for message in messages]
    for at, message in enumerate(messages[:good]):
        if dice.random() < 0.2:
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
    deadline = time.monotonic() + 90

    def receiver(who: int) -> None:
        dice = random.Random(who)
        own = client_of(server.ready["sqs"])
        while not book.complete and not book.faults and time.monotonic() < deadline:
            messages = get(own, url, 1 + dice.randrange(4), WaitTimeSeconds=1)
            if messages:
                book.take(who, messages)
                settle(own, url, messages, book, dice)

    with ThreadPoolExecutor(RECEIVERS) as pool:
        for future in [pool.submit(receiver, who) for who in range(RECEIVERS)]:
            future.result()
    assert book.faults == []
    assert book.given_back > 10, "they did give messages back"
    assert dict(book.done) == {str(group): list(range(EACH)) for group in range(GROUPS)}
    assert get(sqs, url) == []


@pytest.mark.promise("F1", "F10")
def test_senders_who_repeat_themselves_beside_receivers_who_are_late(
    server: Served, sqs: Any
) -> None:
    """Each message is sent twice; who is late deletes nothing, and the next one goes on."""
    url = new_fifo(sqs, VisibilityTimeout="120")
    count, groups, late = 15, 4, 3
    done: dict[str, list[int]] = defaultdict(list)
    refusals: list[str] = []

    def all_done() -> bool:
        return sum(map(len, done.values())) >= groups * count

    def sender(group: int) -> None:
        own = client_of(server.ready["sqs"])
        for n in range(count):
            first = put(own, url, f"{group} {n}", f"g{group}", f"{group}-{n}")
            again = put(own, url, "again", f"g{group}", f"{group}-{n}")
            assert again["SequenceNumber"] == first["SequenceNumber"]

    def receiver(who: int) -> None:
        own = client_of(server.ready["sqs"])
        while not all_done():
            if who < late:
                for message in get(own, url, 1, WaitTimeSeconds=1, VisibilityTimeout=1):
                    time.sleep(1.5)
                    try:
                        delete(own, url, message)
                    except ClientError as error:
                        refusals.append(error.response["Error"]["Message"])
                continue
            for message in get(own, url, 2, WaitTimeSeconds=1):
                group, n = message["Body"].split()
                # Before the delete: after it others may have the next one at once.
                done[group].append(int(n))
                delete(own, url, message)

    with ThreadPoolExecutor(groups + 8) as pool:
        working = [pool.submit(sender, group) for group in range(groups)]
        working += [pool.submit(receiver, who) for who in range(8)]
        for future in working:
            future.result()
    for group, numbers in done.items():
        assert numbers == list(range(count)), f"group {group}: once each, in order"
    for text in refusals:
        assert text.endswith("The receipt handle has expired.")
    assert bodies(get(sqs, url, WaitTimeSeconds=2)) == []
