"""Claims that wait: tried each time that messages of the entity may have become available."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from onibus.api.claims import Claim
from onibus.core.checks import check_whole
from onibus.core.errors import OnibusError
from onibus.directory import claim_settling
from onibus.directory.entity import Waiter
from onibus.directory.readers import find_incarnation
from onibus.gateway.receiving import try_or_wait
from onibus.shard.replies import KeptReply, Reply, answer, fail, is_unwanted

if TYPE_CHECKING:
    from onibus.gateway.broker import Broker


def claim(
    broker: Broker,
    name: str,
    reader: str,
    limit: int,
    lease_ms: int,
    max_bytes: int | None,
    reply: Reply,
    token: str | None = None,
    wait_ms: int = 0,
    incarnation: int | None = None,
) -> Waiter | None:
    """Claim active messages, or wait for the first; reply with None if none arrives.

    Return the waiter, if it waits.
    """
    entity = find_incarnation(broker, name, incarnation)
    check_whole("wait_ms", wait_ms, 0)

    def attempt(made: Reply) -> None:
        broker.claims.claim(name, reader, limit, lease_ms, max_bytes, made, token)

    if not wait_ms:
        attempt(reply)
        return None
    return try_or_wait(
        broker, Waiter(entity, _Waiting(broker, attempt).fetch, None, reply), wait_ms
    )


class _Waiting:
    """A claim that is tried again and again; a try takes several slices."""

    def __init__(self, broker: Broker, attempt: Callable[[Reply], None]) -> None:
        self._broker = broker
        self._attempt = attempt
        self._begun = self._trying = False
        #: messages may have arrived since this try began
        self._again = False
        #: the wait is over: this try is the last
        self._last = False

    def fetch(self, waiter: Waiter) -> bool:
        """Begin a try, unless one is running; return whether it will give the reply."""
        self._last = self._begun and waiter not in waiter.among.waiters
        self._begun = True
        if self._trying:
            self._again = True
        else:
            self._try(waiter.reply)
        return self._last

    def _try(self, reply: Reply) -> None:
        self._trying, self._again = True, False
        try:
            self._attempt(KeptReply(partial(self._tried, reply)))
        except OnibusError:
            self._trying = False
            raise

    def _tried(self, reply: Reply, outcome: KeptReply) -> None:
        self._trying = False
        if outcome.error is not None:
            fail(reply, outcome.error)
        elif outcome.value is not None:
            if is_unwanted(reply):
                self._release(outcome.value)
            else:
                answer(reply, outcome.value)
        elif is_unwanted(reply):
            return
        elif self._again:
            self._broker.call_soon(lambda: self._try_again(reply))
        elif self._last:
            answer(reply, None)

    def _try_again(self, reply: Reply) -> None:
        try:
            self._try(reply)
        except OnibusError as error:
            fail(reply, error)

    def _release(self, made: Claim) -> None:
        """Release a claim whose client has left: it does not know the claim."""
        released = KeptReply()
        try:
            claim_settling.release(
                self._broker.claims, made.entity, made.reader, made.number, None, released
            )
        except OnibusError:
            # Its lease ends.
            return
