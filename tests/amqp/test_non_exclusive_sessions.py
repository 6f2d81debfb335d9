"""Non-exclusive sessions over AMQP, in the bytes that the newest .NET client sends (B9)."""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

import pytest

from onibus import Bus, Message
from onibus.core.errors import SessionLocked
from onibus.protocols.amqp import encode as to
from onibus.protocols.amqp import performatives as say
from onibus.protocols.amqp.decode import Described
from onibus.protocols.amqp.service_bus.session_receiver import SESSION_FILTER
from tests.amqp.peer import Heard, Peer, greeted
from tests.bus_helpers import MINUTE, ManualClock, bodies, pass_ms, run, send

FILTER = "com.microsoft:non-exclusive-session-filter"
#: The descriptor is a ulong of eight bytes, the list has one byte for its size.
DESCRIPTOR = bytes.fromhex("0080000000137000000e")
LOST = "com.microsoft:session-lock-lost"
LOCKED = "com.microsoft:session-cannot-be-locked"


def non_exclusive(session_id: str | None, token: UUID | None = None) -> bytes:
    """Return the filter as the client encodes it: string and uuid, or null, in a list."""
    fields = b"\x40" if session_id is None else b"\xa1" + bytes([len(session_id)])
    fields += (session_id or "").encode()
    fields += b"\x40" if token is None else b"\x98" + token.bytes
    return DESCRIPTOR + b"\xc0" + bytes([len(fields) + 1, 2]) + fields


def attach(peer: Peer, handle: int, wanted: bytes, name: str = FILTER) -> None:
    """Attach a receiver with a filter."""
    filters = to.fields({name: wanted})
    source = say.performative(say.SOURCE, [to.string("q"), *[to.NULL] * 6, filters])
    peer.attach(handle, say.RECEIVER, "q", from_=source, rcv=1)


async def granted(peer: Peer) -> tuple[str, UUID, int]:
    """Return the session, the lock token and the end of the lock of an attach's answer."""
    [answer] = await peer.hear(say.ATTACH)
    found = answer.fields[5].value[7][FILTER]
    assert isinstance(found, Described)
    assert found.descriptor == 0x137000000E
    session_id, token = found.value
    return session_id, token, answer.fields[13]["com.microsoft:locked-until-utc"]


async def refused(peer: Peer) -> str:
    """Return the condition by which an attach is refused."""
    [answer] = await peer.hear(say.DETACH)
    return answer.condition


def delivered(peer: Peer, heard: list[Heard]) -> list[UUID]:
    return [UUID(bytes_le=one.fields[2]) for one in heard]


async def held(peer: Peer, handle: int, count: int, before: int = 0) -> list[UUID]:
    """Receive messages of a session after others; return their lock tokens."""
    peer.flow(handle, count, before)
    return delivered(peer, await peer.hear(say.TRANSFER, count))


def settlement(tokens: list[UUID], status: str = "completed") -> dict[str, bytes]:
    uuids = b"".join(token.bytes for token in tokens)
    array = b"\xf0" + (5 + len(uuids)).to_bytes(4, "big") + len(tokens).to_bytes(4, "big")
    return {
        "disposition-status": to.string(status),
        "lock-tokens": array + b"\x98" + uuids,
        "session-id": to.string("s"),
    }


async def two_held(bus: Bus, peer: Peer) -> tuple[UUID, list[UUID]]:
    """Accept a session by link 0, and receive two of its three messages."""
    await send(bus, "q", *"123", session_id="s")
    attach(peer, 0, non_exclusive("s"))
    _, token, _ = await granted(peer)
    return token, await held(peer, 0, 2)


@pytest.mark.promise("B9")
@pytest.mark.parametrize("partitioned", [False, True])
@run
async def test_a_session_is_granted_with_its_lock_token(partitioned: bool) -> None:
    async with greeted(requires_session=True, enable_partitioning=partitioned) as (peer, bus):
        await send(bus, "q", "1", session_id="s")
        attach(peer, 0, non_exclusive(None))
        session_id, token, until = await granted(peer)
        assert (session_id, type(token)) == ("s", UUID)
        assert until > 0
        assert len(await held(peer, 0, 1)) == 1
        attach(peer, 1, non_exclusive("named"))
        named, other, _ = await granted(peer)
        assert (named, other != token) == ("named", True)


