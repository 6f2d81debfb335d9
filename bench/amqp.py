"""AMQP in one run with RabbitMQ, NATS JetStream and PostgreSQL from Debian's packages.

Each stores a message on disk before it acknowledges it: RabbitMQ in a durable quorum queue with
confirms, NATS with `sync_interval: always`, PostgreSQL in a table with one INSERT per message and
256 of them per commit. NATS and PostgreSQL detect duplicates as we do; RabbitMQ does not. All
servers are separate processes, and so is the load, which sends bytes that were ready before the
clock started (`bench/wires.py`). Rounds alternate, so that noise hits all alike.

python -m bench amqp
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psutil

from bench import brokers, http, postgres
from bench.measure import BODY_BYTES, ROUNDS, Figure, folder, median
from bench.served import served
from bench.wire_load import Load, LoadFailed, Order, load
from bench.wires import BATCH
from onibus.security.keys import DEVELOPMENT_KEY, ROOT_NAME
from onibus.security.sas import make_token

COUNT = 20_000
#: NATS syncs each message for itself: it gets fewer, so that a round does not last minutes.
NATS_COUNT = 2_000
#: Messages that are sent one at a time, in a round, and syncs of a plain file.
SINGLY = 1_000
CONNECTIONS = 4
#: Sends of a connection that wait for their answer.
WINDOW = 256
#: Inserts of a commit, and commits of a connection that wait for their answer.
COMMIT, COMMITS = 256, 2
#: Batches of a connection that wait for their answer.
BATCHES = 4
#: After a round all brokers tidy up what it left; single messages are timed when that is over.
QUIET_S = 2
_QUEUE = "queue"
_SYNC = "the machine's own sync"


class Broker:
    """A running broker: its processes, and what a wire to it is made of."""

    def __init__(self, kind: str, process: int, *given: Any) -> None:
        self.kind = kind
        self._process = psutil.Process(process)
        self.given = list(given)

    def cpu_s(self) -> float:
        """Return what its processes have used, those that have ended too."""
        used = self._process.cpu_times()
        total = used.user + used.system + used.children_user + used.children_system
        for one in self._process.children(recursive=True):
            used = one.cpu_times()
            total += used.user + used.system
        return float(total)


@contextmanager
def onibus(path: Path) -> Iterator[Broker]:
    """Our server, with a queue that looks for duplicates."""
    with served(path) as server:
        expiry = int(time.time()) + 3_600
        token = make_token("sb://localhost/", ROOT_NAME, DEVELOPMENT_KEY, expiry)
        http.create_queue(server.port("http"), token)
        yield Broker("onibus", server.pid, server.port("amqp"), _QUEUE, ROOT_NAME, DEVELOPMENT_KEY)


@contextmanager
def rabbitmq(path: Path) -> Iterator[Broker]:
    with brokers.rabbitmq(path) as (process, port):
        yield Broker("rabbitmq", process, port, _QUEUE)


@contextmanager
def nats(path: Path) -> Iterator[Broker]:
    with brokers.nats(path) as (process, port):
        yield Broker("nats", process, port, _QUEUE)


@contextmanager
def table(path: Path) -> Iterator[Broker]:
    path.mkdir()
    # It runs as a separate user, which needs access to this folder.
    path.parent.chmod(0o711)
    with postgres.cluster(path) as cluster:
        if cluster is None:
            raise brokers.Missing("postgresql is not installed")
        cluster.sql(
            f"CREATE TABLE {_QUEUE}"
            " (number bigserial PRIMARY KEY, message_id text UNIQUE, body bytea)"
        )
        yield Broker("postgres", cluster.process, str(path), _QUEUE, COMMIT)


def _synced(path: Path) -> list[float]:
    """Return how long each append of a message to a plain file takes, with its sync."""
    data, each = os.urandom(BODY_BYTES), []
    with open(path / "plain", "ab", buffering=0) as file:
        for _ in range(SINGLY):
            begun = time.perf_counter()
            file.write(data)
            os.fdatasync(file.fileno())
            each.append(time.perf_counter() - begun)
    return each


class Rounds:
    """The results: rates, CPU time of the servers per message, and single times."""

    def __init__(self) -> None:
        self.rates: dict[str, list[float]] = {}
        self.costs_us: dict[str, list[float]] = {}
        self.each_s: dict[str, list[float]] = {}
        self.counts = True
        #: peers that failed, and why
        self.failed: dict[str, str] = {}

    def run(self, name: str, broker: Broker, order: Order) -> None:
        before = broker.cpu_s()
        done: Load = load(order)
        if self.counts:
            used = 1e6 * (broker.cpu_s() - before) / order.count
            self.rates.setdefault(name, []).append(order.count / done.seconds)
            self.costs_us.setdefault(name, []).append(used)
            self.each_s.setdefault(name, []).extend(done.each_s)

    def send(self, kind: str, broker: Broker) -> None:
        """Send single messages, many of them under way."""
        count, window = COUNT, WINDOW
        if kind == "nats":
            count = NATS_COUNT
        elif kind == "postgres":
            count, window = COUNT // (CONNECTIONS * COMMIT) * CONNECTIONS * COMMIT, COMMITS
        self.run(f"{kind} sends", broker, Order(kind, broker.given, count, CONNECTIONS, window))

    def singly(self, kind: str, broker: Broker) -> None:
        """Send one message after the other, each waited for."""
        self.run(f"{kind} singly", broker, Order(kind, broker.given, SINGLY))

    def receive(self, kind: str, broker: Broker) -> None:
        """Receive and complete all that was sent."""
        count = SINGLY + COUNT + (2 * COUNT if kind == "onibus" else 0)
        self.run(f"{kind} receives", broker, Order(kind, broker.given, count, window=0))

    def go(self, path: Path, by_kind: dict[str, Broker]) -> None:
        """Measure all installed servers, once."""
        time.sleep(QUIET_S)
        syncs = _synced(path)
        if self.counts:
            self.each_s.setdefault(_SYNC, []).extend(syncs)
        both = ["onibus", "rabbitmq"]
        self._each(both, by_kind, self.singly)
        self._each(list(by_kind), by_kind, self.send)
        own = by_kind["onibus"]
        batches = Order("onibus", [*own.given, BATCH], 2 * COUNT, CONNECTIONS, BATCHES)
        self.run("onibus batches", own, batches)
        self._each(both, by_kind, self.receive)

    def _each(
        self, kinds: list[str], by_kind: dict[str, Broker], what: Callable[[str, Broker], None]
    ) -> None:
        """Measure servers in turn; a peer that fails is named, and no longer measured."""
        for kind in kinds:
            if kind in by_kind:
                try:
                    what(kind, by_kind[kind])
                except LoadFailed as error:
                    if kind == "onibus":
                        raise
                    self.failed[kind] = str(error)
                    del by_kind[kind]

    def told(self, name: str) -> str:
        return f"{median(self.rates[name]):,.0f}/s ({median(self.costs_us[name]):.0f} µs CPU each)"


#: Our figures, the peers' figures, and the required share of these.
_AGAINST = (
    ("AMQP: single sends", "onibus sends", "nats", "sends", 1.0),
    ("AMQP: single sends", "onibus sends", "postgres", "sends", 1.0),
    ("AMQP: single sends", "onibus sends", "rabbitmq", "sends", 0.5),
    (f"AMQP: batches of {BATCH}", "onibus batches", "rabbitmq", "sends", 1.0),
    ("AMQP: receive + complete", "onibus receives", "rabbitmq", "receives", 0.5),
)
_NAMES = {
    "nats": "NATS, sync always",
    "postgres": "a PostgreSQL table",
    "rabbitmq": "a RabbitMQ quorum queue",
}


def measure(rounds: int = ROUNDS) -> list[Figure]:
    """Return the figures; a peer that is not here is named in them."""
    found, missing = Rounds(), {}
    with ExitStack() as stack:
        path = stack.enter_context(folder())
        by_kind = {}
        starts = {"onibus": onibus, "rabbitmq": rabbitmq, "nats": nats, "postgres": table}
        for kind, start in starts.items():
            try:
                by_kind[kind] = stack.enter_context(start(path / kind))
            except brokers.Missing as error:
                missing[kind] = str(error)
        for number in range(rounds + 1):
            # The first round is for warming up.
            found.counts = number > 0
            found.go(path, by_kind)
    missing |= found.failed
    figures = []
    for what, own, kind, theirs, target in _AGAINST:
        unit = f"× {_NAMES[kind]}"
        if kind in missing:
            note = f"{found.told(own)}; no peer: {missing[kind]}"
            figures.append(Figure(what, 0, target, unit, note=note))
            continue
        other = f"{kind} {theirs}"
        ratio = median(found.rates[own]) / median(found.rates[other])
        note = f"{found.told(own)} against {found.told(other)}"
        figures.append(Figure(what, ratio, target, unit, note=note))
    return figures + _one_at_a_time(found)


def _one_at_a_time(found: Rounds) -> list[Figure]:
    figures = []
    for percent in (50, 99):
        by_name = {
            name: sorted(each)[len(each) * percent // 100]
            for name, each in found.each_s.items()
            if each
        }
        own, sync = by_name["onibus singly"], by_name[_SYNC]
        note = f"{1e3 * own:.2f} ms against {1e3 * sync:.2f} ms"
        if "rabbitmq singly" in by_name:
            note += f"; RabbitMQ {1e3 * by_name['rabbitmq singly']:.2f} ms"
        figures.append(
            Figure(
                f"AMQP: one message at a time, p{percent}", own / sync, 5, f"× {_SYNC}",
                at_most=True, note=note,
            )
        )  # fmt: skip
    return figures
