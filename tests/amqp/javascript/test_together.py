"""Clients of two languages at once: JavaScript (together.mjs), and both of Python beside it."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import NEXT_AVAILABLE_SESSION
from azure.servicebus.exceptions import ServiceBusError

from onibus import Message
from onibus.client import Client
from tests.amqp.javascript.playing import Others, Player
from tests.amqp.sdk.stage import KINDS, Kind
from tests.amqp.sdk.world import WAIT_S, get, msg, official
from tests.amqp.sdk_helpers import closing_sockets
from tests.client.server_helpers import development_string
from tests.over_http.on_disk import Place, kill
from tests.server.processes import Served, wait_for

# These clients leave the sockets of broken connections to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

_LANGUAGES = [*KINDS, "javascript"]
_PATIENCE_S = 120


class Beside:
    """Both clients of Python, each in a thread with a loop of its own."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(len(KINDS))
        self._playing: list[Future[Any]] = []
        self._tasks: list[asyncio.Task[Any]] = []

    def begin(self, play: Callable[[Kind], Coroutine[Any, Any, Any]]) -> None:
        self._playing = [self._pool.submit(asyncio.run, self._play(play(kind))) for kind in KINDS]

    async def _play(self, play: Coroutine[Any, Any, Any]) -> Any:
        task = asyncio.ensure_future(play)
        self._tasks.append(task)
        return await task

    def stop(self) -> None:
        """Leave nobody running where the others have failed."""
        for task in self._tasks:
            with suppress(RuntimeError):
                # Where its loop has ended there is nothing to stop.
                task.get_loop().call_soon_threadsafe(task.cancel)
        for one in self._playing:
            with suppress(Exception, asyncio.CancelledError):
                one.result(_PATIENCE_S)

    def check(self) -> None:
        """Fail as one of them has failed."""
        for one in self._playing:
            if one.done():
                one.result()

    def ended(self) -> list[Any]:
        """Wait for their end; return what each has told."""
        return [one.result(_PATIENCE_S) for one in self._playing]


@pytest.fixture
def beside() -> Iterator[Beside]:
    with closing_sockets():
        one = Beside()
        yield one
        one.stop()


@pytest.fixture
def owner(server: Served) -> Iterator[Client]:
    with Client.connect(development_string(server.port, server.root_key)) as client:
        yield client


@pytest.mark.promise("B1", "D1")
def test_they_share_a_queue(player: Player, server: Served, owner: Client, beside: Beside) -> None:
    """All send the same ids, and all hold messages at once: each is stored and completed once."""
    queue, count, held_by_each = "shared-by-languages", 60, 5
    connection = development_string(server.port, server.root_key)
    owner.create_queue(queue, requires_duplicate_detection=True)
    meeting = threading.Barrier(len(_LANGUAGES), timeout=_PATIENCE_S)
    wanted = [f"m-{n}" for n in range(count)]

    def left() -> int:
        return owner.queue(queue).active_count

    async def play(kind: Kind) -> list[str]:
        settled: list[str] = []
        async with official(kind, connection) as client:
            async with client.get_queue_sender(queue) as sender:
                for one in wanted:
                    await sender.send_messages(msg(kind, one))
            async with client.get_queue_receiver(queue) as receiver:
                held = await get(receiver, held_by_each)
                await asyncio.to_thread(meeting.wait)
                while held or (await asyncio.to_thread(left)) > 0:
                    for message in held:
                        await receiver.complete_message(message)
                        settled.append(message.message_id)
                    held = await receiver.receive_messages(held_by_each, max_wait_time=0.5)
        return settled

    def begin() -> dict[str, Any]:
        beside.begin(play)
        return {"queue": queue, "count": count, "held": held_by_each}

    def end(settled: list[str]) -> None:
        by_each = [settled, *beside.ended()]
        assert all(len(one) >= held_by_each for one in by_each)
        assert sorted(chain(*by_each)) == sorted(wanted), "each message was completed by one"

    others: Others = {"begin": begin, "meet": meeting.wait, "left": left, "end": end}
    player.play("together.shareAQueue", connection, others)
    about = owner.queue(queue)
    assert (about.active_count, about.duplicates_dropped) == (0, 2 * count)


@pytest.mark.promise("B4", "S2")
def test_they_share_a_session(
    player: Player, server: Served, owner: Client, beside: Beside
) -> None:
    """Each takes the session when it is free, and adds to its state what it has received."""
    queue, turns, each = "session-of-languages", 2, 4
    connection = development_string(server.port, server.root_key)
    owner.create_queue(queue, requires_session=True)
    last = turns * len(_LANGUAGES) * each - 1

    async def play(kind: Kind) -> None:
        async with official(kind, connection) as client, client.get_queue_sender(queue) as sender:
            for _ in range(turns):
                async with client.get_queue_receiver(
                    queue, session_id=NEXT_AVAILABLE_SESSION, max_wait_time=WAIT_S
                ) as receiver:
                    await take_a_turn(kind, sender, receiver)

    async def take_a_turn(kind: Kind, sender: Any, receiver: Any) -> None:
        session = receiver.session
        before = json.loads(await session.get_state() or "[]")
        messages = await get(receiver, each)
        found = [json.loads(str(message)) for message in messages]
        following = found[-1] + 1
        if following <= last:
            bodies = [f"{number}" for number in range(following, following + each)]
            await sender.send_messages([msg(one, session_id="s") for one in bodies])
        for message in messages:
            await receiver.complete_message(message)
        await session.set_state(json.dumps([*before, *([kind, one] for one in found)]).encode())

    def begin() -> dict[str, Any]:
        beside.begin(play)
        return {"queue": queue, "turns": turns, "each": each, "last": last}

    first = [Message(body=b"%d" % number, session_id="s") for number in range(each)]
    owner.send_batch(queue, first)
    others: Others = {"begin": begin, "end": beside.ended}
    player.play("together.shareASession", connection, others)
    with owner.accept_session(queue, "s") as session:
        state = json.loads(session.get_state() or b"[]")
    assert [body for _, body in state] == list(range(last + 1)), "in order, by one at a time"
    for language in _LANGUAGES:
        assert sum(one == language for one, _ in state) == turns * each


