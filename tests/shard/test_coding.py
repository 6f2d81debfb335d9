"""Everything between a gateway and a shard can travel as bytes; other bytes are rejected."""

from __future__ import annotations

import random
import tracemalloc
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from onibus.core import commands as c
from onibus.core import errors
from onibus.core.arrow_block import SCHEMA
from onibus.core.errors import LockLost, OnibusError, UnknownToken
from onibus.core.handlers import HANDLERS
from onibus.core.inspection import AcceptedSession, Event, Filter, Life, NonExclusive, SessionInfo
from onibus.core.lifecycle import State
from onibus.core.log import Repair, StagedBlock
from onibus.core.message import Message, ReceivedMessage, Sent
from onibus.core.outcomes import OutcomePlace
from onibus.core.path.admit import Prepared, admit
from onibus.core.path.admit_arrow import PreparedBatch, admit_arrow
from onibus.core.path.bulk import SentRows
from onibus.core.rules.correlation import CorrelationFilter
from onibus.core.rules.rule import FalseFilter, Rule, SqlAction, SqlFilter
from onibus.core.settings import QueueSettings, SubscriptionSettings, TopicSettings
from onibus.core.staged import Change, Part, encode_part
from onibus.protocols.amqp.decode import Symbol, Timestamp
from onibus.shard.coding import (
    LOCAL,
    Malformed,
    decode_command,
    decode_error,
    decode_result,
    encode_command,
    encode_error,
    encode_result,
)

SECRET = b"s" * 32
TOKEN = b"t" * 16
SESSION = c.HeldSession("s", TOKEN)
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
VALUES = {
    "a": -1,
    "b": 1.5,
    "c": "ü",
    "d": b"\0\xff",
    "e": True,
    "f": None,
    "g": NOON,
    "h": 2**63 - 1,
}
FILTER = Filter(
    state="active",
    session_id="s",
    body_contains=b"\xff",
    enqueued_from_ms=1,
    sql="x = @x AND y < @y AND z = @z",
    sql_parameters={"@x": timedelta(hours=1), "@y": NOON, "@z": float("inf")},
    body_path="a.b[0]",
    body_equals="1",
)
RULES = [
    Rule("one", SqlFilter("x > @x", {"@x": timedelta(minutes=1)}), SqlAction("SET y = 1")),
    Rule("two", CorrelationFilter(subject="s", properties={"at": NOON, "raw": b"\xff"})),
    Rule("three", FalseFilter()),
]


def prepared() -> list[Prepared]:
    settings = QueueSettings(requires_duplicate_detection=True)
    messages = [
        Message(body=b"\xff\0", message_id="a", session_id="s", properties=VALUES),
        Message(body=b"", time_to_live_ms=5, as_sent=b"raw", dead_letter_of=(1, 2)),
    ]
    batch = [admit(message, settings, SECRET) for message in messages]
    batch[1].delay_ms = 7
    return batch


def columns() -> PreparedBatch:
    rows = {name: pa.nulls(3, SCHEMA.field(name).type) for name in SCHEMA.names} | {
        "body": pa.array([b"1", b"2", b"3"]),
        "message_id": pa.array(["x", "y", "x"]),
    }
    batch = pa.RecordBatch.from_pydict({"body": rows["body"], "message_id": rows["message_id"]})
    return admit_arrow(batch, QueueSettings(requires_duplicate_detection=True), SECRET)


def part(batch: Any = None) -> Part:
    changes = [
        Change.of(c.COMPLETE, 1, 5),
        Change.of(c.Settlement("dead-letter", reason="r", properties={"k": 1}), 0, 2**62),
    ]
    return Part(batch, changes, rename="word", only=3)


RECEIVED = ReceivedMessage(
    message=Message(body=b"\xff", properties=VALUES, message_id="m"),
    sequence_number=2**63 - 1,
    enqueued_time_ms=1_700_000_000_000,
    delivery_count=3,
    state="deferred",
    token=TOKEN,
    locked_until_ms=5,
    dead_letter_reason="r",
    was_scheduled=True,
)
REJECTED = [None, LockLost("it is gone"), UnknownToken("never issued")]

