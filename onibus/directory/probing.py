"""Probing: whether the disks of idle stores still take writes (P10).

A store that commits proves its disk. One that has not committed for a while is given a small synced
write, on its own thread. If that fails, the store is down, as after a failed commit. If it does not
return, the store is *stalled*: its entities are limited and nothing is created, changed or deleted
on it, until the write returns. Then it continues, and its memory is kept.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec

from onibus.core.errors import PartitionOffline, StoreFailed
from onibus.shard.commits import CommitLoop
from onibus.shard.replies import fail

if TYPE_CHECKING:
    from onibus.directory.host import Host
    from onibus.directory.namespace import Namespace
    from onibus.shard.shard import Shard

P = ParamSpec("P")

#: The time after its last commit or probe at which a store is probed.
PROBE_MS = 2_000
#: A store whose probe takes longer, twice over, is stalled: 4.5 s after its last proof at most. The
#: second time is short; it is for a machine that slept, or whose threads wait for a processor.
PATIENCE_MS, GRACE_MS = 2_000, 500
#: Before an operation that needs all partitions, a proof may be older by this at most.
FRESH_MS = 200


class Probe:
    """The state of one store's disk."""

    def __init__(self, broker: Host, owner: Shard | Namespace, every_ms: int) -> None:
        self._broker = broker
        self._owner = owner
        self._every = every_ms
        self._timer = ("probe", owner.name)
        #: the bus time at which the disk was last known to take a write
        self._proven = 0
        #: the bus time at which a probe began that has not ended
        self._began: int | None = None
        self._overdue = False
        self._waiting: list[Callable[[], None]] = []

    @property
    def under_way(self) -> bool:
        """Whether a probe is on its way to a disk that may still answer."""
        return self._began is not None and not self._owner.stalled

    def proven(self) -> None:
        """Note that the disk has just taken a write."""
        self._proven = self._broker.clock.now()
        if self._owner.stalled:
            self._owner.stalled = ""
            self._broker.alarms.over(f"store {self._owner.name}")
            if self._owner.name in self._broker.stores:
                partitions = self._broker.stores[self._owner.name].partitions.values()
                for entity in dict.fromkeys(partition.entity for partition in partitions):
                    self._broker.wake_all(entity)
        if not self._broker.timers.is_set(self._timer):
            self._broker.timers.set(self._timer, self._proven + self._every)

    def is_stale(self) -> bool:
        """Return whether an operation that needs all partitions has to wait for a probe."""
        if self._owner.loop is None or self._owner.stalled:
            return False
        return self._broker.clock.now() - self._proven > FRESH_MS

    def ask(self, then: Callable[[], None]) -> None:
        """Probe the disk; call `then` when it has answered, or is known not to."""
        self._waiting.append(then)
        if self._owner.loop is None:
            self._go_on()
        elif self._began is None:
            self._begin(self._owner.loop)

    def rang(self) -> None:
        """Probe a store that has been quiet; declare one stalled whose probe does not return."""
        now, loop = self._broker.clock.now(), self._owner.loop
        if loop is None:
            return
        due = self._proven + self._every
        if self._began is not None:
            if self._overdue and now >= due:
                self._stall(now - self._began)
            self._overdue = True
            due = now + GRACE_MS
        elif now >= due:
            self._begin(loop)
            return
        self._broker.timers.set(self._timer, due)

    def _begin(self, loop: CommitLoop) -> None:
        self._began = self._broker.clock.now()
        self._overdue = False
        self._broker.timers.set(self._timer, self._began + PATIENCE_MS)
        self._owner.threads.probe(loop.store.probe, lambda error: self._ended(loop, error))

    def _stall(self, ms: int) -> None:
        name = self._owner.name
        self._owner.stalled = f"the disk of store {name} has not responded for {ms} ms: check it"
        self._broker.alarms.raise_once(f"store {name}", StoreFailed(self._owner.stalled))
        if name in self._broker.stores:
            down = PartitionOffline(f"store {name} failed")
            self._broker.stores[name].turn_away(down)
        self._go_on()

    def _ended(self, loop: CommitLoop, error: BaseException | None) -> None:
        self._began = None
        self._broker.timers.cancel(self._timer)
        if error is None and self._owner.loop is loop:
            self.proven()
        elif error is not None:
            self._owner.stalled = ""
            loop.abandon(error)
            self._broker.went_down(self._owner.name, loop, error)
        self._go_on()

    def _go_on(self) -> None:
        waiting, self._waiting = self._waiting, []
        for then in waiting:
            then()


class Probing:
    """The probes of all stores; none if `every_ms` is 0."""

    def __init__(self, broker: Host, every_ms: int) -> None:
        owners: list[Namespace | Shard] = [broker.namespace, *broker.stores.values()]
        self._probes = {one.name: Probe(broker, one, every_ms) for one in owners if every_ms}

    @property
    def under_way(self) -> bool:
        """Whether a probe is on its way to a disk that may still answer."""
        return any(probe.under_way for probe in self._probes.values())

    def proven(self, name: str) -> None:
        """Note that a store has been opened, or has committed."""
        if name in self._probes:
            self._probes[name].proven()

    def rang(self, name: str) -> None:
        """Probe a store whose timer is due."""
        self._probes[name].rang()

    def before(self, act: Callable[[], None], reply: Any) -> None:
        """Act at once if all disks took a write just now, otherwise when they were probed."""
        stale = [probe for probe in self._probes.values() if probe.is_stale()]
        if not stale:
            act()
            return
        left = len(stale)

        def looked() -> None:
            nonlocal left
            left -= 1
            if left or reply.done():
                # A caller that got its timeout must not find it done later.
                return
            try:
                act()
            except Exception as error:
                # Also errors of the protocol that computes a change: its caller waits for them.
                fail(reply, error)

        for probe in stale:
            probe.ask(looked)


def needs_disks(
    operation: Callable[Concatenate[Namespace, P], None],
) -> Callable[Concatenate[Namespace, P], None]:
    """Let an operation of the namespace, whose last argument is its reply, wait for probes."""

    @functools.wraps(operation)
    def probed(namespace: Namespace, /, *given: P.args, **named: P.kwargs) -> None:
        namespace._broker.probing.before(lambda: operation(namespace, *given, **named), given[-1])

    return probed
