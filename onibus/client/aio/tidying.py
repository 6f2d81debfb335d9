"""Looking and tidying: peek, purge, undefer, duplicates, sessions, dead letters, alarms."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from onibus.api.delivery import Alarms, Counted, Duplicates, Resubmitted, ResubmittedOut
from onibus.api.messages import Messages
from onibus.api.sessions import Sessions
from onibus.client.aio.caller import AsyncCaller
from onibus.client.asking import get, path_of, post, without_none
from onibus.client.convert import filter_json, received_of, session_of
from onibus.core.inspection import Filter, SessionInfo
from onibus.core.message import ReceivedMessage

#: How many messages `peek_all` asks for at once.
_PAGE = 500


class AsyncTidyCalls(AsyncCaller):
    """What somebody does who looks after messages."""

    async def peek(
        self,
        entity: str,
        *,
        start: int = 0,
        limit: int = 100,
        dead_letters: bool = False,
        where: Filter | None = None,
    ) -> list[ReceivedMessage]:
        """Look at messages from a sequence number on, without touching them.

        May return fewer than asked; go on from the last number + 1 until nothing is returned.
        """
        body = without_none(
            start=start, limit=limit, dead_letters=dead_letters, where=filter_json(where)
        )
        ask = post(path_of("entities", entity, "peek"), body, changes=False)
        told: Messages = await self.ask(ask, Messages)
        return [received_of(one) for one in told.messages]

    async def peek_all(
        self, entity: str, *, dead_letters: bool = False, where: Filter | None = None
    ) -> AsyncIterator[ReceivedMessage]:
        """Look at all messages, page after page."""
        start = 0
        while page := await self.peek(
            entity, start=start, limit=_PAGE, dead_letters=dead_letters, where=where
        ):
            for message in page:
                yield message
            start = page[-1].sequence_number + 1

    async def purge(
        self, entity: str, where: Filter | None = None, *, forget_ids: bool = False
    ) -> int:
        """Delete messages that nobody holds; return how many. Ids stay remembered unless told."""
        body = without_none(where=filter_json(where), forget_ids=forget_ids)
        # Not repeated by itself: messages that came meanwhile were not meant.
        ask = post(path_of("entities", entity, "purge"), body, repeats=False)
        told: Counted = await self.ask(ask, Counted)
        return told.count

    async def undefer(self, entity: str, numbers: Sequence[int]) -> None:
        """Give deferred messages back to the active ones: all of them, or none."""
        path = path_of("entities", entity, "undefer")
        await self.answer(post(path, {"numbers": list(numbers)}))

    async def duplicates(self, entity: str) -> list[tuple[str | None, int, int]]:
        """Return the last dropped duplicates: MessageId, time, and the number each repeats (X1)."""
        told: Duplicates = await self.ask(
            get(path_of("entities", entity, "duplicates")), Duplicates
        )
        return [(one.message_id, one.time_ms, one.duplicate_of) for one in told.duplicates]

    async def sessions(self, entity: str) -> list[SessionInfo]:
        """Return the sessions that have messages, a lock or a state (X8)."""
        told: Sessions = await self.ask(get(path_of("entities", entity, "sessions")), Sessions)
        return [session_of(one) for one in told.sessions]

    async def resubmit(
        self,
        entity: str,
        numbers: Sequence[int] | None = None,
        *,
        where: Filter | None = None,
        to: str | None = None,
        dry_run: bool = False,
    ) -> Resubmitted:
        """Send dead letters again, to where they came from or to another entity.

        By their numbers, all or none; or all that a filter means. Where a MessageId is still
        remembered the message gets a new one.
        """
        given = None if numbers is None else list(numbers)
        body = without_none(numbers=given, where=filter_json(where), to=to, dry_run=dry_run)
        path = path_of("entities", entity, "dead-letters", "resubmit")
        ask = post(path, body, repeats=dry_run or numbers is not None, changes=not dry_run)
        told: ResubmittedOut = await self.ask(ask, ResubmittedOut)
        return Resubmitted(
            moved={one.sequence_number: one.new_sequence_number for one in told.moved},
            refused={one.sequence_number: one.reason for one in told.refused},
        )

    async def alarms(self) -> list[str]:
        """Return what went wrong with stores and partitions since the server started."""
        told: Alarms = await self.ask(get(path_of("alarms")), Alarms)
        return told.alarms