#: An example of every command that travels, and of its result.
PLAIN: list[tuple[c.Command[Any], Any]] = [
    (c.Unstage(7, [0, 1], [9]), None),
    (c.InspectStaged(7, 1), c.StagedFacts("a", [1, 2])),
    (c.ReadMessages(1, [1, 2**62]), [RECEIVED]),
    (c.ReadMessages(1, [1, 2**62], 1 << 20), [RECEIVED]),
    (c.ListForwardable(1, True, 10, 1_000, unless_held=True), [1]),
    (c.KeepDeadLetters(1, None), None),
    (c.DeadLetterAll(1, [(1, "why", "so")]), None),
    (c.FindMovable(1, [1], State.DEFERRED), [1]),
    (c.ChooseMovable(1, FILTER, State.ACTIVE, 1, 2, 3, 4), c.Chosen([1], 0)),
    (c.ListWaiting(1, 2, 3, 4), [1, 2]),
    (
        c.Receive(1, 2, True, True, 3, SESSION, 4, False, 5),
        c.Received([RECEIVED], left=4, over=True),
    ),
    (c.ReceiveFifo(1, 2, 3, "attempt", 4, 5), [RECEIVED]),
    (c.ReceiveDeferred(1, [2], True, True, SESSION, 3), [RECEIVED]),
    (c.Delete(1, [TOKEN]), [None]),
    (c.Cancel(1, [2]), None),
    (c.Undefer(1, [2]), None),
    (
        c.AcceptSession(1, "s", "me", NonExclusive(TOKEN)),
        AcceptedSession("s", TOKEN, 5, takeover=TOKEN),
    ),
    (c.RenewSession(1, SESSION), 5),
    (c.ReleaseSession(1, SESSION), None),
    (c.SetSessionState(1, SESSION, b"\xff"), None),
    (c.GetSessionState(1, SESSION), b"\xff"),
    (c.ListSessions(1), [SessionInfo("s", 1, 2, None, 3, "me", b"\xff")]),
    (c.ListSessionStates(1, 2), ["s"]),
    (c.WarmSessions(1, 2), True),
    (c.ListSessionIds(1), ["s"]),
    (c.DescribeSessions(1, ["s"]), [SessionInfo("s", 1, 2, 4, None, None, None)]),
    (c.Peek(1, FILTER, 2, 3, 4, 5, False, 6, False), c.Peeked([RECEIVED], 1, 2, 3, True)),
    (c.Tail(1, FILTER, 2, 3, 4), c.Tailed([RECEIVED], 1, 2)),
    (c.CountReasons(1, 2, 3), c.Reasons({"why": 1, "": 2}, 3)),
    (c.CountPurgeable(1, FILTER, 2, 3), c.Counted(1, 2)),
    (c.Purge(1, FILTER, 2, 3, True, 4), c.Counted(1, 2)),
    (c.ForgetIds(), None),
    (c.Claim(1, "claim/1", 2, 3, False), c.Claimed(1, 2)),
    (c.CompleteClaimed(1, "claim/1", {2**62: ("why", None)}, 3), 4),
    (c.ReleaseClaimed(1, "claim/1", None), 4),
    (c.ListClaimOwners(1), ["claim/1"]),
    (c.ListClaimed(1, "claim/1"), [1]),
    (c.IsClaimed(1, "claim/1", 2), False),
    (c.ChangeSettings(QueueSettings(fifo=True, attributes={"a": "b"})), None),
    (c.ChangeSettings(TopicSettings(enable_partitioning=True)), None),
    (c.ChangeSubscription(1, SubscriptionSettings(requires_session=True)), None),
    (c.Subscribe(1, SubscriptionSettings(), RULES), None),
    (c.SetRules(1, RULES), None),
    (c.KeepFor("reader", 1, 2), None),
    (c.KeepNoLonger("reader"), None),
    (c.SetStampsBack(), Repair(1, 2, 3)),
    (c.FindHeld(1, TOKEN, SESSION), c.FoundHeld(1, True)),
    (c.Inspect(1, 2), Life(RECEIVED, [Event("sent", 1, "x")])),
    (c.GetStamp(1, 2), 3),
    (
        c.PlanLog(1, 2, 3),
        [c.Piece(1, 2, 3, 4, payload) for payload in (None, b"x", StagedBlock(1, b"e", 2))],
    ),
    (c.PlanOutcomes(1, 2, 3), [OutcomePlace(1, 2, 3)]),
    (c.HasOutcomes(1, OutcomePlace(1, 2, 3)), True),
    (c.CheckLog(1, 2), None),
    (c.FindSince(1, 2), 3),
    (c.HasBlock(1, 2**62), True),
    (c.FindEnds(1), c.LogEnds(1, 2, 2**62)),
    (c.FindPosition(2**63 - 1), 2**62),
    (c.FindLost(1, 2), (3, 4)),
    (c.FindReach(1, 2), 3),
    (c.FindTime(1), None),
    (c.ListStamps(), c.Stamps(1, [Repair(2**62, 3, 2)])),
    (c.Measure(1), c.Measured(active=3, states=[0, 1, 2], held=1, size_bytes=5)),
    (c.MeasureIds(), 7),
    (c.CountSessions(1, 2, 3), c.SessionsInUse(1, 2**62, 3, 0)),
    (c.FindOldest(1, of_sessions=2), 2**62),
    (c.ListGroups(1, 0, 9), c.Groups({"g": c.Group(2, is_noisy=True, passed=3)}, None)),
    (c.ListNoisy(1), {}),
    (c.ListHolds(1, 2, 9), c.Holds([c.HeldMessages(2, "s", "", 3, 4)], 5)),
    (c.HasAttempt(1, "a"), False),
    (c.CheckExists(1), None),
    (c.HasForwardable(1), True),
    (c.ListDuplicates(), [("id", 1, 2), (None, 3, 4)]),
    (c.Publish(1, 2), [Sent(1), Sent(2, duplicate_of=1)]),
]
TOKENS = [TOKEN, b"u" * 16, b"v" * 16]
BY_TOKEN: list[tuple[c.Command[Any], list[Any]]] = [
    (c.Settle(1, c.Settlement("abandon", 5, properties=VALUES), TOKENS, SESSION, True), REJECTED),
    (c.Delete(1, TOKENS), REJECTED),
    (c.Renew(1, TOKENS, 5, SESSION, True), [2**40, *REJECTED[1:]]),
    (c.ChangeVisibility(1, TOKENS, [1, 2, 3], True), REJECTED),
]
OF_BATCHES: list[c.Command[Any]] = [
    c.Send(prepared()),
    c.FindRepeats(part(prepared())),
    c.CarryOut(part(prepared()), [-1, 5]),
    c.Stage(5, part(prepared()), "a"),
    c.ReadStaged(5, 1),
]


