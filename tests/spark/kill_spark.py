"""Kills of drivers, executors, Python workers and the broker, over both readers and both writers.

    python -m tests.spark.kill_spark --kills 100 --seed 7 --on local

Four queries run at once, each from a queue to a queue: log and queue reads, a stream and
`foreachBatch` as writers. A capture of one of them writes a lake. A sender feeds them. A kill comes
as soon as rows arrived after the last one. After every 25 kills, and at the end, each row that was
sent must be in the target once, under numbers without a gap. Each must be in the lake once, and an
audit of the lake passes. `--on` is local, standalone (two workers) or connect. SIGTERM ends the
kills with a check.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from onibus import Message
from onibus.client import Client
from onibus.core.errors import OnibusError
from onibus.spark.lake import MESSAGES, OUTCOMES, Lake
from tests.client.server_helpers import ServerProcess
from tests.source_tree import ROOT
from tests.spark.clusters import CONNECT, connect_server, standalone, use_compiled_modules
from tests.spark.faults import gapless
from tests.spark.kill_driver import (
    ANSWER,
    ASK,
    CAPTURED,
    LAKE,
    PAIRS,
    name_of,
    read_if_there,
    write_whole,
)
from tests.spark.writing_helpers import log_of

PATIENCE_S = 3600
EXECUTOR, PYTHON = "CoarseGrainedExecutorBackend", "pyspark.daemon"
#: Victims with their weights: a driver takes long to start again, on a busy machine a minute.
VICTIMS = {
    "local": {"broker": 8, "python": 8, "driver": 1},
    "standalone": {"broker": 8, "python": 8, "executor": 3, "driver": 1},
    "connect": {"broker": 8, "python": 8, "driver": 1},
}
#: Kills from one check of all rows to the next one.
CHECK_EVERY = 25
#: Bad results of a check.
WRONG = ("lost", "repeated", "gaps", "staged", "lake lost", "lake repeated")
#: Short runs: compiling for speed would cost more than it saves.
JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def below(place: Path, words: str) -> list[int]:
    """Return the processes that run below a folder, and whose command has these words."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            if words in command and Path(os.readlink(entry / "cwd")).is_relative_to(place):
                found.append(int(entry.name))
        except (OSError, UnicodeDecodeError):
            continue
    return sorted(found)


class Driver:
    """The driver, on the Spark that was chosen."""

    def __init__(self, on: str, place: Path, connection: str) -> None:
        self._on, self._place, self._connection = on, place, connection
        self._stack = ExitStack()
        self.process: subprocess.Popen[bytes]

    def start(self) -> None:
        """Start it, and what it runs on."""
        if self._on == "connect":
            master = self._stack.enter_context(connect_server(self._place))
        elif self._on == "standalone":
            if "_master" not in self.__dict__:
                self._master = self._stack.enter_context(standalone(self._place, workers=2))
            master = self._master
        else:
            master = "local[2,4]"
        words = [master, self._connection, str(self._place)]
        with (self._place / "driver.log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.spark.kill_driver", *words],
                cwd=self._place,
                env=os.environ | {"PYTHONPATH": str(ROOT)},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def kill(self) -> None:
        """Kill it; over Spark Connect the driver is the server."""
        if self._on == "connect":
            for one in below(self._place, CONNECT):
                with ignored():
                    os.kill(one, signal.SIGKILL)
            self._stack.close()
        with ignored():
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def end(self) -> None:
        """Leave nothing behind."""
        self.kill()
        self._stack.close()


@contextmanager
def ignored() -> Iterator[None]:
    """Accept that a process has ended already."""
    try:
        yield
    except ProcessLookupError:
        return


class Feed(threading.Thread):
    """Sends rows to all queues until it is stopped; each counts as sent once."""

    def __init__(self, connection: str, sent: int) -> None:
        super().__init__(daemon=True)
        self._connection = connection
        self._stopped = threading.Event()
        self.sent = sent

    def run(self) -> None:
        """Send; the same rows again until they are accepted."""
        with Client.connect(self._connection) as client:
            while not self._stopped.wait(0.4):
                rows = [
                    Message(body=b"%d" % at, message_id=f"{at}")
                    for at in range(self.sent, self.sent + 10)
                ]
                for pair in PAIRS:
                    self._send(client, name_of(*pair, "in"), rows)
                self.sent += len(rows)

    def stop(self) -> int:
        """Stop when all queues have the same rows; return how many were sent to each."""
        self._stopped.set()
        self.join()
        return self.sent

    def _send(self, client: Client, entity: str, rows: list[Message]) -> None:
        while True:
            try:
                client.send_batch(entity, rows)
            except OnibusError:
                time.sleep(0.1)
            else:
                return


def written(connection: str) -> int:
    """Return how many rows have arrived in all targets."""
    while True:
        try:
            with Client.connect(connection) as client:
                return sum(
                    sum(end or 0 for end in client.log_positions(name_of(*pair, "out")).latest)
                    for pair in PAIRS
                )
        except OnibusError:
            time.sleep(0.2)