@pytest.mark.promise("B4", "B9")
@run
async def test_an_exclusive_session_has_no_lock_token_and_is_not_taken_over() -> None:
    async with greeted(requires_session=True) as (peer, bus):
        attach(peer, 0, to.string("s"), SESSION_FILTER)
        [answer] = await peer.hear(say.ATTACH)
        assert answer.fields[5].value[7] == {SESSION_FILTER: "s"}
        for handle, token in ((1, None), (2, uuid4())):
            attach(peer, handle, non_exclusive("s", token))
            assert await refused(peer) == LOCKED
        # Its own token proves the receiver, and takes nothing over.
        accepted = next(iter(peer.client.sessions.values())).accepted
        assert accepted is not None
        attach(peer, 3, non_exclusive("s", UUID(bytes=accepted.token)))
        assert await refused(peer) == LOCKED
        [session] = bus.sessions("q")
        assert session.lock_holder == "peer"


@pytest.mark.promise("B9")
@run
async def test_who_has_not_the_token_finds_the_session_locked() -> None:
    async with greeted(requires_session=True) as (peer, bus):
        token, _ = await two_held(bus, peer)
        attach(peer, 1, non_exclusive("s"))
        assert await refused(peer) == LOCKED
        attach(peer, 2, non_exclusive("s", uuid4()))
        assert await refused(peer) == LOCKED
        attach(peer, 3, to.string("s"), SESSION_FILTER)
        assert await refused(peer) == LOCKED
        with pytest.raises(SessionLocked):
            await bus.accept_session("q", "s")
        attach(peer, 4, non_exclusive("other", token))
        assert await refused(peer) == LOST
        # The first receiver has it still.
        assert len(await held(peer, 0, 1, before=2)) == 1


@pytest.mark.promise("B9")
@pytest.mark.parametrize("same", [True, False], ids=["one connection", "two connections"])
@run
async def test_a_session_is_taken_over_and_its_messages_are_settled_by_the_new_holder(
    same: bool,
) -> None:
    async with greeted(requires_session=True) as (first, bus):
        token, tokens = await two_held(bus, first)
        first.open_requests("q/$management")
        second = first
        if not same:
            second = Peer(bus)
            second.greet()
            second.open_requests("q/$management")
            second.heard()
        attach(second, 1, non_exclusive("s", token))
        assert (await granted(second))[:2] == ("s", token), "the token stays"
        # Only the new holder may settle; the message was delivered to the first one.
        told, _ = await first.ask(
            "update-disposition", settlement(tokens[:1]), associated_link_name=to.string("link-0")
        )
        assert (told["statusCode"], told["errorCondition"]) == (410, LOST)
        status, _ = await second.request(
            "update-disposition", settlement(tokens[:1]), associated_link_name=to.string("link-1")
        )
        assert status == 200
        # Locked messages are not delivered again, the next one is.
        second.flow(1, 1)
        [third] = await second.hear(say.TRANSFER)
        assert third.payload.endswith(b"3")
        # An abandoned message is delivered again, to the new holder.
        status, _ = await second.request(
            "update-disposition",
            settlement(tokens[1:], "abandoned"),
            associated_link_name=to.string("link-1"),
        )
        assert status == 200
        second.flow(1, 1, 1)
        [again] = await second.hear(say.TRANSFER)
        assert again.payload.endswith(b"2")


@pytest.mark.promise("B9")
@run
async def test_the_receiver_that_was_taken_over_sees_that_its_lock_was_lost() -> None:
    async with greeted(requires_session=True) as (peer, bus):
        token, tokens = await two_held(bus, peer)
        peer.open_requests("q/$management")
        attach(peer, 1, non_exclusive("s", token))
        await granted(peer)
        # Its dispositions are rejected, whatever they say.
        for delivery_id, state in enumerate((say.accepted(), say.released())):
            ids = [to.boolean(say.RECEIVER), to.uint(delivery_id), to.uint(delivery_id)]
            peer.say(say.performative(say.DISPOSITION, [*ids, to.boolean(False), state]))
            [told] = await peer.hear(say.DISPOSITION)
            assert told.fields[4].value[0].value[0] == LOST
        for operation, body in (
            ("renew-session-lock", {}),
            ("get-session-state", {}),
            ("set-session-state", {"session-state": to.binary(b"x")}),
        ):
            named = {"session-id": to.string("s"), **body}
            by = to.string("link-0")
            answer, _ = await peer.ask(operation, named, associated_link_name=by)
            assert (answer["statusCode"], answer["errorCondition"]) == (410, LOST)
            status, _ = await peer.request(
                operation, named, associated_link_name=to.string("link-1")
            )
            assert status == 200
        # Asking for messages detaches it, and that releases nothing.
        peer.flow(0, 10, count=2)
        assert await refused(peer) == LOST
        assert [one.lock_holder for one in bus.sessions("q")] == ["peer"]
        status, _ = await peer.request("update-disposition", settlement(tokens[1:]))
        assert status == 200


