"""The speed of this tree against an earlier commit, in one run.

python -m bench.against REVISION [--rounds 9]

Both trees run at the same time, each with its own server and data directory, and get the same load
in turn, so that noise hits both alike. A rate is the median of all rounds. The processor time per
message is printed next to it: on a noisy machine it is the steadier of the two.
The exit code is 1 if a rate, or the rate that the processor time allows, fell by more than 5 %.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import subprocess
import sys
import tarfile
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench import http, sqs
from bench.amqp import BATCHES, CONNECTIONS, WINDOW
from bench.load import load as load_http
from bench.measure import folder, median
from bench.served import Served, served
from bench.wire_load import Order, load
from bench.wires import BATCH
from onibus.security.keys import DEVELOPMENT_KEY, ROOT_NAME
from onibus.security.sas import make_token

COUNT = 20_000
SQS_COUNT = 3_000
#: A figure below this share of the earlier one is a loss.
SHARE_MIN = 0.95
_TARGET = "/v1/entities/queue"
_IN_PROCESS = Path(__file__).with_name("in_process.py")

#: The load → messages per second, and microseconds of processor time per message.
Found = dict[str, tuple[float, float]]


@dataclass
class Tree:
    """One of the two trees: its code, its server and its figures."""

    code: Path
    data: Path
    rates: dict[str, list[float]] = field(default_factory=dict)
    costs: dict[str, list[float]] = field(default_factory=dict)

    def start(self, stack: ExitStack) -> None:
        """Start its server, with a queue for HTTP and another one for AMQP."""
        self.server = stack.enter_context(served(self.data / "server", self.code))
        expiry = int(time.time()) + 24 * 3_600
        self.token = make_token("sb://localhost/", ROOT_NAME, DEVELOPMENT_KEY, expiry)
        http.create_queue(self.server.port("http"), self.token)

    def keep(self, found: Found) -> None:
        """Keep the figures of a round."""
        for name, (rate, cost) in found.items():
            self.rates.setdefault(name, []).append(rate)
            self.costs.setdefault(name, []).append(cost)

    def in_process(self) -> Found:
        command = [sys.executable, str(_IN_PROCESS), str(self.data), str(COUNT)]
        environment = os.environ | {"PYTHONPATH": str(self.code)}
        done = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE)
        found: Found = {name: tuple(both) for name, both in json.loads(done.stdout).items()}
        return found

    def http(self) -> Found:
        found: Found = {}
        loads = (("send-singly", COUNT), ("send-together", COUNT), ("receive-together", 2 * COUNT))
        for script, count in loads:
            cost = Cost(self.server)
            done = load_http(self.server.port("http"), script, count, _TARGET, self.token)
            found[f"HTTP {script}"] = cost.per_message(count, done.seconds)
        return found

    def amqp(self) -> Found:
        port = self.server.port("amqp")
        given = [port, "queue", ROOT_NAME, DEVELOPMENT_KEY]
        orders = {
            "AMQP sends": Order("onibus", given, COUNT, CONNECTIONS, WINDOW),
            "AMQP batches": Order("onibus", [*given, BATCH], COUNT, CONNECTIONS, BATCHES),
            "AMQP receives": Order("onibus", given, 2 * COUNT, window=0),
        }
        found: Found = {}
        for name, order in orders.items():
            cost = Cost(self.server)
            found[name] = cost.per_message(order.count, load(order).seconds)
        return found

    def sqs(self) -> Found:
        bench = sqs.Bench(sqs.Server(self.server.addresses["sqs"], self.server.pid))
        url = bench.queue()
        loads = {
            "SQS sends": (bench.sends, SQS_COUNT),
            "SQS batches": (bench.batches, 2 * SQS_COUNT),
            "SQS receives": (bench.receives, 3 * SQS_COUNT),
        }
        found: Found = {}
        for name, (script, count) in loads.items():
            cost = Cost(self.server)
            rate = script(url, count, 8).rate
            found[name] = cost.per_message(count, count / rate)
        return found


class Cost:
    """The processor time that a server uses from now on, to the microsecond."""

    def __init__(self, server: Served) -> None:
        self._threads = Path(f"/proc/{server.pid}/task")
        self._before_ns = self._used_ns()

    def _used_ns(self) -> int:
        return sum(int(one.read_text().split()[0]) for one in self._threads.glob("*/schedstat"))

    def per_message(self, count: int, seconds: float) -> tuple[float, float]:
        """Return messages per second, and microseconds of processor time per message."""
        return count / seconds, (self._used_ns() - self._before_ns) / count / 1e3


def checked_out(revision: str, place: Path) -> Path:
    """Write the files of a commit to a directory."""
    top = Path(__file__).parent.parent
    command = ["git", "-C", str(top), "archive", revision]
    archive = subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        files.extractall(place, filter="data")
    return place


def compare(revision: str, rounds: int) -> tuple[Tree, Tree]:
    """Measure the earlier commit and this tree in turn."""
    with ExitStack() as stack:
        path = stack.enter_context(folder())
        trees = (
            Tree(checked_out(revision, path / "code"), path / "before"),
            Tree(Path(__file__).parent.parent, path / "after"),
        )
        for tree in trees:
            tree.data.mkdir()
            tree.start(stack)
        for number in range(rounds + 1):
            for measure in (Tree.in_process, Tree.http, Tree.amqp, Tree.sqs):
                # Each tree comes first as often as the other one.
                for tree in trees if number % 2 else reversed(trees):
                    found = measure(tree)
                    if number:
                        # The first round is for warming up.
                        tree.keep(found)
            print(f"round {number} of {rounds}", file=sys.stderr, flush=True)
    return trees


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.against")
    parser.add_argument("revision", help="the earlier commit")
    parser.add_argument("--rounds", type=int, default=9, help="default: 9")
    given = parser.parse_args()
    before, after = compare(given.revision, given.rounds)
    table = Table("what", "before", "now", "rate", "CPU rate", title=f"against {given.revision}")
    lost = 0
    for name, rates in before.rates.items():
        old, new = median(rates), median(after.rates[name])
        cost, costs = median(before.costs[name]), median(after.costs[name])
        # Noise slows the wall clock; a real loss shows in the processor time as well.
        lost += max(new / old, cost / costs) < SHARE_MIN
        table.add_row(
            name,
            f"{old:,.0f}/s, {cost:.1f} µs",
            f"{new:,.0f}/s, {costs:.1f} µs",
            f"{new / old:.2f}",
            f"{cost / costs:.2f}",
        )
    Console().print(table)
    sys.exit(lost > 0)


if __name__ == "__main__":
    main()
