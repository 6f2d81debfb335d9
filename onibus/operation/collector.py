"""Collection of all metrics on request.

The core and the broker keep plain integers (core/tally.py), and the collector reads them while a
namespace of thousands of queues runs. It counts its own work in samples, and lets other clients run
after every slice. It caches a page for a second: all requests within it get the same page.
"""

from __future__ import annotations

import asyncio
import contextlib
import platform
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import apsw

from onibus.core.commands import FindOldest, GetStamp, ListNoisy, Measure, MeasureIds
from onibus.core.errors import EntityNotFound, OnibusError, PartitionOffline
from onibus.core.tally import Durations, Tally
from onibus.directory.claim_rows import RELEASING, STAGING
from onibus.directory.entity import TOPIC, Entity
from onibus.directory.readers import lag_of
from onibus.operation import metrics
from onibus.operation.exposition import Labels, Metric, Samples
from onibus.operation.figures import session_slices
from onibus.operation.peers import Peers
from onibus.operation.traffic import Traffic
from onibus.operation.version import own_version
from onibus.shard.partition import ShardPartition

if TYPE_CHECKING:
    from onibus.bus import Bus
    from onibus.directory.namespace import Namespace
    from onibus.shard.shard import Shard

#: Samples taken, or lines written, before other clients run: about a millisecond.
SLICE = 500
#: Cost of reading a block, in samples.
READ = 50
#: Seconds for which a page is cached.
FRESH_SECONDS = 1.0

#: A page in pieces, each a slice of lines.
Page = list[bytes]