def same_errors(found: list[Any], given: list[Any]) -> bool:
    return [(type(one), str(one)) for one in found] == [(type(one), str(one)) for one in given]


def test_every_command_has_an_example() -> None:
    examples = [type(one) for one, _ in (*PLAIN, *BY_TOKEN)] + [type(one) for one in OF_BATCHES]
    # Other tests of the same process may have added their own commands.
    assert set(examples) | LOCAL == {one for one in HANDLERS if one.__module__ == c.__name__}


@pytest.mark.parametrize(("command", "result"), PLAIN, ids=lambda one: type(one).__name__)
def test_commands_and_results_arrive_as_they_are(command: c.Command[Any], result: Any) -> None:
    arrived = decode_command(encode_command(command))
    assert (type(arrived), arrived) == (type(command), command)
    kind = type(command)
    answer = decode_result(kind, encode_result(kind, result))
    assert (type(answer), answer) == (type(result), result)


@pytest.mark.parametrize(("command", "result"), BY_TOKEN, ids=lambda one: type(one).__name__)
def test_rejections_of_single_tokens_arrive(command: c.Command[Any], result: list[Any]) -> None:
    assert decode_command(encode_command(command)) == command
    kind = type(command)
    assert same_errors(decode_result(kind, encode_result(kind, result)), result)


def test_messages_travel_as_the_rows_that_stores_keep() -> None:
    batch = prepared()
    content = encode_command(c.Send(batch))
    arrived = decode_command(content)
    assert isinstance(arrived, c.Send)
    assert isinstance(arrived.batch, list)
    for one, given in zip(arrived.batch, batch, strict=True):
        assert given.row in content
        assert msgspec.structs.asdict(one) == msgspec.structs.asdict(given)
    sent = [Sent(1), Sent(2, duplicate_of=1)]
    assert decode_result(c.Send, encode_result(c.Send, sent)) == sent


def test_columns_travel() -> None:
    batch = columns()
    arrived = decode_command(encode_command(c.Send(batch)))
    assert isinstance(arrived, c.Send)
    assert isinstance(arrived.batch, PreparedBatch)
    assert arrived.batch.columns.equals(batch.columns)
    assert arrived.batch.hashes == batch.hashes
    assert list(arrived.batch.owners) == list(batch.owners)
    assert arrived.batch.ttls.tolist() == batch.ttls.tolist()
    assert arrived.batch.sizes.tolist() == batch.sizes.tolist()
    rows = SentRows(np.array([5, 6, 5], np.int64), np.array([False, False, True]))
    found = decode_result(c.Send, encode_result(c.Send, rows))
    assert isinstance(found, SentRows)
    assert found.numbers.tolist() == [5, 6, 5]
    assert found.dropped.tolist() == [False, False, True]


