"""HTTP against a protocol that responds at once, and how long a server takes to be ready.

Server, yardstick and load are separate processes; the server syncs every send, checks credentials
and detects duplicates. On a machine with two cores the load has one of them: its share is noted,
since what it lacks is missing in the yardstick too.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

from bench.load import TOGETHER, load
from bench.measure import ROUNDS, Figure, folder, median
from bench.served import served
from onibus.security.keys import DEVELOPMENT_KEY, ROOT_NAME
from onibus.security.sas import make_token

COUNT = 20_000
#: Messages that are received one by one, in a round.
RECEIVED_SINGLY = 5_000
_TARGET = "/v1/entities/queue"
_PATIENCE_S = 30


@contextmanager
def _bare() -> Iterator[int]:
    """The yardstick; its port."""
    command = [sys.executable, "-m", "bench.bare_http"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield int(process.stdout.readline())
    finally:
        process.communicate(timeout=_PATIENCE_S)


def create_queue(port: int, authorization: str) -> None:
    """Create the queue that is measured: it looks for duplicates, and takes what there is."""
    settings = {"requires_duplicate_detection": True, "max_size_bytes": 1 << 40}
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/queues/queue",
        json.dumps(settings).encode(),
        {"authorization": authorization, "content-type": "application/json"},
        method="PUT",
    )
    with urllib.request.urlopen(request, timeout=_PATIENCE_S):
        pass


def _rounds(rounds: int) -> dict[str, list[float]]:
    """Return messages a second of each kind of load; of the yardstick requests, and its cost."""
    works = {
        "singly": ("send-singly", COUNT),
        "together": ("send-together", 2 * COUNT),
        "received singly": ("receive-singly", RECEIVED_SINGLY),
        "received together": ("receive-together", 3 * COUNT - RECEIVED_SINGLY),
    }
    found: dict[str, list[float]] = {name: [] for name in (*works, "bare", "share")}
    expiry = int(time.time()) + 3_600
    authorization = make_token("sb://localhost/", ROOT_NAME, DEVELOPMENT_KEY, expiry)
    with folder() as path, served(path) as server, _bare() as bare:
        port = server.port("http")
        create_queue(port, authorization)
        for number in range(rounds + 1):
            answered = load(bare, "send-singly", COUNT, _TARGET, authorization)
            rates = {"bare": COUNT / answered.seconds}
            for name, (script, count) in works.items():
                done = load(port, script, count, _TARGET, authorization)
                rates[name] = count / done.seconds
            # The first round is for warming up.
            if number:
                rates["share"] = answered.cpu_seconds / answered.seconds
                for name, rate in rates.items():
                    found[name].append(rate)
    return found


def _starting(rounds: int) -> float:
    """Return how many seconds it takes from starting the process until it is ready."""
    taken = []
    for _ in range(rounds):
        with folder() as path:
            begun = time.perf_counter()
            with served(path):
                taken.append(time.perf_counter() - begun)
    return median(taken)


def measure(rounds: int = ROUNDS) -> list[Figure]:
    """Return the figures of HTTP."""
    found = _rounds(rounds)
    bare, singly, together = (median(found[name]) for name in ("bare", "singly", "together"))
    one, many = median(found["received singly"]), median(found["received together"])
    share = f"{100 * median(found['share']):.0f} % of a core"
    return [
        Figure(
            "HTTP sends, of answers of a bare protocol",
            100 * singly / bare,
            30,
            "%",
            note=f"{singly:,.0f}/s against {bare:,.0f}/s, for which the load takes {share}",
        ),
        Figure(
            f"HTTP sends in requests of {TOGETHER}, of single ones",
            together / singly,
            2.5,
            "times",
            note=f"{together:,.0f}/s",
        ),
        Figure(
            "HTTP receives and completes, singly, of answers of a bare protocol",
            100 * 2 * one / bare,
            15,
            "%",
            note=f"{one:,.0f} messages/s, two requests each",
        ),
        Figure(
            f"HTTP receives and completes, {TOGETHER} in a request, of sends of as many",
            100 * many / together,
            50,
            "%",
            note=f"{many:,.0f}/s",
        ),
        Figure(
            "from the start of a server to ready",
            _starting(rounds),
            1,
            "seconds",
            at_most=True,
            note="an empty directory; on an idle machine",
        ),
    ]
