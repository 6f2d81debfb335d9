"""Load over the wires of `bench/wires.py`, from a separate process.

python -m bench.wire_load <what, in JSON>; it prints what it took, in JSON.
"""

from __future__ import annotations

import json
import select
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, field
from typing import Any

from bench.wires import Receiving, Wire, one_after_the_other, receiving, sending

_PATIENCE_S = 300
_place = memoryview(bytearray(1 << 20))


class LoadFailed(Exception):
    """A server that failed under load."""


@dataclass(frozen=True)
class Order:
    """A load to run."""

    #: whose wire
    kind: str
    #: what the wire is made of
    given: list[Any]
    #: messages in all
    count: int
    connections: int = 1
    #: requests of a connection that wait for their answer; 0: receive
    window: int = 1


@dataclass(frozen=True)
class Load:
    """How long it took, and what it cost the process that made it."""

    seconds: float
    cpu_seconds: float
    #: how long each request took, where there was one at a time
    each_s: list[float] = field(default_factory=list)


def load(order: Order) -> Load:
    """Run a load in a separate process."""
    command = [sys.executable, "-m", "bench.wire_load", json.dumps(asdict(order))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    if done.returncode:
        raise LoadFailed(f"{order.kind}: {done.stderr.strip()[-500:]}")
    return Load(**json.loads(done.stdout))


class _Sender:
    """One connection that sends, with `window` pending requests at any time."""

    def __init__(self, wire: Wire, prefix: str, count: int, window: int) -> None:
        self.wire = wire
        self._content, self._places = one_after_the_other(wire.requests(prefix, count))
        self._count = count
        self._window = window
        self._sent = 0
        self._answered = 0

    def send(self) -> None:
        until = min(self._answered + self._window, self._count)
        if until > self._sent:
            content = self._content[self._places[self._sent] : self._places[until]]
            self._sent = until
            self.wire.socket.sendall(content)

    def readable(self) -> bool:
        """Read; return whether more responses are pending."""
        read = self.wire.socket.recv_into(_place)
        if not read:
            raise SystemExit("the server has closed a connection")
        self._answered += self.wire.answered(bytes(_place[:read]))
        if self._answered > self._sent:
            raise SystemExit(f"{self._answered} answers to {self._sent} requests")
        self.send()
        return self._answered < self._count


def _send(order: Order) -> Load:
    prefix = f"{time.time_ns()}"
    senders = []
    for number in range(order.connections):
        wire = sending(order.kind, *order.given)
        count = order.count // order.connections // wire.together
        senders.append(_Sender(wire, f"{prefix}-{number}", count, order.window))
    if order.connections == order.window == 1:
        return _singly(senders[0])
    by_number = {one.wire.socket.fileno(): one for one in senders}
    poll = select.epoll()
    for number in by_number:
        poll.register(number, select.EPOLLIN)
    started, cpu = time.perf_counter(), time.process_time()
    for one in senders:
        one.send()
    unfinished = set(by_number)
    while unfinished:
        events = poll.poll(_PATIENCE_S)
        if not events:
            raise SystemExit("nothing was answered for minutes")
        for number, _ in events:
            if not by_number[number].readable():
                unfinished.discard(number)
    return Load(time.perf_counter() - started, time.process_time() - cpu)


def _singly(sender: _Sender) -> Load:
    clock = time.perf_counter
    each: list[float] = []
    started, cpu = clock(), time.process_time()
    sender.send()
    begun, more = started, True
    while more:
        more = sender.readable()
        now = clock()
        each.append(now - begun)
        begun = now
    return Load(clock() - started, time.process_time() - cpu, each)


def _receive(order: Order) -> Load:
    wires: list[Receiving] = [receiving(order.kind, *order.given) for _ in range(order.connections)]
    by_number = {one.socket.fileno(): one for one in wires}
    poll = select.epoll()
    for number in by_number:
        poll.register(number, select.EPOLLIN)
    started, cpu = time.perf_counter(), time.process_time()
    for one in wires:
        one.begin()
    left = order.count
    while left > 0:
        events = poll.poll(_PATIENCE_S)
        if not events:
            raise SystemExit(f"nothing came for minutes; {left} messages are missing")
        for number, _ in events:
            wire = by_number[number]
            read = wire.socket.recv_into(_place)
            if not read:
                raise SystemExit("the server has closed a connection")
            done, answer = wire.received(bytes(_place[:read]))
            left -= done
            if answer:
                wire.socket.sendall(answer)
    return Load(time.perf_counter() - started, time.process_time() - cpu)


if __name__ == "__main__":
    what = Order(**json.loads(sys.argv[1]))
    print(json.dumps(asdict(_send(what) if what.window else _receive(what))))
