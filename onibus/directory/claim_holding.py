"""The hold of a reader: one program at a time works under its name, known by a token (R5, R7).

A program that keeps the claims that it works on in a checkpoint takes hold of its reader with its
own token, and passes that token when it claims and reads. A program that lost its hold is rejected.
A reader cannot be taken while another program has read claims that the new one does not know: both
would process them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from onibus.api.claims import ClaimReaderInfo
from onibus.core.checks import check_text, check_whole
from onibus.core.errors import CheckpointMismatch
from onibus.core.limits import ID_LENGTH_MAX
from onibus.core.records import WriteBatch
from onibus.directory.claim_rows import OPEN, RELEASING, STAGING, ClaimReader
from onibus.shard.replies import KeptReply, Reply, answer, fail

if TYPE_CHECKING:
    from onibus.directory.claims import Claims


def hold(
    claims: Claims,
    name: str,
    reader_name: str,
    token: str | None,
    after: int,
    reply: Reply,
    query: str | None = None,
    first: int = 0,
) -> None:
    """Take hold of a reader and reply with its progress; without a token only reply.

    A holder that names its `query` notes the first claim of that query's checkpoint, or 0 if it
    does not know it.
    """
    check_whole("after", after, 0)
    check_whole("first", first, 0)
    if token is None:
        answer(reply, _info(claims, claims.find(name, reader_name, None)))
        return
    check_text("token", token, ID_LENGTH_MAX, 1)
    reader = claims.find(name, reader_name, None)
    claims.check_decidable()
    others = [
        number
        for number, held in sorted(reader.claims.items())
        if number > after and held.content.read and held.stage == OPEN
    ]
    if others:
        raise CheckpointMismatch(
            f"reader {reader_name!r} of {name} has read claim {others[0]}, which this checkpoint "
            "does not have: another query uses the name, or the checkpoint is not the newest. Give "
            "each query its own reader, or continue with the newest checkpoint, or release the "
            "claims of a query that will not continue: their messages are read again"
        )
    new = query is not None and _new_query(reader, token, query, first)
    batch = WriteBatch()
    if reader.token != token or new:
        reader = claims.reader(reader.entity, reader_name)
        reader.token = token
        if query is not None:
            reader.bind(query, first)
        reader.put(batch)
    elif not claims.broker.namespace.deciding:
        answer(reply, _info(claims, reader))
        return
    # An earlier call that wrote the same may not be durable yet.
    counted = claims.counted(reply)

    def held(kept: KeptReply) -> None:
        if kept.error is not None:
            fail(counted, kept.error)
        else:
            answer(counted, _info(claims, reader))

    claims.broker.namespace.commit(batch, KeptReply(held))


def _new_query(reader: ClaimReader, token: str, query: str, first: int) -> bool:
    """Return whether a query has not read here before; reject one that begins a second time."""
    check_text("query", query, ID_LENGTH_MAX, 1)
    check_holder(reader, token)
    known = reader.queries.get(query)
    if first and known not in (None, first):
        read = f"claim {known}" if known else "claims"
        raise CheckpointMismatch(
            f"the query has read {read} of reader {reader.name!r} of {reader.entity.name}, "
            "but its checkpoint has no batch: it is an older copy, and the messages that the query "
            "completed are no longer in the queue. Continue with the newest checkpoint. If "
            "their results are stored, continue with a new checkpoint"
        )
    return known is None


def check_holder(reader: ClaimReader, token: str | None) -> None:
    """Reject a program that has lost its hold of a reader."""
    if token is not None and reader.token not in (None, token):
        raise CheckpointMismatch(
            f"another query has taken over reader {reader.name!r} of {reader.entity.name}: give "
            "each query its own reader"
        )


def _info(claims: Claims, reader: ClaimReader) -> ClaimReaderInfo:
    clock = claims.broker.clock
    shown = [one for one in reader.claims.values() if one.stage not in (STAGING, RELEASING)]
    return ClaimReaderInfo(
        reader=reader.name,
        incarnation=reader.entity.incarnation,
        last=reader.last,
        committed=tuple(reader.committed.runs()),
        claims=tuple(one.info(clock) for one in sorted(shown, key=lambda one: one.number)),
    )
