"""Move tasks: started, listed, cancelled."""

from __future__ import annotations

from onibus.directory.entity import Entity
from onibus.protocols.sqs import errors
from onibus.protocols.sqs.actions.checking import check_between
from onibus.protocols.sqs.actions.redrive import sources_of
from onibus.protocols.sqs.call import Action, SqsCall
from onibus.protocols.sqs.errors import SqsError
from onibus.protocols.sqs.messages import new_id
from onibus.protocols.sqs.move_tasks import RUNNING, Task, handle_of, read_handle, tasks_of
from onibus.protocols.sqs.queue_attributes import visible_count
from onibus.protocols.sqs.queues import Queues, entity_name
from onibus.protocols.sqs.shapes import (
    CancelMoveIn,
    CancelMoveOut,
    ListMovesIn,
    ListMovesOut,
    MoveTaskOut,
    StartMoveIn,
    StartMoveOut,
)
from onibus.security.rights import Right

RATE_MAX = 500
RESULTS_MAX = 10


def _by_source(queues: Queues, given: StartMoveIn | ListMovesIn) -> str:
    if not given.source_arn:
        raise errors.missing("SourceArn")
    return entity_name(given.source_arn.rpartition(":")[2])


def _by_handle(queues: Queues, given: CancelMoveIn) -> str:
    return entity_name(_read(given)[1].rpartition(":")[2])


def _read(given: CancelMoveIn) -> tuple[str, str]:
    if not given.task_handle:
        raise errors.missing("TaskHandle")
    found = read_handle(given.task_handle)
    if found is None:
        text = "Value for parameter TaskHandle is invalid."
        raise SqsError(errors.INVALID_PARAMETER, text)
    return found


async def start_task(call: SqsCall, given: StartMoveIn) -> StartMoveOut:
    """Begin to move the messages of a dead-letter queue."""
    assert given.source_arn is not None
    source = call.queues.by_arn(given.source_arn, "SourceArn")
    rate = given.max_number_of_messages_per_second
    if rate is not None:
        check_between("MaxNumberOfMessagesPerSecond", rate, 1, RATE_MAX)
    destination = ""
    if given.destination_arn:
        target = call.queues.by_arn(given.destination_arn, "DestinationArn")
        call.grant(Right.SEND, target.name)
        destination = target.name
    sources = sources_of(call, source)
    if not sources:
        text = "Source queue must be configured as a Dead Letter Queue."
        raise SqsError(errors.INVALID_PARAMETER, text)
    if not destination:
        for one in sources:
            call.grant(Right.SEND, one.name)
    tasks = call.app.move_tasks
    if source.incarnation in tasks.running:
        text = (
            "There is already a task running. Only one active task is allowed for a source queue "
            "arn at a given time."
        )
        raise SqsError(errors.INVALID_PARAMETER, text)
    task = Task(
        id=new_id(),
        destination=destination,
        sources=[] if destination else [one.name for one in sources],
        rate=rate or 0,
        to_move=visible_count(call.queues, source),
        started_ms=call.bus.broker.clock.wall(),
    )
    await tasks.start(source, task)
    return StartMoveOut(task_handle=handle_of(task.id, call.arn(source)))


async def list_tasks(call: SqsCall, given: ListMovesIn) -> ListMovesOut:
    """Return the last tasks of a queue."""
    assert given.source_arn is not None
    source = call.queues.by_arn(given.source_arn, "SourceArn")
    count = 1 if given.max_results is None else given.max_results
    check_between("MaxResults", count, 1, RESULTS_MAX)
    running = call.app.move_tasks.running.get(source.incarnation)
    tasks = tasks_of(source)
    if running is not None:
        tasks = [running, *[one for one in tasks if one.id != running.id]]
    return ListMovesOut(results=[_told(call, source, one) for one in tasks[:count]])


def _told(call: SqsCall, source: Entity, task: Task) -> MoveTaskOut:
    arn = call.arn(source)
    out = MoveTaskOut(
        status=task.status,
        source_arn=arn,
        approximate_number_of_messages_moved=task.moved,
        approximate_number_of_messages_to_move=task.to_move,
        started_timestamp=task.started_ms,
    )
    if task.status == RUNNING:
        out.task_handle = handle_of(task.id, arn)
    if task.destination:
        out.destination_arn = call.queues.arn_of(task.destination, call.region)
    if task.rate:
        out.max_number_of_messages_per_second = task.rate
    if task.reason:
        out.failure_reason = task.reason
    return out


async def cancel_task(call: SqsCall, given: CancelMoveIn) -> CancelMoveOut:
    """Stop a task; messages that it has moved stay moved."""
    task_id, arn = _read(given)
    source = call.queues.by_arn(arn, "SourceArn")
    running = call.app.move_tasks.running.get(source.incarnation)
    if running is None or running.id != task_id:
        raise SqsError(errors.NOT_FOUND, "Task does not exist.")
    if running.status != RUNNING:
        text = "Only active tasks can be cancelled."
        raise SqsError(errors.UNSUPPORTED, text)
    moved = await call.app.move_tasks.cancel(source, running)
    return CancelMoveOut(approximate_number_of_messages_moved=moved)


ACTIONS: dict[str, Action] = {
    "StartMessageMoveTask": Action(
        takes=StartMoveIn, rights=(Right.MANAGE,), entity=_by_source, slow=start_task
    ),
    "ListMessageMoveTasks": Action(
        takes=ListMovesIn, rights=(Right.MANAGE,), entity=_by_source, slow=list_tasks, reads=True
    ),
    "CancelMessageMoveTask": Action(
        takes=CancelMoveIn, rights=(Right.MANAGE,), entity=_by_handle, slow=cancel_task
    ),
}
