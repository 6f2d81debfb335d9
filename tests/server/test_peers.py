"""The shared connection limit: evictions, rejections and the memory of strangers."""

from __future__ import annotations

import random
from collections import defaultdict

import pytest

from onibus.core.errors import TooManyFailures
from onibus.operation.peers import MARGIN, Crowd, Peer, Peers, key_of
from onibus.security.attempts import ADDRESSES_KEPT, FailedAttempts


def joined(peers: Peers, address: str = "10.0.0.1", closed: list[Peer] | None = None) -> Peer:
    """Join a peer that leaves as soon as it is aborted."""
    peer = peers.join((address, 1))

    def abort() -> None:
        if closed is not None:
            closed.append(peer)
        peer.leave()

    peer.abort = abort
    return peer


def test_at_the_limit_the_oldest_stranger_makes_room() -> None:
    peers, closed = Peers(connections_max=3), list[Peer]()
    first, second, third = (joined(peers, closed=closed) for _ in range(3))
    first.know()
    fourth = joined(peers, closed=closed)
    assert (closed, fourth.is_rejected, peers.count) == ([second], False, 3)
    joined(peers, closed=closed)
    assert closed == [second, third]
    assert peers.evicted == 2


def test_where_nobody_is_a_stranger_the_next_is_rejected() -> None:
    peers = Peers(connections_max=2)
    for _ in range(2):
        joined(peers).know()
    rejected, closed = list[Peer](), list[Peer]()
    for _ in range(MARGIN):
        rejected.append(joined(peers, closed=closed))
    assert all(peer.is_rejected for peer in rejected)
    # Only some rejected connections are open at a time.
    assert closed == rejected[: MARGIN // 2]
    assert (peers.count, peers.has_room) == (2 + MARGIN // 2, True)


def test_who_has_most_connections_makes_room() -> None:
    peers, closed = Peers(connections_max=10), list[Peer]()
    alone = joined(peers, "10.0.0.1", closed)
    crowd = [joined(peers, "10.0.0.2", closed) for _ in range(9)]
    for number in range(20):
        crowd.append(joined(peers, "10.0.0.2", closed))
        assert closed[-1] is crowd[number]
    joined(peers, "10.0.0.3", closed)
    assert closed[-1] is crowd[20]
    assert alone not in closed


def test_nothing_is_accepted_beyond_the_margin_until_somebody_leaves() -> None:
    peers = Peers(connections_max=5)
    known = [joined(peers) for _ in range(5)]
    for peer in known:
        peer.know()
    slow = [peers.join(("10.0.0.1", 1)) for _ in range(MARGIN)]  # slow to close
    assert not peers.has_room
    resumed: list[int] = []
    peers.when_room(lambda: resumed.append(1))
    slow[0].leave()
    slow[0].leave()
    assert (peers.has_room, peers.count, resumed) == (True, 5 + MARGIN - 1, [1])
    slow[1].leave()
    assert resumed == [1]


def test_a_crowd_at_random() -> None:
    chance, crowd = random.Random(5), Crowd()
    there: dict[str, list[Peer]] = defaultdict(list)
    for _ in range(20_000):
        peers = [peer for some in there.values() for peer in some]
        if not peers or chance.random() < 0.52:
            peer = Peer(None, f"10.0.0.{chance.randrange(8)}")
            there[peer.address].append(peer)
            crowd.add(peer)
        else:
            peer = chance.choice(peers)
            there[peer.address].remove(peer)
            crowd.remove(peer)
            crowd.remove(peer)
        found = crowd.first()
        most = max(map(len, there.values()))
        assert (found is None) == (most == 0)
        if found is not None:
            assert len(there[found.address]) == most
            assert there[found.address][0] is found
        if len(peers) > 60:
            for peer in [peer for some in there.values() for peer in some]:
                crowd.remove(peer)
            there.clear()


def test_what_strangers_hold_is_bounded_together() -> None:
    peers, closed = Peers(strangers_bytes_max=1_000), list[Peer]()
    old, known, new = (joined(peers, closed=closed) for _ in range(3))
    for peer in (old, known, new):
        peer.hold(300)
    old.hold(400)
    assert (peers.held_bytes, closed) == (1_000, [])
    # The peer that has held bytes for longest is closed.
    new.hold(301)
    assert (peers.held_bytes, closed) == (601, [old])
    known.know()
    known.hold(10_000)  # known peers have a different bound
    assert peers.held_bytes == 301
    new.hold(0)
    assert peers.held_bytes == 0
    # A peer that exceeds the total is closed itself.
    new.hold(1_001)
    assert (peers.held_bytes, closed) == (0, [old, new])


def test_who_shares_an_address_with_those_that_hold_most_makes_room() -> None:
    peers, closed = Peers(strangers_bytes_max=1_000), list[Peer]()
    alone = joined(peers, "10.0.0.1", closed)
    alone.hold(200)
    crowd = [joined(peers, "10.0.0.2", closed) for _ in range(20)]
    for peer in crowd:
        peer.hold(100)
    assert closed == crowd[:12]
    alone.hold(400)
    assert closed == crowd[:14]
    assert peers.held_bytes == 1_000


@pytest.mark.parametrize(
    ("address", "key"),
    [
        (("10.1.2.3", 80), "10.1.2.3"),
        (("::ffff:10.1.2.3", 80, 0, 0), "10.1.2.3"),
        (("2001:db8:1:2:3:4:5:6", 80, 0, 0), "2001:0db8:0001:0002"),
        (("fe80::1%eth0", 80, 0, 2), "fe80:0000:0000:0000"),
        ("", ""),
        (None, ""),
    ],
)
def test_hosts_are_told_apart(address: object, key: str) -> None:
    assert key_of(address) == key


# Failed authentication


class Time:
    """A clock that is moved by hand."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_failures_are_limited_by_address() -> None:
    clock = Time()
    attempts = FailedAttempts(3, 2.0, clock)
    for _ in range(3):
        attempts.check("a")
        attempts.failed("a")
    with pytest.raises(TooManyFailures):
        attempts.check("a")
    attempts.check("b")
    clock.now += 0.5  # allows one more
    attempts.check("a")
    attempts.failed("a")
    with pytest.raises(TooManyFailures):
        attempts.check("a")
    clock.now += 60
    for _ in range(3):
        attempts.check("a")
        attempts.failed("a")
    assert attempts.refused == 2


def test_who_shows_good_credentials_is_not_limited_by_others() -> None:
    peers = Peers(attempts=FailedAttempts(2, 0.001))
    good, bad = (joined(peers) for _ in range(2))
    good.know()
    for _ in range(2):
        bad.failed()
    good.check_attempts()
    with pytest.raises(TooManyFailures):
        bad.check_attempts()
    # A known connection cannot be used to guess other keys.
    good.failed()
    with pytest.raises(TooManyFailures):
        good.check_attempts()


def test_failures_of_any_number_of_addresses_take_bounded_memory() -> None:
    attempts = FailedAttempts(2, 0.001, Time())
    for number in range(ADDRESSES_KEPT):
        attempts.failed(str(number))
        attempts.failed(str(number))
    for number in range(ADDRESSES_KEPT - 1):
        attempts.failed(f"more {number}")
    assert len(attempts._failures) == ADDRESSES_KEPT
    attempts.check("0")
    with pytest.raises(TooManyFailures):
        attempts.check(str(ADDRESSES_KEPT - 1))
