"""Move tasks: they move a dead-letter queue's messages to their source queues or to one queue.

A queue keeps its last ten tasks, so a task is listed after a restart, and continues if it was
running. It moves slice by slice, each atomically; a cancelled task stops after its slice. Moved
messages are new: their receive counts restart, and they no longer show that they were
dead-lettered.
"""

from __future__ import annotations

import asyncio
import json
import logging
from base64 import b64decode, b64encode

import msgspec
from msgspec.structs import replace

from onibus.bus import Bus
from onibus.core.errors import EntityNotFound, OnibusError
from onibus.core.message import Message, ReceivedMessage
from onibus.directory.entity import QUEUE, Entity
from onibus.gateway.transferring import Transferred, ends, transfer
from onibus.protocols.sqs.changing import change_texts
from onibus.protocols.sqs.errors import QUEUE_DOES_NOT_EXIST
from onibus.protocols.sqs.messages import DEAD_LETTER_PROPERTIES, SOURCE_PROPERTY, is_dead_letter
from onibus.protocols.sqs.queues import settings_of
from onibus.shard.runner import run

_log = logging.getLogger("onibus.sqs")

KEPT = "sqs.MoveTasks"
TASKS_KEPT = 10
#: The messages of a slice, unless the rate asks for fewer.
A_SLICE = 100

RUNNING, COMPLETED, FAILED = "RUNNING", "COMPLETED", "FAILED"
CANCELLING, CANCELLED = "CANCELLING", "CANCELLED"
NO_SOURCE = "CouldNotDetermineMessageSource"


class Task(msgspec.Struct, kw_only=True):
    """One task, as it is kept."""

    id: str
    status: str = RUNNING
    #: the queue that messages go to; empty where each goes back
    destination: str = ""
    #: otherwise, the source queues that the client that started the task may send to
    sources: list[str] = []
    #: messages per second; 0: no limit
    rate: int = 0
    moved: int = 0
    to_move: int = 0
    started_ms: int = 0
    reason: str = ""


def tasks_of(entity: Entity) -> list[Task]:
    """Return the tasks of a queue, the last one first."""
    text = settings_of(entity).attributes.get(KEPT)
    return [] if text is None else msgspec.json.decode(text, type=list[Task])


def handle_of(task_id: str, arn: str) -> str:
    """Return the handle by which clients name a task."""
    return b64encode(json.dumps({"taskId": task_id, "sourceArn": arn}).encode()).decode()


def read_handle(handle: str) -> tuple[str, str] | None:
    """Return the task and the source's ARN that a handle means."""
    try:
        content = json.loads(b64decode(handle, validate=True))
        task, arn = content["taskId"], content["sourceArn"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return (task, arn) if isinstance(task, str) and isinstance(arn, str) else None


class MoveTasks:
    """The tasks that run now."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        #: by the incarnation of their source
        self.running: dict[int, Task] = {}
        self._jobs: dict[int, asyncio.Task[None]] = {}

    def resume(self) -> None:
        """Continue the tasks that were running when the server stopped."""
        for entity in list(self._bus.broker.namespace.entities.values()):
            if entity.kind == QUEUE and KEPT in settings_of(entity).attributes:
                for task in tasks_of(entity)[:1]:
                    if task.status in (RUNNING, CANCELLING):
                        self._run(entity, task)

    async def start(self, entity: Entity, task: Task) -> None:
        """Begin a task; the caller has seen that none is running."""
        self.running[entity.incarnation] = task
        try:
            await self._keep(entity, task)
        except BaseException:
            del self.running[entity.incarnation]
            raise
        self._run(entity, task)

    async def cancel(self, entity: Entity, task: Task) -> int:
        """Stop a task after its slice; return how many messages it has moved."""
        task.status = CANCELLING
        await self._keep(entity, task)
        return task.moved

    async def stop(self) -> None:
        """Stop all tasks; they continue after the server restarts."""
        for job in self._jobs.values():
            job.cancel()
        await asyncio.gather(*self._jobs.values(), return_exceptions=True)

    def _run(self, entity: Entity, task: Task) -> None:
        self.running[entity.incarnation] = task
        job = asyncio.get_running_loop().create_task(self._move_all(entity, task))
        self._jobs[entity.incarnation] = job
        job.add_done_callback(lambda _: self._jobs.pop(entity.incarnation, None))

    async def _move_all(self, entity: Entity, task: Task) -> None:
        below: dict[int, int] = {}
        try:
            below = ends(entity)
            while task.status == RUNNING:
                moved = await self._move_some(entity, task, below)
                task.moved += moved.moved
                if moved.refused is not None:
                    task.status, task.reason = FAILED, moved.refused
                elif not moved.moved:
                    task.status = COMPLETED
                elif task.rate:
                    await asyncio.sleep(moved.moved / task.rate)
        except EntityNotFound:
            task.status, task.reason = FAILED, QUEUE_DOES_NOT_EXIST.code
        except OnibusError as error:
            task.status, task.reason = FAILED, error.code
        if task.status == CANCELLING:
            task.status = CANCELLED
        self.running.pop(entity.incarnation, None)
        try:
            await self._keep(entity, task)
        except OnibusError as error:
            # The queue was deleted, or the broker cannot commit now: a restart continues the task.
            _log.warning("cannot save the result of a move task: %s", error)

    async def _move_some(self, entity: Entity, task: Task, below: dict[int, int]) -> Transferred:
        limit = min(A_SLICE, max(1, task.rate // 10)) if task.rate else A_SLICE

        def target_of(received: ReceivedMessage) -> str | None:
            if task.destination:
                return task.destination
            # Any sender to this queue can name a source: only a source that the bus wrote counts.
            if not is_dead_letter(received.message):
                return None
            source = str(received.message.properties[SOURCE_PROPERTY])
            return source if source in task.sources else None

        broker = self._bus.broker
        result: Transferred = await self._bus.ask(
            lambda reply: run(transfer(broker, entity, limit, below, target_of, _again), reply)
        )
        if result.refused is not None and not task.destination:
            return Transferred(result.moved, NO_SOURCE)
        return result

    async def _keep(self, entity: Entity, task: Task) -> None:
        def keep(texts: dict[str, str]) -> dict[str, str]:
            others = [one for one in tasks_of(entity) if one.id != task.id]
            tasks = [task, *others][:TASKS_KEPT]
            return texts | {KEPT: msgspec.json.encode(tasks).decode()}

        await change_texts(self._bus, entity, keep)


def _again(received: ReceivedMessage) -> Message:
    """Return a message as it is moved: as a new one."""
    message = received.message
    properties = message.properties
    if is_dead_letter(message):
        properties = {
            name: value for name, value in properties.items() if name not in DEAD_LETTER_PROPERTIES
        }
    return replace(
        message,
        properties=properties,
        hop_count=0,
        enqueued_sequence_number=None,
        dead_letter_of=None,
        received_before=0,
        scheduled_enqueue_time_ms=None,
        rewritten=bool(message.as_sent),
    )
