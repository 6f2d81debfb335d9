"""Fair delivery in one partition: noisy groups, the order of messages, and the rows it reads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from random import Random
from typing import Any

import pytest

from onibus.core.errors import InvalidArgument
from onibus.core.fair_queue import FairQueue
from onibus.core.invariants import violations
from onibus.core.limits import FAIR_GROUPS_A_SECOND as GROUPS_A_SECOND
from onibus.core.limits import FAIR_ROWS_READ_MAX as ROWS_READ_MAX
from onibus.core.limits import NOISY_SILENCE_MS as SILENCE_MS
from onibus.core.log import Log
from onibus.core.message import ReceivedMessage
from onibus.core.noise import CROWD, WINDOW_MS
from onibus.core.path.expire import pass_time
from onibus.core.settings import QueueSettings, change, make
from onibus.core.subscription import Subscription
from tests.core.partition_helpers import Bench

HOUR = 3_600_000
pytestmark = pytest.mark.promise("B10")


class Fair(Bench):
    """A queue with fair delivery; bodies name groups."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(fair_delivery=True, lock_duration_ms=300_000, **settings)

    def put(self, group: str | None, count: int = 1) -> None:
        """Send messages of one group, in one block."""
        body = (group or "-").encode()
        self.send(*[body] * count, partition_key=group)

    def get(self, limit: int = 1) -> list[str]:
        """Receive and keep; return the groups."""
        return names(self.receive(limit))

    @property
    def queue(self) -> FairQueue:
        ready = self.partition.subscription.ready
        assert isinstance(ready, FairQueue)
        return ready

    def noisy(self) -> set[str]:
        return set(self.queue.noisy(self.now))

    def pass_ms(self, ms: int) -> None:
        self.now += ms
        pass_time(self.partition, self.now, self.now, self.out)
        self.commit()

    def set(self, **given: Any) -> None:
        self.settings = change(self.settings, given)
        self.partition.change_settings(self.settings, self.now, self.out)
        self.commit()


def names(messages: list[ReceivedMessage]) -> list[str]:
    return [message.body.decode() for message in messages]


def test_a_crowd_in_flight_is_noisy_and_comes_after_quiet_groups() -> None:
    bench = Fair()
    bench.put("loud", 100)
    assert bench.get(CROWD) == ["loud"] * CROWD
    bench.put("b")
    bench.put(None)
    bench.put("c", 2)
    assert bench.get(5) == ["b", "-", "c", "c", "loud"]
    assert bench.noisy() == {"loud"}


def test_one_less_is_no_crowd() -> None:
    bench = Fair()
    bench.put("loud", 100)
    assert bench.get(CROWD - 1) == ["loud"] * (CROWD - 1)
    bench.put("b")
    assert bench.get() == ["loud"]


def test_a_tenth_of_what_is_in_flight_is_not_noisy_yet() -> None:
    bench = Fair()
    for group in "abcdefghij":
        bench.put(group, CROWD)
    bench.get(10 * CROWD)
    bench.put("a")
    bench.put("new")
    assert bench.noisy() == set(), "each of ten groups has exactly a tenth"
    (done,) = [message for message in bench.receive(1) if message.body == b"a"]
    assert bench.noisy() == {"a"}
    bench.complete(done)
    assert bench.noisy() == set()


def test_slow_messages_are_noisy_though_they_are_few() -> None:
    bench = Fair()
    for group in [*"abcdefghijkl", "slow"]:
        bench.put(group, 3)
    received = [message for _ in range(3) for message in bench.receive(13)]
    slow = [message for message in received if message.body == b"slow"]
    bench.pass_ms(1_000)
    bench.complete(*[message for message in received if message not in slow])
    bench.put("slow")
    bench.put("a")
    bench.pass_ms(1_000)
    assert bench.noisy() == {"slow"}, "6 of 42 seconds; each other group has 3"
    assert bench.get() == ["a"]


def test_the_time_of_released_messages_counts_for_a_minute() -> None:
    bench = Fair()
    bench.put("slow", 2)
    (message,) = bench.receive()
    bench.pass_ms(5_000)
    bench.complete(message)
    bench.put("a")
    bench.pass_ms(WINDOW_MS)
    assert bench.noisy() == {"slow"}
    bench.pass_ms(1_000)
    assert bench.noisy() == set()
    assert bench.get(2) == ["slow", "a"]


def test_a_message_without_a_group_is_its_own_group() -> None:
    bench = Fair()
    bench.put(None, 2 * CROWD)
    bench.get(CROWD)
    bench.pass_ms(2_000)
    bench.put("a")
    assert bench.noisy() == set()
    assert bench.get(2) == ["-", "-"]


def test_of_noisy_groups_the_one_with_fewest_in_flight_comes_first() -> None:
    bench = Fair()
    bench.put("more", CROWD + 4)
    bench.put("less", CROWD)
    bench.get(2 * CROWD + 4)
    for group in ("more", "less"):
        bench.put(group, 5)
    bench.put("quiet")
    assert bench.noisy() == {"more", "less"}
    assert bench.get(8) == ["quiet", *["less"] * 4, "more", "less", "more"]


def test_silence_ends_it() -> None:
    bench = Fair(max_delivery_count=100)
    bench.put("loud", 100)
    held = bench.receive(CROWD)
    bench.pass_ms(SILENCE_MS - 1)
    bench.put("a")
    assert bench.noisy() == {"loud"}
    # A send of another group does not count.
    bench.pass_ms(0)
    bench.now += 1
    assert bench.noisy() == set()
    bench.put("loud")
    assert bench.noisy() == {"loud"}
    bench.complete(*held)


