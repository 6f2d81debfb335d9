"""What one client can make the server hold, and what it is told when that is enough."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest

from onibus import Bus, Message
from onibus.core.limits import TRANSACTION_MS_MAX
from onibus.operation.peers import Bodies
from onibus.protocols.amqp import encode as to
from onibus.protocols.amqp import link as links
from onibus.protocols.amqp import performatives as say
from onibus.protocols.amqp.service_bus import client as clients
from onibus.protocols.amqp.service_bus import sections, transactions
from onibus.protocols.amqp.service_bus.requests import WAITING_BYTES_MAX
from onibus.protocols.amqp.service_bus.session_receiver import SESSION_FILTER
from onibus.security.keys import DEVELOPMENT_KEY, ROOT_NAME, AccessKey, Keyring
from onibus.security.sas import make_token
from tests.amqp.peer import Peer, greeted
from tests.amqp.raw_client import attach, message, transfer
from tests.bus_helpers import ManualClock, pass_ms, run


@run
async def test_a_refused_send_holds_nothing() -> None:
    async with greeted(requires_session=True) as (peer, bus):
        peer.attach(0, say.SENDER, "q")
        peer.heard()
        peer.say(transfer(0, 1, message(b"x" * 1_000)))
        peer.say(transfer(0, 3, b"no message at all"))
        await bus.change_queue("q", status="send-disabled")
        peer.say(transfer(0, 5, message(b"x" * 1_000)))
        refused = await peer.hear(say.DISPOSITION, 3)
        assert {one.fields[4].descriptor for one in refused} == {say.REJECTED}
        assert peer.connection.held_bytes == 0


COORDINATOR = say.performative(say.COORDINATOR, [])


@run
async def test_who_shows_no_token_is_given_little() -> None:
    async with Bus.ephemeral() as bus:
        peer = Peer(bus, Keyring(development=True))
        peer.greet()
        peer.attach(0, say.RECEIVER, "$cbs")
        peer.attach(1, say.SENDER, "$cbs")
        peer.flow(0, 10)
        peer.heard()
        # More than a token: refused unread, in one frame or in many.
        peer.say(transfer(1, 0, bytes(100_000)))
        for _ in range(3):
            peer.say(transfer(1, 1, bytes(50_000), more=True))
            assert peer.connection.held_bytes <= 64 << 10
        peer.say(transfer(1, 1, b""))
        for refused in await peer.hear(say.DISPOSITION):
            told = refused.fields[4].value[0].value[0]
            assert told == "amqp:link:message-size-exceeded"
        peer.say(attach(2, say.SENDER, "me", "", terminus=COORDINATOR))
        *_, detached = peer.heard()
        assert (detached.code, detached.condition) == (say.DETACH, "amqp:unauthorized-access")
        for handle in range(3, 16):
            peer.attach(handle, say.SENDER, "$cbs")
        assert all(one.code != say.END for one in peer.heard())
        peer.attach(16, say.SENDER, "$cbs")
        *_, ended = peer.heard()
        assert (ended.code, ended.condition) == (say.END, "amqp:resource-limit-exceeded")
        assert peer.connection.link_count == 0


@run
async def test_links_that_are_not_attached_are_forgotten() -> None:
    async with greeted(requires_session=True) as (peer, _):
        for handle, (role, place) in enumerate(
            [
                (say.RECEIVER, "nowhere"),
                (say.RECEIVER, "nowhere/$management"),
                (say.SENDER, "nowhere"),
                (say.RECEIVER, "q"),
            ]
        ):
            peer.attach(handle, role, place)
        peer.attach(4, say.RECEIVER, "q/$transfer/$deadletterqueue")
        peer.say(say.detach(4, None))
        assert sum(one.code == say.DETACH for one in peer.heard()) == 5
        assert peer.client._links == {}
        # A session that nobody has yet, until the server wants the link no more.
        wanted = to.fields({SESSION_FILTER: to.NULL})
        source = say.performative(say.SOURCE, [to.string("q"), *[to.NULL] * 6, wanted])
        peer.say(attach(9, say.RECEIVER, "q", "me", from_=source))
        [link] = peer.client._links
        link.detach("amqp:unauthorized-access", "the key was replaced")
        assert peer.client._links == {}
        assert [one.code for one in peer.heard()] == [say.ATTACH, say.DETACH]


@run
async def test_what_could_not_be_forwarded_are_not_the_dead_letters() -> None:
    async with greeted() as (peer, bus):
        await bus.send("q", Message(body=b"x"))
        async with bus.receiver("q") as receiver:
            [held] = await receiver.receive()
            await receiver.dead_letter(held)
        peer.open_requests("q/$transfer/$deadletterqueue/$management")
        much = {"message-count": to.int_(100), "enqueued-time-utc": to.timestamp(1 << 45)}
        status, told = await peer.request("batch-delete-messages", much)
        assert (status, told) == (200, {"message-count": 0})
        numbers = {"sequence-numbers": to.longs([held.sequence_number])}
        status, _ = await peer.request("receive-by-sequence-number", numbers)
        assert status == 404
        # Beside it: there they are.
        peer.open_requests("q/$deadletterqueue/$management", 102)
        status, told = await peer.request("batch-delete-messages", much, 102)
        assert (status, told) == (200, {"message-count": 1})


@run
async def test_requests_wait_for_room_for_their_answers() -> None:
    async with greeted() as (peer, bus):
        await bus.send("q", Message(body=b"x" * 200_000))
        peer.open_requests("q/$management")
        peek = {"from-sequence-number": to.long(0), "message-count": to.int_(1)}
        content = b"".join(peer.framed_request("peek-message", peek) for _ in range(50))
        peer.feed(content)
        answers = 0
        while peer.connection.is_behind:
            before, answers = answers, answers + _whole(peer)
            assert 0 < answers - before < 10
            peer.connection.read_on(0.0)
        assert answers + _whole(peer) == 50


@run
async def test_answers_that_are_not_taken_have_a_bound() -> None:
    async with greeted() as (peer, bus):
        await bus.send("q", Message(body=b"x" * 200_000))
        peer.open_requests("q/$management")
        # There is credit for all of them, but no window: no frame more is taken.
        peer.say(say.flow(0, 0, 0))
        peek = {"from-sequence-number": to.long(0), "message-count": to.int_(1)}
        asked, heard = 0, peer.heard()
        while all(one.code != say.DETACH for one in heard):
            peer.say_request("peek-message", peek)
            asked += 1
            assert peer.connection.unsent_bytes < WAITING_BYTES_MAX + 300_000
            heard = peer.heard()
            assert all(one.code != say.TRANSFER for one in heard)
            assert asked < 99
        assert asked > 10
        [ended] = [one for one in heard if one.code == say.DETACH]
        assert (ended.fields[0], ended.condition) == (101, "amqp:resource-limit-exceeded")
        # What was asked before is answered as soon as it is taken.
        for at in range(0, 1_000, 50):
            peer.say(say.flow(at, 50, 0))
            peer.heard()
        assert peer.connection.unsent_bytes == 0


@run
async def test_a_window_is_opened_for_all_links() -> None:
    async with greeted() as (peer, bus):
        await bus.send("q", Message(body=b"x"))
        peer.attach(0, say.RECEIVER, "q")
        peer.attach(1, say.RECEIVER, "q/$deadletterqueue")
        peer.say(say.flow(0, 0, 0, (0, 0, 5, False)))
        assert all(one.code != say.TRANSFER for one in peer.heard())
        peer.say(say.flow(0, 9, 0, (1, 0, 5, False)))
        assert len(await peer.hear(say.TRANSFER)) == 1


@run
async def test_deliveries_that_are_not_whole_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "UNFINISHED_BYTES_MAX", 10_000)
    async with greeted() as (peer, bus):
        for handle in range(12):
            peer.attach(handle, say.SENDER, "q")
        peer.heard()
        for handle in range(12):
            peer.say(transfer(handle, handle, message(b"x" * 1_000), more=True))
            assert peer.connection.held_bytes <= 10_000
        ended = [one for one in peer.heard() if one.code == say.DETACH]
        assert [one.fields[0] for one in ended] == [9, 10, 11]
        assert {one.condition for one in ended} == {"amqp:resource-limit-exceeded"}
        # The others go on.
        peer.say(transfer(0, 0, b""))
        await peer.hear(say.DISPOSITION)
        assert bus.queue("q").active_count == 1
        peer.connection.lost()
        assert (peer.connection.held_bytes, peer.connection.unfinished_bytes) == (0, 0)


@run
async def test_incomplete_deliveries_are_rejected_while_all_clients_hold_too_much() -> None:
    bodies = Bodies(10_000)
    async with greeted() as (peer, bus), greeted() as (other, _):
        for one in (peer, other):
            one.connection.bodies = bodies
            one.attach(0, say.SENDER, "q")
            one.attach(1, say.SENDER, "q")
            one.heard()
            one.say(transfer(0, 0, message(b"x" * 6_000), more=True))
        assert bodies.held_bytes > bodies.most
        other.say(transfer(1, 1, message(b"x" * 1_000), more=True))
        [ended] = [one for one in other.heard() if one.code == say.DETACH]
        assert (ended.fields[0], ended.condition) == (1, "amqp:resource-limit-exceeded")
        # Complete deliveries are stored and release memory.
        peer.say(transfer(1, 1, message(b"y")))
        await peer.hear(say.DISPOSITION)
        peer.say(transfer(0, 0, b""))
        await peer.hear(say.DISPOSITION)
        assert bus.queue("q").active_count == 2
        other.connection.lost()
        assert bodies.held_bytes == 0


@run
async def test_who_shows_no_token_has_few_sessions() -> None:
    async with Bus.ephemeral() as bus:
        await bus.create_queue("q")
        peer = Peer(bus, Keyring(development=True))
        peer.greet()
        for channel in range(1, 17):
            peer.begin(channel)
        *_, closed = peer.heard()
        assert (closed.code, closed.condition) == (say.CLOSE, "amqp:resource-limit-exceeded")
        known = Peer(bus, Keyring(development=True))
        known.greet()
        until = int(time.time()) + 600
        known.client.put_token("q", make_token("sb://x/q", ROOT_NAME, DEVELOPMENT_KEY, until))
        for channel in range(1, 100):
            known.begin(channel)
        assert {one.code for one in known.heard()} == {say.OPEN, say.BEGIN}


@run
async def test_coordinators_end_with_what_allowed_them(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Bus.ephemeral() as bus:
        await bus.create_queue("q")
        keys = Keyring([AccessKey(name="one", primary="a" * 16)])
        peer = Peer(bus, keys)
        peer.greet()
        now = int(time.time())

        def begin(until: int) -> None:
            peer.client.put_token("q", make_token("sb://x/", "one", "a" * 16, until))
            peer.say(attach(1, say.SENDER, "me", "", terminus=COORDINATOR))
            peer.heard()
            _declare(peer, 1)

        def ended() -> None:
            [told] = [one for one in peer.heard() if one.code == say.DETACH]
            assert told.condition == "amqp:unauthorized-access"
            assert not peer.client.transactions._open
            assert not peer.client._links
            peer.say(say.detach(1, None))

        begin(now + 60)
        monkeypatch.setattr(clients, "time", SimpleNamespace(time=lambda: now + 61.0))
        peer.client.check_tokens()
        ended()
        monkeypatch.undo()
        begin(now + 600)
        peer.client.ask_again()
        assert peer.heard() == []
        keys.replace([AccessKey(name="one", primary="b" * 16)])
        peer.client.ask_again()
        ended()


def _whole(peer: Peer) -> int:
    """Return how many deliveries have ended in what was heard."""
    return sum(one.code == say.TRANSFER and not one.fields[5] for one in peer.heard())


def _declare(peer: Peer, delivery_id: int) -> bytes:
    """Open a transaction; return a state that names it."""
    asked = sections.section(sections.VALUE, say.performative(say.DECLARE, [to.NULL]))
    peer.say(transfer(1, delivery_id, asked))
    [told] = [one for one in peer.heard() if one.code == say.DISPOSITION]
    assert told.fields[4].descriptor == say.DECLARED
    name = to.binary(told.fields[4].value[0])
    return say.performative(say.TRANSACTIONAL, [name, to.NULL])


@run
async def test_open_transactions_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transactions, "OPEN_BYTES_MAX", 10_000)
    clock = ManualClock()
    async with greeted(clock=clock) as (peer, bus):
        peer.attach(0, say.SENDER, "q")
        peer.say(attach(1, say.SENDER, "me", "", terminus=COORDINATOR))
        peer.heard()
        states = [_declare(peer, 1), _declare(peer, 3)]
        for at, state in enumerate([*states, states[1]]):
            peer.say(transfer(0, 11 + at, message(b"x" * 4_000), state=state))
        outcomes = [one.fields[4] for one in peer.heard() if one.code == say.DISPOSITION]
        assert [one.descriptor for one in outcomes] == [say.TRANSACTIONAL] * 2 + [say.REJECTED]
        assert outcomes[2].value[0].value[0] == "amqp:resource-limit-exceeded"
        # What has run out is dropped when the next one is declared, and counts no more.
        await pass_ms(bus, clock, TRANSACTION_MS_MAX)
        state = _declare(peer, 5)
        for at in range(2):
            peer.say(transfer(0, 21 + 2 * at, message(b"x" * 4_000), state=state))
        outcomes = [one.fields[4] for one in peer.heard() if one.code == say.DISPOSITION]
        assert [one.descriptor for one in outcomes] == [say.TRANSACTIONAL] * 2
        assert len(peer.client.transactions._open) == 1


@pytest.mark.promise("B4")
@run
async def test_who_waits_for_a_session_is_answered_before_its_timeout() -> None:
    clock = ManualClock()
    async with greeted(clock=clock, requires_session=True) as (peer, bus):
        source = [to.string("q"), *[to.NULL] * 6, to.fields({SESSION_FILTER: to.NULL})]
        given = {"com.microsoft:timeout": to.uint(60_000)}
        peer.say(
            attach(
                *(9, say.RECEIVER, "q", "me"),
                from_=say.performative(say.SOURCE, source),
                properties=given,
            )
        )
        await pass_ms(bus, clock, 58_999)
        assert peer.heard() == []
        await pass_ms(bus, clock, 1)
        _, refused = peer.heard()
        assert refused.condition == "com.microsoft:timeout"