class Collector:
    """The metrics pages of one bus."""

    def __init__(self, bus: Bus, traffic: Traffic) -> None:
        self._broker = bus.broker
        self._traffic = traffic
        #: AMQP connections; None without an AMQP listener
        self.amqp = Traffic()
        #: connections of all listeners
        self.peers = Peers()
        self._started = time.time()
        #: first waiting ordinal of (partition, subscription), and its enqueued time
        self._oldest: dict[tuple[int, int], tuple[int, int]] = {}
        #: pages in progress or cached, by whether they are per object
        self._pages: dict[bool, asyncio.Task[Page]] = {}

    async def page(self, *, per_object: bool) -> Page:
        """Return all metrics, per object or aggregated."""
        task = self._pages.get(per_object)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._make(per_object))
            self._pages[per_object] = task
            task.add_done_callback(lambda _: self._keep(per_object))
        return await asyncio.shield(task)

    def _keep(self, per_object: bool) -> None:
        """Cache a finished page for a while, then free its memory."""
        asyncio.get_running_loop().call_later(FRESH_SECONDS, self._pages.pop, per_object, None)

    async def _make(self, per_object: bool) -> Page:
        gathering = _Gathering(per_object)
        done = 0
        for _ in self._gather(gathering):
            if gathering.work - done >= SLICE:
                done = gathering.work
                await asyncio.sleep(0)
        page: Page = []
        for piece in gathering.pieces():
            page.append(piece)
            await asyncio.sleep(0)
        return page

    def _gather(self, gathering: _Gathering) -> Iterator[None]:
        """Take all samples; the bus may change between any two steps."""
        self._process(gathering)
        self._stores(gathering)
        self._listener(gathering)
        # Counters of deleted entities stay in the sums, which must never fall. An entity deleted
        # from here on is still in the list below.
        _tally(gathering, "", self._broker.past)
        entities = list(self._broker.namespace.entities.values())
        # Keep only the positions of existing entities for the next page.
        before, self._oldest = self._oldest, {}
        for entity in entities:
            yield from self._entity(gathering, entity, before)

    def _process(self, gathering: _Gathering) -> None:
        words = (own_version(), platform.python_version(), apsw.sqlite_lib_version())
        gathering.put(metrics.INFO, words, 1)
        gathering.put(metrics.START, (), self._started)
        gathering.put(metrics.ALARMS, (), self._broker.alarms.count)
        gathering.put(metrics.CLOCK, (), int(not self._broker.clock.sure))

    def _stores(self, gathering: _Gathering) -> None:
        broker = self._broker
        owners: list[Namespace | Shard] = [broker.namespace, *broker.stores.values()]
        for one in owners:
            name = one.name
            # An unresponsive disk cannot report its free space either.
            store = None if one.loop is None or one.stalled else one.loop.store
            gathering.put(metrics.STORE_UP, (name,), int(store is not None))
            gathering.put_durations(metrics.COMMITS, (name,), one.commit_seconds)
            if store is None:
                continue
            try:
                gathering.put(metrics.STORE_SIZE, (name,), store.size())
                gathering.put(metrics.STORE_FREE, (name,), store.free())
            except (OnibusError, OSError):
                # The store is failing: its next write reports that.
                continue

    def _listener(self, gathering: _Gathering) -> None:
        traffic = self._traffic
        gathering.put(metrics.CONNECTIONS, (), len(traffic.open))
        gathering.put(metrics.CONNECTIONS_OPENED, (), traffic.opened)
        gathering.put(metrics.CONNECTIONS_REFUSED, (), traffic.turned_away)
        gathering.put(metrics.AMQP_CONNECTIONS, (), len(self.amqp.open))
        gathering.put(metrics.AMQP_CONNECTIONS_OPENED, (), self.amqp.opened)
        gathering.put(metrics.PEERS, (), self.peers.count)
        gathering.put(metrics.PEERS_ALLOWED, (), self.peers.connections_max)
        gathering.put(metrics.EVICTED, (), self.peers.evicted)
        gathering.put(metrics.THROTTLED, (), self.peers.attempts.refused)
        for key, seen in traffic.routes.items():
            gathering.put_durations(metrics.REQUEST_SECONDS, key, seen.seconds)
            for digit, count in enumerate(seen.statuses):
                if count:
                    gathering.put(metrics.REQUESTS, (f"{digit}xx", *key), count)

    # Entities

    def _entity(self, gathering: _Gathering, entity: Entity, before: _Oldest) -> Iterator[None]:
        name = entity.name
        gathering.put(metrics.ENTITIES, (entity.kind,), 1)
        gathering.put(metrics.WAITING, (name,), len(entity.waiters))
        offline = sum(
            not partition.is_online or bool(partition.store.stalled)
            for partition in entity.partitions
        )
        gathering.put(metrics.OFFLINE, (name,), offline)
        _tally(gathering, name, entity.tally)
        yield
        for partition in entity.partitions:
            # It may be deleted, or go offline, between any two steps.
            with contextlib.suppress(EntityNotFound, PartitionOffline):
                yield from self._partition(gathering, entity, partition, before)
        for reader in list(entity.readers.values()):
            for partition in entity.partitions:
                with contextlib.suppress(EntityNotFound, PartitionOffline):
                    lag = lag_of(entity, reader, partition)
                    gathering.put(metrics.LAG, (name, reader.name, str(partition.index)), lag)
                yield
        yield from self._claims(gathering, entity)

    def _partition(
        self, gathering: _Gathering, entity: Entity, partition: ShardPartition, before: _Oldest
    ) -> Iterator[None]:
        key, store = (entity.name, str(partition.index)), partition.store
        measured = store.look(partition, Measure(entity.number))
        for word, states in metrics.STATES.items():
            if entity.kind != TOPIC or word == "scheduled":
                gathering.put(metrics.MESSAGES, (word, *key), measured.count(states))
        if entity.topic is None:
            gathering.put(metrics.SIZE, key, measured.size_bytes)
            gathering.put(metrics.IDS, key, measured.recorded_ids)
            gathering.put(metrics.IDS_BYTES, key, store.look(partition, MeasureIds()))
        yield
        if entity.kind == TOPIC:
            return
        gathering.put(metrics.MESSAGES, ("active", *key), measured.available)
        in_use, first = 0, None
        for some in session_slices(entity, partition):
            in_use += some.count
            first = min((one for one in (first, some.oldest) if one is not None), default=None)
            gathering.work += some.looked
            yield
        gathering.put(metrics.SESSIONS, key, in_use)
        if entity.outlet_settings().fair_delivery:
            noisy = store.look(partition, ListNoisy(entity.number))
            gathering.put(metrics.NOISY, key, len(noisy))
        age = self._age(gathering, entity, partition, first, before)
        gathering.put(metrics.OLDEST, key, age)
        yield

    def _age(
        self,
        gathering: _Gathering,
        entity: Entity,
        partition: ShardPartition,
        of_sessions: int | None,
        before: _Oldest,
    ) -> float:
        """Return the age of the first waiting message; read its block only once."""
        store, key = partition.store, (partition.id, entity.number)
        try:
            oldest = store.look(partition, FindOldest(entity.number, of_sessions))
            if oldest is None:
                return 0.0
            known = before.get(key)
            if known is None or known[0] != oldest:
                gathering.work += READ
                known = (oldest, store.look(partition, GetStamp(entity.number, oldest)))
        except OnibusError:
            return 0.0
        self._oldest[key] = known
        return max(self._broker.clock.wall() - known[1], 0) / 1_000

    def _claims(self, gathering: _Gathering, entity: Entity) -> Iterator[None]:
        readers = self._broker.claims.readers.get(entity.incarnation, {})
        for reader in list(readers.values()):
            claims = messages = oldest_ms = 0
            for held in list(reader.claims.values()):
                if held.stage not in (STAGING, RELEASING):
                    info = held.info(self._broker.clock)
                    claims, messages = claims + 1, messages + info.count
                    oldest_ms = max(oldest_ms, info.age_ms)
                gathering.work += 1
                yield
            key = (entity.name, reader.name)
            gathering.put(metrics.CLAIMS, key, claims)
            gathering.put(metrics.CLAIMED, key, messages)
            gathering.put(metrics.OLDEST_CLAIM, key, oldest_ms / 1_000)
            yield