def test_without_a_backlog_no_group_is_noisy() -> None:
    bench = Fair()
    bench.put("loud", CROWD)
    bench.get(CROWD)
    assert bench.noisy() == set()
    bench.put("loud")
    assert bench.noisy() == {"loud"}


def test_a_group_that_is_quiet_again_is_delivered_in_order() -> None:
    bench = Fair()
    bench.put("loud", CROWD)
    held = bench.receive(CROWD)
    bench.put("loud", 3)
    bench.put("a", 2)
    assert bench.get() == ["a"], "the three were passed"
    bench.put("loud")
    bench.complete(*held)
    assert bench.noisy() == set()
    assert bench.get(10) == ["loud", "loud", "loud", "a", "loud"]


@pytest.mark.promise("B8")
def test_a_restart_counts_what_is_in_flight_again() -> None:
    bench = Fair()
    bench.put("loud", 100)
    bench.get(CROWD)
    bench.put("a")
    bench.restart()
    assert bench.noisy() == {"loud"}
    assert bench.get(2) == ["a", "loud"]


def test_one_receive_reads_a_bounded_number_of_rows_and_each_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Fair()
    bench.put("loud", CROWD)
    bench.get(CROWD)
    for _ in range(5):
        bench.put("loud", ROWS_READ_MAX // 2)
    bench.put("a")
    read: list[int] = []
    rows = Log.rows

    def counted(self: Log, ordinals: Sequence[int]) -> Any:
        read.extend(ordinals)
        return rows(self, ordinals)

    monkeypatch.setattr(Log, "rows", counted)
    calls = []
    while True:
        before = len(read)
        received = bench.get()
        calls.append(len(read) - before - 1)
        if received == ["a"]:
            break
    assert len(calls) == 3
    assert max(calls) <= ROWS_READ_MAX
    views = len(calls)
    assert len(read) - views == 5 * (ROWS_READ_MAX // 2) + 1, "each row was looked at once"


def test_large_rows_bound_a_receive_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onibus.core.fair_queue.FAIR_BYTES_READ_MAX", 100_000)
    bench = Fair()
    bench.put("loud", CROWD)
    bench.get(CROWD)
    for _ in range(40):
        bench.send(b"x" * 10_000, partition_key="loud")
    bench.put("a")
    assert bench.get() != ["a"], "it is behind more than one receive reads"
    assert bench.queue.noisy(bench.now)["loud"][1] < 40


def test_switching_it_off_and_on_loses_nothing() -> None:
    bench = Fair()
    bench.put("loud", 100)
    bench.get(CROWD)
    bench.put("a")
    assert bench.get() == ["a"]
    bench.set(fair_delivery=False)
    bench.put("a")
    assert bench.get(100) == ["loud"] * (100 - CROWD) + ["a"]
    bench.put("loud")
    bench.set(fair_delivery=True)
    assert bench.get() == ["loud"]
    assert not list(violations(bench.partition))


def test_it_is_for_queues_without_sessions() -> None:
    for given in ({"requires_session": True}, {"fifo": True}):
        with pytest.raises(InvalidArgument, match="without sessions"):
            make({"fair_delivery": True, **given}, QueueSettings)


def test_many_groups_keep_few_times() -> None:
    bench = Fair()
    count = 3 * GROUPS_A_SECOND
    for start in range(0, count, 1_000):
        for one in range(start, start + 1_000):
            bench.send(b"x", partition_key=f"g{one}")
    received = bench.receive(count)
    bench.pass_ms(1_000)
    bench.complete(*received)
    bench.put("a")
    bench.pass_ms(1_000)
    bench.get()
    noise = bench.queue.noise
    assert len(noise._spent) <= GROUPS_A_SECOND
    assert len(noise._active) <= GROUPS_A_SECOND + 1


def settle(bench: Fair, random: Random, held: list[ReceivedMessage]) -> list[str]:
    """Complete some of what is held."""
    random.shuffle(held)
    done = [held.pop() for _ in range(random.randrange(len(held) + 1))]
    bench.complete(*done)
    return names(done)


@pytest.mark.parametrize("seed", range(12))
def test_nothing_is_lost_or_delivered_twice_and_no_group_starves(seed: int) -> None:
    """Quiet groups end, so noisy ones are served to the end, whatever else happens."""
    random = Random(seed)
    bench = Fair(max_delivery_count=1_000)
    sent: Counter[str] = Counter()
    done: Counter[str] = Counter()
    held: list[ReceivedMessage] = []
    for _ in range(120):
        for _ in range(random.randrange(3)):
            group = random.choice(("loud", "loud", "loud", "b", "c", "d", None))
            count = random.choice((1, 5, 40)) if group == "loud" else 1
            bench.put(group, count)
            sent[group or "-"] += count
        received = bench.receive(random.choice((1, 2, 10)))
        numbers = [one.sequence_number for one in (*held, *received)]
        assert len(set(numbers)) == len(numbers), "held twice"
        held += received
        if random.random() < 0.4:
            done.update(settle(bench, random, held))
        bench.pass_ms(random.choice((1, 50, 1_000, 7_000)))
        if random.random() < 0.05:
            bench.restart()
        assert not list(violations(bench.partition))
        held = [one for one in held if is_held(bench.partition.subscription, one)]
    while received := bench.receive(10):
        done.update(names(received))
        bench.complete(*received)
    bench.pass_ms(HOUR)
    while received := bench.receive(10):
        done.update(names(received))
        bench.complete(*received)
    assert done == sent


def is_held(subscription: Subscription, message: ReceivedMessage) -> bool:
    assert message.token is not None
    return bool(subscription.held_ordinal(message.token))
