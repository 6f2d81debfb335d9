"""Commands: everything that can be asked of a partition, and what comes back.

A command is data: a frozen struct that `Partition.apply` carries out. Its arguments are checked
when it is built, so a mistake in a protocol is an error for its caller and never reaches a
partition. A rejected command has changed nothing, and a `Query` never changes anything.

A command on the messages of one subscription names it by its number, which is 0 for a queue.
`answered_early` says of a command that its response need not wait for the disk: what a crash can
lose of it is a lock that ends early.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, NamedTuple, TypeAlias, TypeVar

import msgspec

from onibus.core.checks import check_properties, check_text, check_whole
from onibus.core.errors import InvalidArgument, Refused, UnknownToken
from onibus.core.holds import TOKEN
from onibus.core.inspection import (
    AcceptedSession,
    Filter,
    Life,
    NonExclusive,
    SessionInfo,
    check_filter,
)
from onibus.core.lifecycle import State
from onibus.core.limits import (
    BATCH_COUNT_MAX,
    ID_LENGTH_MAX,
    NUMBERS_MAX,
    REASON_LENGTH_MAX,
    SESSION_STATE_BYTES_MAX,
    VISIBILITY_MS_MAX,
)
from onibus.core.log import Repair, StagedBlock
from onibus.core.message import ReceivedMessage, Sent, encode_properties
from onibus.core.outcomes import OutcomePlace
from onibus.core.rules.rule import Rule
from onibus.core.settings import LogSettings, SubscriptionSettings

if TYPE_CHECKING:
    from onibus.core.path.admit import Prepared
    from onibus.core.path.admit_arrow import PreparedBatch
    from onibus.core.path.bulk import SentRows
    from onibus.core.path.plan import Plan
    from onibus.core.staged import Part

R = TypeVar("R", covariant=True)

#: Admitted messages, one by one or in columns.
Batch: TypeAlias = "list[Prepared] | PreparedBatch"
#: The result of each message of a batch, one by one or in columns.
Stored: TypeAlias = "list[Sent] | SentRows"


class Command(msgspec.Struct, Generic[R], frozen=True, tag=True):
    """Something that is asked of a partition; R is the type of its result."""

    #: whether it may only look
    is_query: ClassVar[bool] = False
    #: whether a client uses the entity by it: an idle entity may be deleted (B7)
    is_use: ClassVar[bool] = True
    #: whether it gives messages their enqueued time
    stamps: ClassVar[bool] = False
    #: whether sends that arrived before it must be applied before it
    after_sends: ClassVar[bool] = False
    #: whether rows that were kept may be deleted after it
    frees: ClassVar[bool] = False
    #: whether a caller always waits for the commit of what it changes
    is_awaited: ClassVar[bool] = False

    @property
    def answered_early(self) -> bool:
        """Whether the response need not wait until the change is durable."""
        return False


class Query(Command[R], Generic[R], frozen=True):
    """A question that changes nothing."""

    is_query: ClassVar[bool] = True
    is_use: ClassVar[bool] = False

    @property
    def answered_early(self) -> bool:
        return True


class HeldSession(msgspec.Struct, frozen=True):
    """A session, and the token that proves who holds it."""

    session_id: str
    token: bytes

    def __post_init__(self) -> None:
        check_text("session_id", self.session_id, ID_LENGTH_MAX)
        check_token(self.token)


def check_token(token: object) -> None:
    """Reject bytes that no partition ever issued as a lock token."""
    if not isinstance(token, bytes) or len(token) != TOKEN.size:
        raise UnknownToken("not a lock token of this bus: use the token of the received message")


def are_tokens(tokens: Sequence[Any]) -> bool:
    """Return whether a partition may have issued all of these as lock tokens."""
    return set(map(type, tokens)) <= {bytes} and set(map(len, tokens)) <= {TOKEN.size}


def check_tokens(tokens: Sequence[object]) -> None:
    """Reject bytes that no partition ever issued as a lock token."""
    if not are_tokens(tokens):
        for token in tokens:
            check_token(token)


# Sending


class Send(Command[Stored], frozen=True):
    """Store admitted messages; return the result of each, one by one or in columns."""

    stamps: ClassVar[bool] = True
    is_awaited: ClassVar[bool] = True

    batch: Batch
    #: its fan-out, if that was computed before
    plan: Plan | None = None


class PlanFanOut(Query["Plan"], frozen=True):
    """Return the fan-out of a batch as it would be now, to be computed before it is sent."""

    batch: Batch


class RunPlan(Query[int], frozen=True):
    """Run rules of a fan-out for about `steps` steps; return the steps left, 0 if more is left."""

    plan: Plan
    steps: int


# Multi-partition operations


class Repeats(msgspec.Struct, frozen=True):
    """The messages of a part that repeat earlier ones."""

    #: the ordinal that each message repeats, -1 for a new one
    originals: list[int]
    #: the messages with new ids for those that repeat, if the part renames them
    batch: Batch | None = None


class FindRepeats(Query[Repeats], frozen=True):
    """Return which messages of a part repeat earlier ones."""

    part: Part


class CarryOut(Command[Stored], frozen=True):
    """Store the messages of a part and settle those that it names."""

    stamps: ClassVar[bool] = True

    part: Part
    #: what `FindRepeats` returned at this moment; None to find it now
    originals: list[int] | None = None
    #: the operation that holds the messages that it settles, if one does
    work: int | None = None


class Stage(Command[list[int]], frozen=True):
    """Keep a part until its operation is decided; hold the messages that it will change.

    Returns the blocks that have its messages.
    """

    work: int
    part: Part
    #: the store that decides the operation; empty: that of the namespace
    decider: str = ""


class Publish(Command[Stored], frozen=True):
    """Carry out a staged part, once: its row goes with the same commit."""

    stamps: ClassVar[bool] = True

    work: int
    piece: int
    #: the part, if the caller still has it; None to read it back
    part: Part | None = None


class Unstage(Command[None], frozen=True):
    """Discard a staged part that was not decided; release the messages that it held."""

    work: int
    pieces: Sequence[int]
    #: the blocks that have its messages
    blocks: Sequence[int] = ()


class ReadStaged(Query["Part | None"], frozen=True):
    """Return a staged part; None if it was carried out."""

    work: int
    piece: int


class StagedFacts(NamedTuple):
    """Facts about a staged part that need none of its messages."""

    #: the store that decides its operation; empty: that of the namespace
    decider: str
    #: the blocks that have its messages
    blocks: list[int]


class InspectStaged(Query[StagedFacts], frozen=True):
    """Return what decides a staged part, and where its messages are."""

    work: int
    piece: int


# Moving messages


class ReadMessages(Query[list[ReceivedMessage]], frozen=True):
    """Return messages by their ordinals."""

    subscription: int
    ordinals: Sequence[int]
    #: only the first of them, in blocks of together at most this many bytes, or one message
    bytes_max: int | None = None


class ListForwardable(Query[list[int]], frozen=True):
    """Return the first messages, or dead-lettered messages, that wait to be forwarded."""

    subscription: int
    dead: bool
    limit: int
    bytes_max: int
    #: reject it while a multi-partition operation holds messages: later ones must not overtake them
    unless_held: bool = False


class KeepDeadLetters(Command[None], frozen=True):
    """Forward these dead-lettered messages no longer; None to forward all of them again."""

    is_use: ClassVar[bool] = False

    subscription: int
    ordinals: Sequence[int] | None


class DeadLetterAll(Command[None], frozen=True):
    """Dead-letter messages that are not locked: ordinal, reason and description of each."""

    subscription: int
    letters: Sequence[tuple[int, str, str]]


class FindMovable(Query[list[int]], frozen=True):
    """Return the ordinals of messages in a state, or reject all of them."""

    subscription: int
    numbers: Sequence[int]
    state: State


class Chosen(msgspec.Struct, frozen=True):
    """Messages that a filter selected in one slice."""

    ordinals: list[int]
    #: the ordinal at which the next slice starts; 0 at the end
    next: int


class ChooseMovable(Query[Chosen], frozen=True):
    """Return a slice of the messages in a state that match a filter."""

    subscription: int
    wanted: Filter
    state: State
    start: int
    #: the ordinal at which the choice ends
    below: int
    looks: int
    most: int


class ListWaiting(Query[list[int]], frozen=True):
    """Return the first available messages whose session is free, below an ordinal."""

    subscription: int
    limit: int
    below: int
    bytes_max: int


# Receiving


class Received(msgspec.Struct, frozen=True):
    """Messages that a receive delivers."""

    messages: list[ReceivedMessage]
    #: bytes that the same receive may still deliver; None if it is not bounded
    left: int | None = None
    #: nothing is delivered because receivers hold as many messages as they may
    over: bool = False


class Receive(Command[Received], frozen=True):
    """Lock the first available messages, or delete them with `delete`."""

    subscription: int
    limit: int
    dead: bool = False
    delete: bool = False
    #: lock duration; None for that of the entity
    visibility_ms: int | None = None
    #: the session to receive from, which the caller holds
    session: HeldSession | None = None
    #: bytes that are delivered at most
    bytes_max: int | None = None
    #: deliver one message whatever its size
    at_least_one: bool = True
    #: deliver nothing if receivers hold this number of messages
    held_max: int | None = None

    def __post_init__(self) -> None:
        check_whole("limit", self.limit, 1, BATCH_COUNT_MAX)
        if self.visibility_ms is not None:
            check_whole("visibility_ms", self.visibility_ms, 0, VISIBILITY_MS_MAX)

    @property
    def answered_early(self) -> bool:
        return not self.delete


class ReceiveFifo(Command[list[ReceivedMessage]], frozen=True):
    """Lock the first messages of groups without one in flight (F10), or repeat a receive (F9)."""

    subscription: int
    limit: int
    visibility_ms: int
    attempt_id: str | None = None
    bytes_max: int | None = None
    #: deliver nothing if receivers hold this number of messages, except in a repeated receive
    held_max: int | None = None

    def __post_init__(self) -> None:
        check_whole("limit", self.limit, 1, BATCH_COUNT_MAX)
        check_whole("visibility_ms", self.visibility_ms, 0, VISIBILITY_MS_MAX)
        if self.attempt_id is not None:
            check_text("attempt_id", self.attempt_id, ID_LENGTH_MAX, 1)

    @property
    def answered_early(self) -> bool:
        return True


class ReceiveDeferred(Command[list[ReceivedMessage]], frozen=True):
    """Lock deferred messages by sequence number, or delete them, atomically (L2)."""

    subscription: int
    numbers: Sequence[int]
    dead: bool = False
    delete: bool = False
    session: HeldSession | None = None
    bytes_max: int | None = None

    def __post_init__(self) -> None:
        check_numbers(self.numbers)


def check_numbers(numbers: object, most: int = NUMBERS_MAX) -> None:
    """Reject what is not a list of sequence numbers, or of messages."""
    if not isinstance(numbers, Sequence) or not 0 < len(numbers) <= most:
        raise InvalidArgument(f"pass a list of 1 to {most} messages or sequence numbers")


# Settling

Verb = Literal["complete", "abandon", "defer", "dead-letter", "release"]


class Settlement(msgspec.Struct, frozen=True):
    """What a receiver does with a message that it holds."""

    verb: Verb
    #: abandon: when it becomes active again; defer: when it becomes active, 0 for never
    delay_ms: int = 0
    #: of a dead-lettered message
    reason: str | None = None
    description: str | None = None
    #: properties to change
    properties: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        check_whole("delay_ms", self.delay_ms, 0)
        for name, value in (("reason", self.reason), ("description", self.description)):
            if value is not None:
                check_text(name, value, REASON_LENGTH_MAX)
        if self.properties is not None:
            check_properties(self.properties)
            try:
                encode_properties(self.properties)
            except (TypeError, OverflowError, UnicodeEncodeError) as error:
                raise InvalidArgument(f"cannot encode the properties: {error}") from None


COMPLETE = Settlement("complete")


class Settle(Command[list[Refused | None]], frozen=True):
    """Settle messages by their lock tokens; return None, or the rejection, for each.

    With `atomic` one rejected token rejects the command.
    """

    subscription: int
    settlement: Settlement
    tokens: Sequence[bytes]
    #: the session that the receiver must still hold (B9)
    session: HeldSession | None = None
    atomic: bool = False

    def __post_init__(self) -> None:
        check_tokens(self.tokens)


class Delete(Command[list[Refused | None]], frozen=True):
    """Delete received messages as SQS does, even if their locks expired; see `path/delete.py`."""

    subscription: int
    tokens: Sequence[bytes]

    def __post_init__(self) -> None:
        check_tokens(self.tokens)


class Renew(Command[list[int | Refused]], frozen=True):
    """Renew locks; return the new end of each by the wall clock, or the rejection.

    With `atomic` one rejected token rejects the command.
    """

    subscription: int
    tokens: Sequence[bytes]
    #: lock duration from now on; None for the duration that each lock has
    duration_ms: int | None = None
    #: the session that the receiver must still hold (B9)
    session: HeldSession | None = None
    atomic: bool = False

    def __post_init__(self) -> None:
        check_tokens(self.tokens)
        if self.duration_ms is not None:
            check_whole("visibility_ms", self.duration_ms, 0, VISIBILITY_MS_MAX)


class ChangeVisibility(Command[list[Refused | None]], frozen=True):
    """Change visibility timeouts as SQS does; see `path/change_visibility.py`."""

    subscription: int
    tokens: Sequence[bytes]
    #: for each token
    durations_ms: Sequence[int]
    #: accept the token of an earlier receive of a message that is locked again, and do nothing
    accepts_earlier: bool = False

    def __post_init__(self) -> None:
        for token, duration_ms in zip(self.tokens, self.durations_ms, strict=True):
            check_token(token)
            check_whole("visibility_ms", duration_ms, 0, VISIBILITY_MS_MAX)


class Cancel(Command[None], frozen=True):
    """Cancel scheduled messages by sequence number, atomically (S5)."""

    subscription: int
    numbers: Sequence[int]

    def __post_init__(self) -> None:
        check_numbers(self.numbers)


class Undefer(Command[None], frozen=True):
    """Make deferred messages active again by sequence number, atomically (X3)."""

    subscription: int
    numbers: Sequence[int]

    def __post_init__(self) -> None:
        check_numbers(self.numbers)


# Sessions


class AcceptSession(Command[AcceptedSession | None], frozen=True):
    """Lock a session by its id, or the next available one; None if no session is available."""

    subscription: int
    #: None for the next one
    session_id: str | None
    owner: str = ""
    #: None for an exclusive lock
    sharing: NonExclusive | None = None

    def __post_init__(self) -> None:
        if self.session_id is not None:
            check_text("session_id", self.session_id, ID_LENGTH_MAX)
        check_text("owner", self.owner, ID_LENGTH_MAX)
        takeover = None if self.sharing is None else self.sharing.takeover
        if takeover is not None and type(takeover) is not bytes:
            raise InvalidArgument("a lock token is bytes")
        if takeover is not None and self.session_id is None:
            raise InvalidArgument("name the session that a lock token takes over")

    @property
    def answered_early(self) -> bool:
        # A crash must not return the session to the receiver that lost it.
        return self.sharing is None or self.sharing.takeover is None


class RenewSession(Command[int], frozen=True):
    """Renew the lock of a session; return its new end by the wall clock."""

    subscription: int
    session: HeldSession


class ReleaseSession(Command[None], frozen=True):
    """Release a session and its messages without counting a delivery."""

    subscription: int
    session: HeldSession


class SetSessionState(Command[None], frozen=True):
    """Set the state of a session; None clears it."""

    subscription: int
    session: HeldSession
    state: bytes | None

    def __post_init__(self) -> None:
        if self.state is not None and type(self.state) is not bytes:
            raise InvalidArgument("a session state must be bytes or None")
        if self.state is not None and len(self.state) > SESSION_STATE_BYTES_MAX:
            raise InvalidArgument(f"a session state has at most {SESSION_STATE_BYTES_MAX} bytes")


class GetSessionState(Query[bytes | None], frozen=True):
    """Return the state of a session."""

    subscription: int
    session: HeldSession


class ListSessions(Query[list[SessionInfo]], frozen=True):
    """Return the sessions that have messages, a lock or a state, by their ids."""

    subscription: int


class WarmSessions(Query[bool], frozen=True):
    """Bring some sessions into memory; return whether more are left."""

    subscription: int
    looks: int


class ListSessionIds(Query[list[str]], frozen=True):
    """Return the ids of the sessions in memory."""

    subscription: int


class DescribeSessions(Query[list[SessionInfo]], frozen=True):
    """Return sessions by their ids, as far as they still have something."""

    subscription: int
    ids: Sequence[str]


class ListSessionStates(Query[list[str]], frozen=True):
    """Return the sessions whose state was set at this time or later."""

    subscription: int
    since_ms: int


# Looking, and acting on many messages


class Peeked(msgspec.Struct, frozen=True):
    """Messages that a peek found in one slice."""

    messages: list[ReceivedMessage]
    #: their size, as the limit of a peek counts it
    size: int
    #: the ordinal at which the next slice starts; 0 at the end
    next: int
    #: messages looked at
    looked: int
    #: whether the peek has no room for a further match
    is_full: bool


class Peek(Query[Peeked], frozen=True):
    """Look at a slice of messages from an ordinal, or from a sequence number, on."""

    subscription: int
    wanted: Filter
    limit: int
    #: messages that the slice looks at
    looks: int
    ordinal: int | None = None
    number: int = 0
    dead: bool = False
    #: size of the messages that earlier slices of the same peek found
    size: int = 0
    #: return one message whatever its size
    at_least_one: bool = True

    def __post_init__(self) -> None:
        check_whole("limit", self.limit, 1, BATCH_COUNT_MAX)
        check_whole("start", self.number, 0, 2**63)
        check_filter(self.wanted, self.dead)


class Tailed(msgspec.Struct, frozen=True):
    """Messages that arrived since the last look."""

    messages: list[ReceivedMessage]
    #: the ordinal at which the next look starts
    next: int
    #: bytes that it read, the steps of the filter counted as bytes
    size: int


class Tail(Query[Tailed], frozen=True):
    """Look at the newest messages from an ordinal on."""

    subscription: int
    wanted: Filter
    #: where the last look ended; 0 for the first look
    start: int
    #: bounds of one look: messages, and bytes
    looks: int
    bytes_max: int

    def __post_init__(self) -> None:
        check_filter(self.wanted, dead=False)


class Counted(msgspec.Struct, frozen=True):
    """Messages that were counted in one slice."""

    count: int
    #: the ordinal at which the next slice starts; 0 at the end
    next: int


class CountPurgeable(Query[Counted], frozen=True):
    """Count a slice of the messages that a purge would delete."""

    subscription: int
    wanted: Filter
    start: int
    looks: int

    def __post_init__(self) -> None:
        check_filter(self.wanted, dead=False)


class Reasons(msgspec.Struct, frozen=True):
    """Dead-lettered messages of one slice, by reason."""

    counts: Mapping[str, int]
    #: the ordinal at which the next slice starts; 0 at the end
    next: int


class CountReasons(Query[Reasons], frozen=True):
    """Count a slice of the dead-lettered messages by reason."""

    subscription: int
    start: int
    looks: int


class Purge(Command[Counted], frozen=True):
    """Delete a slice of the messages that match (X2), with `held` also those that are locked."""

    after_sends: ClassVar[bool] = True

    subscription: int
    wanted: Filter
    start: int
    looks: int
    held: bool = False
    #: messages that are deleted at most
    most: int | None = None

    def __post_init__(self) -> None:
        check_filter(self.wanted, dead=False)


class ForgetIds(Command[None], frozen=True):
    """Discard every recorded id: earlier messages can be sent again."""

    after_sends: ClassVar[bool] = True


# Claims


class Claimed(msgspec.Struct, frozen=True):
    """Messages that a claim has set aside in one slice."""

    count: int
    #: counted only if the claim has a bound
    bytes: int


class Claim(Command[Claimed], frozen=True):
    """Set the first available messages aside for a claim (R5)."""

    subscription: int
    #: the name under which the claim holds its messages
    owner: str
    limit: int
    bytes_max: int | None = None
    #: take the first message whatever its size
    at_least_one: bool = True


#: Sequence number → reason and description of a message that a claim dead-letters.
DeadLetters = Mapping[int, tuple[str | None, str | None]]


class CompleteClaimed(Command[int], frozen=True):
    """Complete or dead-letter a slice of the messages of a claim; return how many."""

    subscription: int
    owner: str
    dead_letters: DeadLetters
    limit: int


class ReleaseClaimed(Command[int], frozen=True):
    """Release messages of a claim without counting a delivery; return how many."""

    subscription: int
    owner: str
    #: None for all of them
    limit: int | None


class ListClaimOwners(Query[list[str]], frozen=True):
    """Return the owners of the claims that hold messages, in the order of their holds."""

    subscription: int


class ListClaimed(Query[list[int]], frozen=True):
    """Return the ordinals that a claim holds, in order."""

    subscription: int
    owner: str


class IsClaimed(Query[bool], frozen=True):
    """Return whether a claim holds the message with a sequence number."""

    subscription: int
    owner: str
    number: int


# Settings, rules and readers


class ChangeSettings(Command[None], frozen=True):
    """Take new settings of a queue or topic."""

    after_sends: ClassVar[bool] = True

    settings: LogSettings


class ChangeSubscription(Command[None], frozen=True):
    """Take new settings of a subscription."""

    after_sends: ClassVar[bool] = True

    subscription: int
    settings: SubscriptionSettings


class Subscribe(Command[None], frozen=True):
    """Add a subscription to a topic; it gets the messages sent from now on."""

    is_use: ClassVar[bool] = False

    number: int
    settings: SubscriptionSettings
    rules: Sequence[Rule]


class SetRules(Command[None], frozen=True):
    """Replace the rules of a subscription."""

    subscription: int
    rules: Sequence[Rule]


class KeepFor(Command[None], frozen=True):
    """Keep the log from a position on for a named reader (R2).

    The directory has the position, so the partition writes no record of it.
    """

    is_use: ClassVar[bool] = False
    frees: ClassVar[bool] = True

    reader: str
    position: int
    #: the subscription whose outcomes it reads; None if it reads messages
    outcomes_of: int | None = None


class KeepNoLonger(Command[None], frozen=True):
    """Keep nothing for a named reader any longer."""

    is_use: ClassVar[bool] = False
    frees: ClassVar[bool] = True

    reader: str
    outcomes_of: int | None = None


class SetStampsBack(Command[Repair], frozen=True):
    """Let timestamps follow the wall clock again, after a wrong clock put them into the future."""


# Looking at one thing


class FoundHeld(msgspec.Struct, frozen=True):
    """A message that a token holds."""

    ordinal: int
    is_dead: bool


class FindHeld(Query[FoundHeld], frozen=True):
    """Return the message that a token holds, or reject the token."""

    subscription: int
    token: bytes
    #: the session that the receiver must hold (B9)
    session: HeldSession | None = None

    def __post_init__(self) -> None:
        check_token(self.token)


class Inspect(Query[Life], frozen=True):
    """Return a message and what happened to it."""

    subscription: int
    number: int


class ListDuplicates(Query[list[tuple[str | None, int, int]]], frozen=True):
    """Return the last dropped duplicates: MessageId, time, and the number each repeats (X1)."""


class GetStamp(Query[int], frozen=True):
    """Return when the message with an ordinal was enqueued."""

    subscription: int
    ordinal: int


# Counting


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """The numbers of messages of a subscription, and the size of its partition."""

    #: waiting, locked or delayed
    active: int = 0
    #: messages that are not simply waiting, by their states; empty if the subscription is
    states: Sequence[int] = ()
    #: locked, claimed or held by a multi-partition operation
    held: int = 0
    #: bytes of the log
    size_bytes: int = 0
    recorded_ids: int = 0
    #: duplicates that were dropped
    duplicates: int = 0

    def count(self, states: Iterable[State]) -> int:
        """Return how many messages are in some states, other than active."""
        return sum(self.states[state] for state in states) if self.states else 0

    @property
    def available(self) -> int:
        """How many messages can be received now."""
        return self.active - self.count((State.LOCKED, State.DELAYED))


class Measure(Query[Measured], frozen=True):
    """Count the messages of a subscription."""

    subscription: int


class MeasureIds(Query[int], frozen=True):
    """Return about how much memory recorded ids take."""


class SessionsInUse(msgspec.Struct, frozen=True):
    """Sessions of one slice that are locked or have held messages."""

    count: int
    #: the lowest ordinal that waits in the sessions of the slice; None if none does
    oldest: int | None
    #: sessions in the slice
    looked: int
    #: where the next slice starts; 0 at the end
    next: int


class CountSessions(Query[SessionsInUse], frozen=True):
    """Count a slice of the sessions in use, and find the message that waits longest."""

    subscription: int
    start: int
    looks: int


class FindOldest(Query[int | None], frozen=True):
    """Return the ordinal of the message that waits longest; None if no visible message waits."""

    subscription: int
    #: what `CountSessions` found, if the messages have sessions
    of_sessions: int | None = None


class Group(msgspec.Struct, frozen=True):
    """A message group of a queue with fair delivery (B10)."""

    in_flight: int
    is_noisy: bool = False
    #: messages found to wait behind those of other groups
    passed: int = 0


class Groups(msgspec.Struct, frozen=True):
    """Some message groups by their names."""

    groups: dict[str, Group]
    #: where the next slice starts; None at the end
    next: int | None


class ListGroups(Query[Groups], frozen=True):
    """Return a slice of the groups with messages in flight or noisy; none without fair delivery."""

    subscription: int
    start: int
    looks: int


class ListNoisy(Query[dict[str, Group]], frozen=True):
    """Return the noisy groups; none without fair delivery."""

    subscription: int


class HeldMessages(msgspec.Struct, frozen=True):
    """Messages that were delivered together."""

    count: int
    session_id: str | None
    owner: str
    #: None if the lock of their session, or their owner, holds them
    received_ms: int | None = None
    until_ms: int | None = None


class Holds(msgspec.Struct, frozen=True):
    """Some of what receivers hold."""

    held: list[HeldMessages]
    #: where the next slice starts; None at the end
    next: int | None


class ListHolds(Query[Holds], frozen=True):
    """Return a slice of what receivers hold, by wall time."""

    subscription: int
    start: int
    #: messages that the slice looks at; a receive counts as ten more
    looks: int


class HasAttempt(Query[bool], frozen=True):
    """Return whether a FIFO receive is recorded under an attempt id (F9)."""

    subscription: int
    attempt_id: str


class CheckExists(Query[None], frozen=True):
    """Reject a subscription that was deleted."""

    subscription: int


class HasForwardable(Query[bool], frozen=True):
    """Return whether dead-lettered messages wait to be forwarded."""

    subscription: int


# The log


class Piece(NamedTuple):
    """The rows of one block that a reading wants: those with the ordinals first to last."""

    block: int
    first: int
    last: int
    #: the block's size
    size: int
    #: the block, if the store does not have it yet, or not all of it
    payload: bytes | StagedBlock | None


class PlanLog(Query[list[Piece]], frozen=True):
    """Return where rows of the log are: blocks of about `size` bytes, but one at least."""

    start: int
    end: int
    size: int


class PlanOutcomes(Query[list[OutcomePlace]], frozen=True):
    """Return where outcomes are: a slice of those between two numbers."""

    subscription: int
    start: int
    end: int


class CheckLog(Query[None], frozen=True):
    """Raise `LogGap` if a row of the log between two ordinals is missing."""

    start: int
    end: int


class HasBlock(Query[bool], frozen=True):
    """Return whether a row of the log is in that block still."""

    ordinal: int
    block: int


class HasOutcomes(Query[bool], frozen=True):
    """Return whether outcomes are where a plan found them."""

    subscription: int
    place: OutcomePlace


class LogEnds(msgspec.Struct, frozen=True):
    """The ends of the log, or of the outcomes of a subscription, which have their own numbers."""

    #: the ordinal from which on no row is missing
    complete_from: int
    #: the ordinal below which every row is durable
    visible_below: int
    #: the ordinal of the next row
    following: int


class FindEnds(Query[LogEnds], frozen=True):
    """Return the ends of the log, or of the outcomes of a subscription."""

    outcomes_of: int | None = None


class FindPosition(Query[int], frozen=True):
    """Return the ordinal of a sequence number, or of the next one; check that of an outcome."""

    number: int
    outcomes_of: int | None = None

    def __post_init__(self) -> None:
        if type(self.number) is not int:
            what = "a sequence number" if self.outcomes_of is None else "the number of an outcome"
            raise InvalidArgument(f"{self.number!r} is not {what}")


class FindLost(Query[tuple[int, int] | None], frozen=True):
    """Return the first run of missing rows from a position on; None if no row is missing."""

    position: int
    outcomes_of: int | None = None


class FindReach(Query[int], frozen=True):
    """Return the ordinal before which durable rows have at most `size` bytes, but one row."""

    start: int
    size: int


class FindTime(Query[int | None], frozen=True):
    """Return a time near the row at a position; None if it takes a search."""

    position: int
    outcomes_of: int | None = None


class Stamps(msgspec.Struct, frozen=True):
    """The last timestamp of a log, and where timestamps were set back."""

    last_ms: int
    repairs: list[Repair]


class ListStamps(Query[Stamps], frozen=True):
    """Return the last timestamp of the log, and where timestamps were set back."""


class FindSince(Query[int], frozen=True):
    """Return the first ordinal, or number of an outcome, of a time or later."""

    since_ms: int
    outcomes_of: int | None = None