#: First waiting ordinal of (partition, subscription), and its enqueued time.
_Oldest = dict[tuple[int, int], tuple[int, int]]


class _Gathering:
    """Samples of one page."""

    def __init__(self, per_object: bool) -> None:
        self._samples = {
            metric: Samples(metric, per_object=per_object) for metric in metrics.METRICS
        }
        #: samples taken, plus work of the same cost
        self.work = 0

    def put(self, metric: Metric, labels: Labels, value: float) -> None:
        self.work += 1
        self._samples[metric].put(labels, value)

    def put_durations(self, metric: Metric, labels: Labels, durations: Durations) -> None:
        self.work += 1
        self._samples[metric].put_durations(labels, durations)

    def pieces(self) -> Iterator[bytes]:
        """Yield the page, a slice of lines at a time."""
        lines: list[str] = []
        for samples in self._samples.values():
            for line in samples.lines():
                lines.append(line)
                if len(lines) >= SLICE:
                    yield _joined(lines)
                    lines = []
        yield _joined(lines)


def _joined(lines: list[str]) -> bytes:
    return "".join([f"{line}\n" for line in lines]).encode()


def _tally(gathering: _Gathering, entity: str, tally: Tally) -> None:
    gathering.put(metrics.ACCEPTED, (entity,), tally.accepted)
    gathering.put(metrics.DUPLICATES, (entity,), tally.duplicates)
    gathering.put(metrics.DELIVERED, (entity,), tally.delivered)
    gathering.put(metrics.FAILOVERS, (entity,), tally.failovers)
    for metric, inputs in metrics.CHANGES.items():
        gathering.put(metric, (entity,), sum(tally.inputs[one] for one in inputs))
    for reason, count in tally.dead_letters.items():
        gathering.put(metrics.DEAD_LETTERED, (reason, entity), count)
