"""Inspection and maintenance: peek, purge, undefer, duplicates, sessions, resubmission, alarms."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from onibus.api.delivery import (
    MOVES_MAX,
    Alarms,
    Counted,
    Duplicates,
    Resubmitted,
    ResubmittedOut,
)
from onibus.api.messages import Messages
from onibus.api.sessions import Sessions
from onibus.client.asking import get, path_of, post, without_none
from onibus.client.blocking.caller import Caller
from onibus.client.convert import filter_json, received_of, resubmitted, session_of
from onibus.core.inspection import Filter, SessionInfo
from onibus.core.message import ReceivedMessage

#: Messages that `peek_all` requests at once.
_PAGE = 500


class TidyCalls(Caller):
    """Operations to inspect and maintain messages."""

    def peek(
        self,
        entity: str,
        *,
        start: int = 0,
        limit: int = 100,
        dead_letters: bool = False,
        where: Filter | None = None,
    ) -> list[ReceivedMessage]:
        """Return messages from a sequence number on, without locking them.

        May return fewer than `limit`; continue with the last sequence number + 1 until it returns
        none.
        """
        body = without_none(
            start=start, limit=limit, dead_letters=dead_letters, where=filter_json(where)
        )
        ask = post(path_of("entities", entity, "peek"), body, changes=False)
        told: Messages = self.ask(ask, Messages)
        return [received_of(one) for one in told.messages]

    def peek_all(
        self, entity: str, *, dead_letters: bool = False, where: Filter | None = None
    ) -> Iterator[ReceivedMessage]:
        """Yield all messages, requesting page after page."""
        start = 0
        while page := self.peek(
            entity, start=start, limit=_PAGE, dead_letters=dead_letters, where=where
        ):
            yield from page
            start = page[-1].sequence_number + 1

    def purge(self, entity: str, where: Filter | None = None, *, forget_ids: bool = False) -> int:
        """Delete unlocked messages; return how many. `forget_ids` discards their recorded ids."""
        body = without_none(where=filter_json(where), forget_ids=forget_ids)
        # Not repeated: it could delete messages that arrived in the meantime.
        ask = post(path_of("entities", entity, "purge"), body, repeats=False)
        told: Counted = self.ask(ask, Counted)
        return told.count

    def undefer(self, entity: str, numbers: Sequence[int]) -> None:
        """Reactivate deferred messages; if one is not found, reactivate none."""
        path = path_of("entities", entity, "undefer")
        self.answer(post(path, {"numbers": list(numbers)}))

    def duplicates(self, entity: str) -> list[tuple[str | None, int, int]]:
        """Return the latest dropped duplicates: MessageId, time, and the original's number (X1)."""
        told: Duplicates = self.ask(get(path_of("entities", entity, "duplicates")), Duplicates)
        return [(one.message_id, one.time_ms, one.duplicate_of) for one in told.duplicates]

    def sessions(self, entity: str) -> list[SessionInfo]:
        """Return the sessions that have messages, a lock or a state (X8)."""
        told: Sessions = self.ask(get(path_of("entities", entity, "sessions")), Sessions)
        return [session_of(one) for one in told.sessions]

    def resubmit(
        self,
        entity: str,
        numbers: Sequence[int] | None = None,
        *,
        where: Filter | None = None,
        to: str | None = None,
        limit: int | None = None,
        dry_run: bool = False,
    ) -> Resubmitted:
        """Resubmit dead-lettered messages, to their own entity or another one.

        Select them by sequence number, atomically, or by a filter. A message whose MessageId is
        still recorded gets a new one. With a `limit`, the call ends once that many messages were
        resubmitted or rejected.
        """
        given = None if numbers is None else list(numbers)
        where_json = filter_json(where)
        body = without_none(numbers=given, where=where_json, to=to, limit=limit, dry_run=dry_run)
        path = path_of("entities", entity, "dead-letters", "resubmit")
        ask = post(path, body, repeats=dry_run or numbers is not None, changes=not dry_run)
        return resubmitted(self.ask(ask, ResubmittedOut))

    def move(
        self,
        entity: str,
        to: str,
        numbers: Sequence[int] | None = None,
        *,
        where: Filter | None = None,
        limit: int = MOVES_MAX,
        dry_run: bool = False,
    ) -> Resubmitted:
        """Move active messages that no receiver holds to another queue or topic.

        Select them by sequence number, atomically, or by a filter. A message whose MessageId is
        recorded at the destination gets a new one.
        """
        given = None if numbers is None else list(numbers)
        body = without_none(
            to=to, numbers=given, where=filter_json(where), limit=limit, dry_run=dry_run
        )
        path = path_of("entities", entity, "move")
        ask = post(path, body, repeats=dry_run or numbers is not None, changes=not dry_run)
        return resubmitted(self.ask(ask, ResubmittedOut))

    def alarms(self) -> list[str]:
        """Return the alarms of stores and partitions since the server started."""
        told: Alarms = self.ask(get(path_of("alarms")), Alarms)
        return told.alarms