@pytest.mark.promise("B9")
@run
async def test_a_receive_that_waits_ends_when_its_session_is_taken_over() -> None:
    async with greeted(requires_session=True) as (peer, bus):
        attach(peer, 0, non_exclusive("s"))
        _, token, _ = await granted(peer)
        peer.flow(0, 10)
        attach(peer, 1, non_exclusive("s", token))
        assert await refused(peer) == LOST
        await send(bus, "q", "1", session_id="s")
        assert len(await held(peer, 1, 1)) == 1


@pytest.mark.promise("B9")
@run
async def test_closing_the_holder_releases_the_session_and_its_messages() -> None:
    async with greeted(requires_session=True) as (peer, bus):
        token, _ = await two_held(bus, peer)
        attach(peer, 1, non_exclusive("s", token))
        await granted(peer)
        for handle in (0, 1):
            peer.say(say.performative(say.DETACH, [to.uint(handle), to.boolean(True)]))
        await peer.hear(say.DETACH, 2)
        receiver = await bus.accept_session("q", "s")
        found = await receiver.receive(5)
        assert (bodies(found), {one.delivery_count for one in found}) == (["1", "2", "3"], {0})
        # The token is of a lock that ended.
        await receiver.close()
        attach(peer, 2, non_exclusive("s", token))
        assert await refused(peer) == LOST


@pytest.mark.promise("B9")
@run
async def test_a_lock_that_expired_is_not_taken_over() -> None:
    clock = ManualClock()
    settings = {"requires_session": True, "lock_duration_ms": MINUTE}
    async with greeted(clock=clock, **settings) as (peer, bus):
        token, _ = await two_held(bus, peer)
        await pass_ms(bus, clock, MINUTE // 2)
        attach(peer, 1, non_exclusive("s", token))
        await granted(peer)
        # It was renewed by that, for all that it holds.
        await pass_ms(bus, clock, MINUTE // 2 + 1)
        [session] = bus.sessions("q")
        assert (session.held_count, session.lock_holder) == (2, "peer")
        await pass_ms(bus, clock, MINUTE // 2)
        attach(peer, 2, non_exclusive("s", token))
        assert await refused(peer) == LOST
        attach(peer, 3, non_exclusive("s"))
        assert (await granted(peer))[1] != token


@pytest.mark.promise("B9")
@pytest.mark.parametrize(
    "wanted",
    [
        to.string("s"),
        to.NULL,
        to.list_([to.string("s"), to.NULL]),
        to.described(0x137000000F, to.list_([to.string("s")])),
        to.described(0x137000000E, to.string("s")),
        to.described(0x137000000E, to.list_([to.string("s"), to.string("token")])),
        to.described(0x137000000E, to.list_([to.uint(7), to.NULL])),
        to.described(0x137000000E, to.list_([to.NULL, to.uuid(UUID(int=7))])),
    ],
    ids=[
        "string", "null", "plain list", "descriptor", "no list", "token", "session id", "no session"
    ],
)  # fmt: skip
@run
async def test_a_filter_of_another_shape_is_rejected(wanted: bytes) -> None:
    async with greeted(requires_session=True) as (peer, bus):
        await bus.send("q", Message(body=b"1", session_id="s"))
        attach(peer, 0, wanted)
        assert await refused(peer) == "com.microsoft:argument-error"
        assert [one.lock_holder for one in bus.sessions("q")] == [None]


@pytest.mark.promise("B9")
@run
async def test_a_filter_may_be_short_and_named_by_its_symbol() -> None:
    async with greeted(requires_session=True) as (peer, _):
        name = to.symbol("com.microsoft:non-exclusive-session-filter:list")
        attach(peer, 0, b"\x00" + name + to.list_([to.string("s")]))
        assert (await granted(peer))[0] == "s"


@pytest.mark.promise("B9")
@run
async def test_both_filters_exclude_each_other_and_a_queue_without_sessions_has_none() -> None:
    async with greeted(requires_session=True) as (peer, bus):
        both: Any = to.fields({FILTER: non_exclusive("s"), SESSION_FILTER: to.string("s")})
        source = say.performative(say.SOURCE, [to.string("q"), *[to.NULL] * 6, both])
        peer.attach(0, say.RECEIVER, "q", from_=source, rcv=1)
        assert await refused(peer) == "com.microsoft:argument-error"
        await bus.create_queue("plain")
        filters = to.fields({FILTER: non_exclusive("s")})
        source = say.performative(say.SOURCE, [to.string("plain"), *[to.NULL] * 6, filters])
        peer.attach(1, say.RECEIVER, "plain", from_=source, rcv=1)
        assert await refused(peer) == "amqp:not-allowed"