class Tally:
    """What was sent, received and completed for sure, by whom."""

    def __init__(self) -> None:
        self.sent: dict[str, list[str]] = {kind: [] for kind in KINDS}
        self.completed: dict[str, list[str]] = {kind: [] for kind in KINDS}
        #: the numbers under which each message came
        self._numbers: dict[str, set[int]] = {}
        self._lock = threading.Lock()

    def received(self, message_id: str, number: int) -> None:
        with self._lock:
            self._numbers.setdefault(message_id, set()).add(number)

    def add(self, language: str, told: dict[str, list[Any]]) -> None:
        self.sent[language], self.completed[language] = told["sent"], told["completed"]
        for message_id, number in told["received"]:
            self.received(message_id, int(number))

    def check(self) -> None:
        sent, completed = ([*chain(*of.values())] for of in (self.sent, self.completed))
        assert set(sent) <= self._numbers.keys(), "none is lost"
        assert {len(one) for one in self._numbers.values()} == {1}, "none is there twice"
        assert len(set(completed)) == len(completed), "none came again that was completed"


class GoingOn:
    """One client of Python: it sends and receives, over whatever happens, until it is told."""

    #: Enough to get over the start of a server on a busy machine.
    PATIENT: Any = {"retry_total": 100, "retry_mode": "fixed", "retry_backoff_factor": 0.3}

    def __init__(self, kind: Kind, queue: str, tally: Tally) -> None:
        self._kind = kind
        self._queue = queue
        self._tally = tally
        self.sending = self.receiving = True

    async def run(self, connection: str) -> None:
        async with official(self._kind, connection, **self.PATIENT) as client:
            await asyncio.gather(self._send(client), self._receive(client))

    async def _send(self, client: Any) -> None:
        sent = self._tally.sent[self._kind]
        async with client.get_queue_sender(self._queue) as sender:
            while self.sending:
                one = f"{self._kind}-{len(sent)}"
                try:
                    await sender.send_messages(msg("x", one))
                except ServiceBusError:
                    # Nobody can tell whether it is there: sent again, it is a duplicate then.
                    await asyncio.sleep(0.1)
                else:
                    sent.append(one)

    async def _receive(self, client: Any) -> None:
        while self.receiving:
            async with client.get_queue_receiver(self._queue) as receiver:
                await self._receive_from(receiver)

    async def _receive_from(self, receiver: Any) -> None:
        """Receive until a lock is lost: after that these clients use a receiver no more."""
        completed = self._tally.completed[self._kind]
        while self.receiving:
            try:
                for message in await receiver.receive_messages(5, max_wait_time=0.5):
                    self._tally.received(message.message_id, message.sequence_number)
                    await receiver.complete_message(message)
                    completed.append(message.message_id)
            except ServiceBusError:
                return


@pytest.mark.promise("B8", "D5", "D9", "S3")
def test_they_go_on_over_kills(player: Player, tmp_path: Path, beside: Beside) -> None:
    """They find the server again by themselves: nothing is lost, and nothing comes twice."""
    queue, more, place, tally = "q", 10, Place(tmp_path), Tally()
    clients = {kind: GoingOn(kind, queue, tally) for kind in KINDS}
    connection = development_string(place.port)
    with ExitStack() as servers, Client.connect(connection) as owner:
        running = [servers.enter_context(place.serve())]
        owner.create_queue(queue, requires_duplicate_detection=True, lock_duration_ms=5_000)

        def begin() -> dict[str, Any]:
            beside.begin(lambda kind: clients[kind].run(connection))
            return {"queue": queue, "kills": 2, "more": more}

        def end_and_start() -> None:
            kill(running[-1])
            running.append(servers.enter_context(place.serve()))

        def go_on() -> None:
            """Each client sends more, and completes more."""
            lists = [*tally.sent.values(), *tally.completed.values()]
            wanted = [len(one) + more for one in lists]

            def gone_on() -> bool:
                beside.check()
                return all(len(one) >= w for one, w in zip(lists, wanted, strict=True))

            wait_for(gone_on)

        def stop_sending() -> None:
            for one in clients.values():
                one.sending = False

        def end(told: dict[str, list[Any]]) -> None:
            for one in clients.values():
                one.receiving = False
            beside.ended()
            tally.add("javascript", told)

        others: Others = {"begin": begin, "go_on": go_on, "kill": end_and_start, "end": end}
        others |= {"stop_sending": stop_sending, "left": lambda: owner.queue(queue).active_count}
        player.play("together.goOnOverKills", connection, others)
    tally.check()
