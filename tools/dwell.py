"""Dwell times under a noisy tenant, with fair delivery and without it, drawn as docs/dwell.svg.

python -m tools.dwell           draw docs/dwell.svg again
python -m tools.dwell --check   fail if it is out of date

Receivers take one message each and need the same time for it. Nine quiet tenants send one message
per second each. For one minute, one more tenant sends more than all receivers can process. One
partition runs in memory, on a simulated clock, so every run draws the same.
"""

from __future__ import annotations

import argparse
import sys
from heapq import heappop, heappush
from pathlib import Path
from typing import NamedTuple

from onibus.core.commands import COMPLETE, Receive, Settle
from onibus.core.message import Message, ReceivedMessage
from onibus.core.partition import Partition
from onibus.core.path.admit import admit
from onibus.core.path.enqueue import find_duplicates, send
from onibus.core.records import WriteBatch
from onibus.core.settings import QueueSettings, make
from onibus.shard.pages import StorePages
from onibus.store.memory import MemoryStore

PAGE = Path(__file__).parent.parent / "docs" / "dwell.svg"
SECRET = b"s" * 32
STEP_MS = 100
SECONDS = 240
#: Receivers, and how long each needs for a message: 100 messages per second in all.
RECEIVERS = 40
WORK_MS = 400
QUIET = 9
NOISY = "noisy"
NOISY_FROM, NOISY_TO, NOISY_RATE = 30, 90, 250
#: Seconds whose mean is one point of the plot.
POINT_SECONDS = 5


class Series(NamedTuple):
    """Mean dwell times in seconds, one for each point of time; None where nothing came."""

    quiet: list[float | None]
    noisy: list[float | None]


class Queue:
    """One partition of a queue in memory."""

    def __init__(self, *, fair: bool) -> None:
        self._settings = make({"fair_delivery": fair, "lock_duration_ms": 60_000}, QueueSettings)
        self._store = MemoryStore("dwell")
        pages = StorePages(self._store)
        self._partition = Partition(1, 0, self._settings, pages, SECRET, 1)
        self._out = WriteBatch()

    def commit(self, now: int) -> None:
        """Make everything so far visible."""
        self._partition.finish(now, self._out)
        self._partition.commit_started()
        self._store.commit(self._out)
        self._partition.commit_finished()
        self._out = WriteBatch()

    def send(self, groups: list[str], now: int) -> None:
        messages = [Message(body=str(now).encode(), partition_key=group) for group in groups]
        batch = [admit(message, self._settings, SECRET) for message in messages]
        found = find_duplicates(self._partition, batch, now)
        send(self._partition, batch, found, now, now, self._out)
        self.commit(now)

    def receive(self, now: int) -> ReceivedMessage | None:
        received = self._partition.apply(Receive(0, 1), now, now, self._out).messages
        return received[0] if received else None

    def complete(self, message: ReceivedMessage, now: int) -> None:
        assert message.token is not None
        command = Settle(0, COMPLETE, [message.token], atomic=True)
        self._partition.apply(command, now, now, self._out)


def senders(now: int) -> list[str]:
    """Return the tenants that send in this step."""
    second, rest = divmod(now, 1_000)
    step = rest // STEP_MS
    quiet = [f"tenant-{n}" for n in range(QUIET) if n == step]
    loud = NOISY_RATE * STEP_MS // 1_000 if NOISY_FROM <= second < NOISY_TO else 0
    return [NOISY] * loud + quiet


def simulate(*, fair: bool) -> Series:
    """Return the dwell times of one run."""
    queue = Queue(fair=fair)
    free = RECEIVERS
    busy: list[tuple[int, int, ReceivedMessage]] = []
    sums: dict[tuple[bool, int], list[float]] = {}
    for now in range(0, SECONDS * 1_000, STEP_MS):
        while busy and busy[0][0] <= now:
            queue.complete(heappop(busy)[2], now)
            free += 1
        queue.commit(now)
        groups = senders(now)
        if groups:
            queue.send(groups, now)
        while free and (message := queue.receive(now)) is not None:
            free -= 1
            heappush(busy, (now + WORK_MS, message.sequence_number, message))
            key = (message.message.partition_key == NOISY, now // 1_000 // POINT_SECONDS)
            sums.setdefault(key, []).append((now - int(message.body)) / 1_000)
        queue.commit(now)
    points = range(SECONDS // POINT_SECONDS)
    means = {key: sum(times) / len(times) for key, times in sums.items()}
    return Series(
        [means.get((False, point)) for point in points],
        [means.get((True, point)) for point in points],
    )


# Drawing

WIDTH, HEIGHT = 720, 320
LEFT, RIGHT, TOP, BOTTOM = 60, 20, 50, 40
LINES = (
    ("quiet tenants, fair delivery", "#1b7837", ""),
    ("quiet tenants, without", "#b2182b", ""),
    ("noisy tenant, fair delivery", "#777777", "4 3"),
)


def draw(fair: Series, plain: Series) -> str:
    """Return the plot."""
    every = (fair.quiet, plain.quiet, fair.noisy)
    highest = max(value for line in every for value in line if value is not None)
    top = -(-highest // 20) * 20

    def x(second: float) -> float:
        return round(LEFT + second / SECONDS * (WIDTH - LEFT - RIGHT), 1)

    def y(value: float) -> float:
        return round(HEIGHT - BOTTOM - value / top * (HEIGHT - TOP - BOTTOM), 1)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="sans-serif" font-size="12" fill="#333333">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        f'<rect x="{x(NOISY_FROM)}" y="{TOP}" width="{round(x(NOISY_TO) - x(NOISY_FROM), 1)}" '
        f'height="{HEIGHT - TOP - BOTTOM}" fill="#f2f2f2"/>',
        f'<text x="{x(NOISY_FROM) + 4}" y="{TOP + 14}">one tenant sends {NOISY_RATE}/s</text>',
    ]
    parts += [
        f'<path d="M{LEFT} {y(value)}H{WIDTH - RIGHT}" stroke="#dddddd"/>'
        f'<text x="{LEFT - 8}" y="{y(value) + 4}" text-anchor="end">{value} s</text>'
        for value in range(0, int(top) + 1, 20)
    ]
    parts += [
        f'<text x="{x(second)}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{second} s</text>'
        for second in range(0, SECONDS + 1, 30)
    ]
    for at, ((name, colour, dashes), line) in enumerate(zip(LINES, every, strict=True)):
        places = [
            f"{x((point + 0.5) * POINT_SECONDS)},{y(value)}"
            for point, value in enumerate(line)
            if value is not None
        ]
        style = f'fill="none" stroke="{colour}" stroke-width="2" stroke-dasharray="{dashes}"'
        parts.append(f'<polyline points="{" ".join(places)}" {style}/>')
        start = LEFT + at * 225
        parts.append(
            f'<path d="M{start} 22h24" {style}/><text x="{start + 30}" y="26">{name}</text>'
        )
    parts.append(f'<text x="{LEFT}" y="{TOP - 8}">mean dwell time of delivered messages</text>')
    return "\n".join([*parts, "</svg>", ""])


def main() -> int:
    """Draw the plot, or check it."""
    parser = argparse.ArgumentParser(description="Draw docs/dwell.svg.")
    parser.add_argument("--check", action="store_true", help="fail if it is out of date")
    checking = parser.parse_args().check
    drawn = draw(simulate(fair=True), simulate(fair=False))
    if not checking:
        PAGE.write_text(drawn)
        return 0
    if PAGE.read_text() != drawn:
        print("docs/dwell.svg is out of date: run python -m tools.dwell", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