@pytest.mark.parametrize("batch", [None, prepared(), columns()], ids=["none", "rows", "columns"])
def test_parts_travel(batch: Any) -> None:
    given = part(batch)
    for command in (c.Stage(7, given), c.CarryOut(given, [-1]), c.FindRepeats(given)):
        arrived: Any = decode_command(encode_command(command))
        assert encode_part(arrived.part) == encode_part(given)
        assert msgspec.structs.replace(arrived, part=given) == command
    staged = decode_result(c.ReadStaged, encode_result(c.ReadStaged, given))
    assert staged is not None
    assert encode_part(staged) == encode_part(given)
    assert decode_result(c.ReadStaged, encode_result(c.ReadStaged, None)) is None
    assert decode_result(c.Stage, encode_result(c.Stage, [4, 5])) == [4, 5]


def test_renamed_messages_travel() -> None:
    batch = prepared()
    found = decode_result(c.FindRepeats, encode_result(c.FindRepeats, c.Repeats([-1, -1], batch)))
    assert isinstance(found.batch, list)
    assert [one.row for one in found.batch] == [one.row for one in batch]
    plain = c.Repeats([-1, 5])
    assert decode_result(c.FindRepeats, encode_result(c.FindRepeats, plain)) == plain


def all_errors() -> list[type[OnibusError]]:
    found = [one for one in vars(errors).values() if isinstance(one, type)]
    return [one for one in found if issubclass(one, OnibusError)]


def example(kind: type[OnibusError]) -> OnibusError:
    if issubclass(kind, errors.LogGap):
        return kind("a gap", 5, 9)
    if issubclass(kind, errors.InvalidFilter):
        return kind("not SQL", 3, "a name")
    if issubclass(kind, errors.EntityNotFound):
        return kind("no such queue", "q")
    return kind("what happened")


@pytest.mark.parametrize("kind", all_errors())
def test_errors_arrive_with_their_fields(kind: type[OnibusError]) -> None:
    given = example(kind)
    found = decode_error(encode_error(given))
    assert type(found) is kind
    assert str(found) == str(given)
    assert vars(found) == vars(given)


def test_codes_of_errors_are_distinct() -> None:
    codes = [kind.code for kind in all_errors()]
    assert len(codes) == len(set(codes))


def test_other_bytes_are_rejected_and_take_no_memory() -> None:
    """What arrives may be cut, changed or foreign: it is a command or `Malformed`."""
    chance = random.Random(21)
    contents = [encode_command(one) for one in OF_BATCHES]
    contents += [encode_command(one) for one, _ in (*PLAIN, *BY_TOKEN)]
    read = rejected = 0
    tracemalloc.start()
    for _ in range(10_000):
        content = bytearray(chance.choice(contents))
        for _ in range(chance.randrange(1, 4)):
            content[chance.randrange(len(content))] = chance.choice((0xDD, 0xDF, 0xC6, 0xFF, 0, 1))
        del content[chance.randrange(len(content) + 1) :]
        try:
            decode_command(bytes(content))
        except Malformed:
            rejected += 1
        else:
            read += 1
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert rejected > 5_000
    assert peak < 4 << 20
    for foreign in (b"", b"\xc1", b"\x92\xa4Nope\xc0", msgspec.msgpack.encode(["Receive", []])):
        with pytest.raises(Malformed):
            decode_command(foreign)
        with pytest.raises(Malformed):
            decode_error(foreign)


def test_a_command_with_a_wrong_argument_is_rejected_on_arrival() -> None:
    content = encode_command(c.Receive(1, 77)).replace(b"\xa5limit\x4d", b"\xa5limit\x00")
    with pytest.raises(Malformed, match="limit"):
        decode_command(content)


def test_values_of_amqp_types_travel_as_plain_ones() -> None:
    times = decode_command(encode_command(c.ListSessionStates(0, Timestamp(5))))
    assert isinstance(times, c.ListSessionStates)
    assert type(times.since_ms) is int
    release = decode_command(encode_command(c.ReleaseClaimed(0, Symbol("a"), None)))
    assert isinstance(release, c.ReleaseClaimed)
    assert type(release.owner) is str
