"""History: the figures of busy entities, every ten seconds for an hour, in bounded memory.

An entity gets a ring of points when its figures change, so thousands of idle entities cost nothing.
At the limit, the ring that changed longest ago makes room. Nothing is stored: the history starts
with the server.
"""

from __future__ import annotations

import asyncio
from array import array
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

import msgspec

from onibus.core.tally import percentile
from onibus.operation.figures import Figures, KnownFigures

if TYPE_CHECKING:
    from onibus.directory.entity import Entity
    from onibus.gateway.broker import Broker

EVERY_SECONDS = 10.0
#: Points kept per entity: one hour.
POINTS = 360
#: Entities whose history is kept, about 15 KB each.
RINGS_MAX = 2_000
#: Entities looked at before other clients have their turn: about a millisecond.
_SLICE = 100
#: Kept as 32 bits: differences of counters are right even when they wrap.
_WRAP = 1 << 32
#: The columns of percentiles, with their shares, and the value where nothing was delivered.
_WAITS = {"dwell_p50_ms": 0.5, "dwell_p99_ms": 0.99}
_NOTHING = _WRAP - 1
#: Counts of messages by state, and counters.
_STATES = ("active", "held", "deferred", "scheduled", "dead_lettered")
_COUNTERS = ("accepted", "gone", "delivered")


class Points(msgspec.Struct, kw_only=True):
    """The history of an entity; each list has one value for each time, the oldest first."""

    #: seconds since 1970
    times: list[int]
    #: waiting, held or delayed
    active: list[int]
    #: those of them that receivers hold
    held: list[int]
    deferred: list[int]
    scheduled: list[int]
    dead_lettered: list[int]
    #: per second, in the ten seconds before each time
    accepted: list[float]
    gone: list[float]
    delivered: list[float]
    #: from enqueue to first delivery, of messages first delivered in these ten seconds; null: none
    dwell_p50_ms: list[int | None]
    dwell_p99_ms: list[int | None]


class _Ring:
    """The last points of one entity."""

    __slots__ = ("columns", "first", "waits", "waits_seen")

    def __init__(self, at: int) -> None:
        #: the number of the sample at which it begins
        self.first = at
        self.columns = {name: array("I") for name in (*_STATES, *_COUNTERS)}
        self.waits = {name: array("I") for name in _WAITS}
        #: the counts of waits at the last point
        self.waits_seen: list[int] = []

    def put(self, figures: Figures, waits: list[int]) -> None:
        for name, column in self.columns.items():
            column.append(getattr(figures, name) % _WRAP)
        before = self.waits_seen or [0] * len(waits)
        recent = [now - then for now, then in zip(waits, before, strict=True)]
        self.waits_seen = list(waits)
        for name, share in _WAITS.items():
            found = percentile(recent, share)
            self.waits[name].append(_NOTHING if found is None else found)
        self._trim()

    def copy_last(self) -> None:
        """Record that nothing changed."""
        for column in self.columns.values():
            column.append(column[-1])
        for column in self.waits.values():
            column.append(_NOTHING)
        self._trim()

    def _trim(self) -> None:
        """Drop the oldest point beyond the hour."""
        if len(self.columns["active"]) > POINTS + 1:
            for column in (*self.columns.values(), *self.waits.values()):
                del column[0]
            self.first += 1


class History:
    """The history of a bus."""

    def __init__(self, broker: Broker, figures: KnownFigures) -> None:
        self._broker = broker
        self._known = figures
        self._rings: OrderedDict[int, _Ring] = OrderedDict()
        #: by incarnation: the figures of the last sample
        self._seen: dict[int, Figures] = {}
        #: times of the samples, and the number of the first of them
        self._times: list[int] = []
        self._first = 0
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Take samples from now on."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    def stop(self) -> None:
        """Take no more samples."""
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def _run(self) -> None:
        while True:
            await self.sample()
            await asyncio.sleep(EVERY_SECONDS)

    async def sample(self) -> None:
        """Record the figures of every entity whose figures changed since the last sample."""
        self._times.append(self._broker.clock.wall() // 1_000)
        if len(self._times) > POINTS + 1:
            del self._times[0]
            self._first += 1
        number = self._first + len(self._times) - 1
        before, self._seen = self._seen, {}
        for looked, entity in enumerate(list(self._broker.namespace.entities.values()), 1):
            incarnation = entity.incarnation
            figures = self._seen[incarnation] = self._known.of(entity)
            # A new entity has no history before its first message.
            last = before.get(incarnation, None if figures.accepted else figures)
            if last is not figures:
                self._put(entity, number, last, figures)
            elif (ring := self._rings.get(incarnation)) is not None:
                ring.copy_last()
            if looked % _SLICE == 0:
                await asyncio.sleep(0)
        for gone in self._rings.keys() - self._seen.keys():
            del self._rings[gone]
        self._known.keep_only(self._seen)

    def _put(self, entity: Entity, number: int, last: Figures | None, figures: Figures) -> None:
        ring = self._rings.get(entity.incarnation)
        waits = entity.tally.waits.counts
        if ring is None:
            if len(self._rings) >= RINGS_MAX:
                self._rings.popitem(last=False)
            ring = self._rings[entity.incarnation] = _Ring(number)
            if last is not None and last.delivered:
                # Its ring made room earlier: when its messages were delivered is not known.
                ring.waits_seen = list(waits)
        self._rings.move_to_end(entity.incarnation)
        ring.put(figures, waits)

    def rates(self, entity: Entity) -> tuple[float, float]:
        """Return messages accepted and gone per second, between the last two samples."""
        ring = self._rings.get(entity.incarnation)
        if ring is None or len(ring.columns["accepted"]) < 2 or len(self._times) < 2:
            return 0.0, 0.0
        seconds = max(self._times[-1] - self._times[-2], 1)
        accepted, gone = ring.columns["accepted"], ring.columns["gone"]
        return (
            round((accepted[-1] - accepted[-2]) % _WRAP / seconds, 1),
            round((gone[-1] - gone[-2]) % _WRAP / seconds, 1),
        )

    def depths(self, entity: Entity, count: int) -> list[int]:
        """Return the last counts of active messages, for a small plot."""
        ring = self._rings.get(entity.incarnation)
        return [] if ring is None else list(ring.columns["active"][-count:])

    def points(self, entity: Entity) -> Points:
        """Return the history of an entity, as far as it is kept."""
        ring = self._rings.get(entity.incarnation)
        if ring is None:
            now, flat = self._known.of(entity), len(self._times)
            still: dict[str, Any] = {name: [getattr(now, name)] * flat for name in _STATES}
            still |= dict.fromkeys(_COUNTERS, [0.0] * flat) | dict.fromkeys(_WAITS, [None] * flat)
            return Points(times=list(self._times), **still)
        size = len(ring.columns["active"])
        times = self._times[ring.first - self._first :][:size]
        found: dict[str, Any] = {name: ring.columns[name].tolist() for name in _STATES}
        found |= {name: _per_second(ring.columns[name], times) for name in _COUNTERS}
        found |= {name: _or_none(column) for name, column in ring.waits.items()}
        return Points(times=times, **found)


def _or_none(column: array[int]) -> list[int | None]:
    """Return percentiles; None where nothing was delivered."""
    return [None if one == _NOTHING else one for one in column]


def _per_second(counter: array[int], times: list[int]) -> list[float]:
    """Return what a counter rose by per second before each time; 0 before the first."""
    rates = [0.0]
    for at in range(1, len(times)):
        seconds = max(times[at] - times[at - 1], 1)
        rates.append(round((counter[at] - counter[at - 1]) % _WRAP / seconds, 1))
    return rates