def wait_until(done: Callable[[], bool], place: Path, driver: Driver) -> None:
    """Wait for something that needs the driver; start it again if it ends."""
    deadline = time.monotonic() + PATIENCE_S
    while not done():
        if time.monotonic() > deadline:
            raise AssertionError((place / "driver.log").read_text()[-5000:])
        if driver.process.poll() is not None:
            # It lost its cluster: Spark does not continue without it.
            driver.kill()
            driver.start()
        time.sleep(0.1)


def check_queues(connection: str, sent: int) -> dict[str, int]:
    """Return how many rows are lost, repeated or numbered with a gap."""
    found = Counter[str]()
    with Client.connect(connection) as client:
        for pair in PAIRS:
            out = name_of(*pair, "out")
            rows = log_of(client, out, "sequence_number", "message_id")
            ids = Counter(one for _, one in rows)
            found["rows"] += len(rows)
            found["lost"] += sum(f"{at}" not in ids for at in range(sent))
            found["repeated"] += sum(count - 1 for count in ids.values())
            found["gaps"] += not gapless(client, out, [number for number, _ in rows])
            found["staged"] += len(client.staged(out))
    return dict(found)


def check_lake(place: Path, sent: int) -> dict[str, int]:
    """Return how many rows the lake has, and how many it lacks or repeats."""
    lake = Lake(str(place / LAKE), name_of(*CAPTURED, "in"))
    ids = Counter(
        one
        for file in lake.files(MESSAGES)
        for one in lake.read(file)[1].column("message_id").to_pylist()
    )
    ends = sum(lake.read(file)[1].num_rows for file in lake.files(OUTCOMES))
    return {
        "lake rows": ids.total(),
        "lake outcomes": ends,
        "lake lost": sum(f"{at}" not in ids for at in range(sent)),
        "lake repeated": ids.total() - len(ids),
    }


def check(connection: str, number: int, sent: int, place: Path, driver: Driver) -> dict[str, Any]:
    """Let the driver process all rows; return what is lost or repeated, and the lake's verdict."""
    write_whole(place / ASK, f"{number}")
    answer = place / ANSWER
    wait_until(lambda: read_if_there(answer).startswith(f"{number} "), place, driver)
    verdict = answer.read_text().partition(" ")[2]
    counts = {"sent": sent * len(PAIRS), "sent to the lake's queue": sent}
    return counts | check_queues(connection, sent) | check_lake(place, sent) | {"audit": verdict}


def kill_all(on: str, kills: int, seed: int, place: Path, ended: threading.Event) -> bool:
    """Kill at random, this number of times or until the end; return whether all checks passed."""
    draw, begun = random.Random(seed), time.monotonic()
    victims, weights = zip(*VICTIMS[on].items(), strict=True)
    done = Counter[str]()
    with ServerProcess(place / "data") as server:
        connection = server.connection_string
        with Client.connect(connection) as client:
            for pair in PAIRS:
                client.create_queue(name_of(*pair, "in"), requires_duplicate_detection=True)
                client.create_queue(name_of(*pair, "out"))
        feed, driver = Feed(connection, 0), Driver(on, place, connection)
        feed.start()
        try:
            driver.start()
            while done.total() < kills:
                before = written(connection)
                wait_until(
                    lambda before=before: written(connection) > before,  # type: ignore[misc]
                    place,
                    driver,
                )
                time.sleep(draw.random() * 0.5)
                [victim] = draw.choices(victims, weights)
                if not kill(victim, server, driver, place, draw):
                    continue
                done[victim] += 1
                at = round(time.monotonic() - begun)
                print(f"{done.total()}: {victim}, {feed.sent} sent, {at} s", file=sys.stderr)
                if ended.is_set():
                    kills = done.total()
                if done.total() % CHECK_EVERY and done.total() != kills:
                    continue
                found = check(connection, done.total(), feed.stop(), place, driver)
                report = {"on": on, "seed": seed, "kills": done.total()} | found | dict(done)
                print(json.dumps(report | {"seconds": round(time.monotonic() - begun)}), flush=True)
                if found["audit"] != "PASSED" or any(found[name] for name in WRONG):
                    return False
                feed = Feed(connection, feed.sent)
                feed.start()
        finally:
            feed.stop()
            driver.end()
    return True


def kill(
    victim: str, server: ServerProcess, driver: Driver, place: Path, draw: random.Random
) -> bool:
    """Kill one process and start it again where nothing else does; return whether it was there."""
    if victim == "broker":
        server.kill()
        server.start()
        return True
    if victim == "driver":
        driver.kill()
        driver.start()
        return True
    found = below(place, EXECUTOR if victim == "executor" else PYTHON)
    if not found:
        return False
    with ignored():
        os.kill(draw.choice(found), signal.SIGKILL)
        return True
    return False


def main() -> int:
    """Run with what the command line says; exit 1 if a row is lost or repeated."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--on", choices=sorted(VICTIMS), default="local")
    given = parser.parse_args()
    os.environ.setdefault("JDK_JAVA_OPTIONS", JAVA)
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    with tempfile.TemporaryDirectory(prefix="kill-spark-", ignore_cleanup_errors=True) as name:
        place = Path(name).resolve()
        use_compiled_modules(place / "spark")
        return 0 if kill_all(given.on, given.kills, given.seed, place, ended) else 1


if __name__ == "__main__":
    sys.exit(main())
