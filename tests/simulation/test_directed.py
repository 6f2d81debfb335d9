"""Small runs that repeat, step by step, the differences that long random runs showed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from onibus.core.errors import PartitionOffline
from onibus.core.message import Message
from onibus.directory.entity_rules import without_rule
from onibus.directory.namespace import NAME
from onibus.directory.producers import Note
from onibus.gateway import receiving
from onibus.gateway.transacting import OpenTransaction
from onibus.shard.runner import run
from tests.simulator.counters import set_counter
from tests.simulator.log_readers import NamedReader
from tests.simulator.model_moves import FORWARD_SLICE
from tests.simulator.model_works import Note as NoteModel
from tests.simulator.simulation import Simulation, small_sizes
from tests.simulator.transactions import LIMIT, TransactionModel
from tests.simulator.workload import Workload


@pytest.fixture(autouse=True)
def _small() -> Iterator[None]:
    with small_sizes():
        yield


def change(clients: Workload, name: str, **given: object) -> None:
    """Change an entity's settings in bus and model."""
    sim = clients.sim
    entity = sim.model.entities[name]
    wanted = type(entity.settings)(
        **{field: getattr(entity.settings, field) for field in entity.settings.__struct_fields__}
        | given
    )
    clients._decide(
        f"change {name} {given}",
        lambda reply: sim.broker.namespace.change(name, lambda _: given, reply),
        lambda: None,
        lambda: sim.model.change(entity, wanted),
        may_crash=False,
    )


def test_what_piled_up_is_forwarded_slice_by_slice() -> None:
    sim = Simulation(1)
    clients = Workload(sim, ["hop-4"])
    change(clients, "keyed", status="send-disabled")
    for number in range(2 * FORWARD_SLICE + 1):
        clients._send("hop-4", [Message(body=b"%d" % number, message_id=str(number))])
        sim.finish_all()
    sim.compare()
    change(clients, "keyed", status="active")
    # Forwarding that was refused is tried again after a while.
    sim.advance(1_000)
    sim.finish_all()
    sim.compare()
    assert [len(part.rows) for part in sim.model.entities["hop-4"].parts] == [0]
    there = sum(len(part.rows) for part in sim.model.entities["keyed"].parts)
    assert there == 2 * FORWARD_SLICE + 1


def stage(clients: Workload, name: str, lease_ms: int, attempt: tuple[int, int] = (0, 1)) -> None:
    """Stage a message as an attempt of batch 1 of producer p."""
    sim = clients.sim
    messages = [Message(body=b"%d" % attempt[0], partition_key="k", properties={"n": 4})]
    note = NoteModel(
        sim.model.entities[name].uid, "p", 1, *attempt, sim.model.time.now() + lease_ms
    )
    sim.do(
        f"stage {name}",
        lambda reply: run(
            sim.broker.producers.stage(
                name, messages, Note(0, "p", 1, *attempt, 0, 0, 0), lease_ms
            ),
            reply,
        ),
        lambda op: sim.model.stage_for(op, name, messages, note),
    )


def test_what_a_crash_kept_from_being_dropped_can_be_published() -> None:
    sim = Simulation(1)
    clients = Workload(sim, ["spread"])
    stage(clients, "spread", 1_000)
    sim.finish_all()
    # The lease expires. That it goes is on its way to the disk when all memory is lost.
    sim.advance(1_000)
    assert sim.busy() == [NAME]
    sim.writers[NAME].take()
    # The machine's clock is behind at its next start: the lease has not expired there.
    sim.reboot(1_000, -3_600_000)
    # Other things are decided; then the namespace's store fails.
    for batch in range(4):
        clients._publish(("spread", "q"), batch, [])
        sim.finish_all()
    clients._publish(("spread", "q"), 4, [])
    sim.fail(NAME, kept=False)
    told: list[BaseException | None] = []
    sim.on_answer = lambda op: told.append(op.reply.error)
    clients._publish(("spread", "p"), 1, [(0, 1)])
    assert [type(error) for error in told] == [PartitionOffline]


@pytest.mark.parametrize("lost", [False, True])
def test_what_is_published_together_is_numbered_in_the_order_it_was_named(lost: bool) -> None:
    sim = Simulation(1)
    clients = Workload(sim, ["spread-news"])
    for attempt in ((0, 1), (1, 2), (2, 3)):
        stage(clients, "spread-news", 60_000, attempt)
        sim.finish_all()
    named = [(2, 3), (0, 1), (1, 2)]
    clients._publish(("spread-news", "p"), 1, named)
    # It is decided; in one of two runs all memory is lost before a store has carried it out.
    sim.finish(NAME)
    if lost:
        for store in sim.busy():
            sim.writers[store].take()
        sim.crash()
    # Rules run in slices before the messages are stored.
    sim.finish_all(flush=True)
    sim.compare()
    partitions = sim.model.entities["spread-news/subscriptions/copies"].partitions
    bodies = [row.message.body for part in partitions for row in part.rows.values()]
    # Each message, then the copies that rules made of it.
    assert bodies == [b"2"] * 3 + [b"0"] * 3 + [b"1"] * 3


def test_staging_succeeds_although_a_later_batch_drops_it_in_the_same_commit() -> None:
    sim = Simulation(1)
    clients = Workload(sim, ["spread"])
    # The store of the namespace is busy, so the next two rows share a commit.
    clients._publish(("spread", "q"), 1, [])
    assert sim.busy() == [NAME]
    stage(clients, "spread", 60_000)
    for store in sim.busy():
        if store != NAME:
            sim.finish(store)
    errors: list[BaseException | None] = []
    sim.on_answer = lambda op: errors.append(op.reply.error)
    clients._publish(("spread", "p"), 2, [])
    sim.finish_all()
    assert errors == [None, None, None]
    assert sim.model.works == {}
    sim.compare()


def receive_fifo(
    clients: Workload, name: str, wait: int, visibility: int | None, attempt: str | None
) -> None:
    """Receive a message of a FIFO queue."""
    sim = clients.sim
    clients._try(
        name,
        wait,
        f"fifo {name} 1 {visibility} {attempt} wait={wait}",
        lambda reply: receiving.receive_fifo(
            sim.broker, name, 1, wait, reply, visibility_ms=visibility, attempt_id=attempt
        ),
        lambda op: sim.model.receive_fifo(op, name, 1, visibility, attempt),
    )


def test_a_receiver_gets_nothing_although_a_later_one_hides_a_message_for_no_time() -> None:
    sim = Simulation(1)
    clients = Workload(sim, ["content"])
    clients._send("content", [Message(body=b"1", message_id="1", session_id="s")])
    sim.finish_all()
    receive_fifo(clients, "content", 0, 5_000, None)
    receive_fifo(clients, "content", 300, None, "one")
    receive_fifo(clients, "content", 300, None, None)
    # It repeats the first receive, and makes the message available again.
    receive_fifo(clients, "content", 2_000, 0, "one")
    assert len(sim.model.ops) == 3
    # The process was stopped for longer than all of them wait.
    sim.clock.advance(25_000)
    sim.settle_down()
    assert not sim.model.ops
    sim.compare()


def transact(
    clients: Workload, sends: dict[str, Message], removed: tuple[str, str] | None = None
) -> None:
    """Commit a transaction that sends messages, and removes a rule of a subscription."""
    sim = clients.sim
    real, model = OpenTransaction(sim.broker, LIMIT), TransactionModel(sim.model)
    for name, message in sends.items():
        real.send(name, [message])
        model.send(name, [message])
    if removed is not None:
        name, rule = removed
        real.change_rules(name, lambda rules: without_rule(rules, rule))
        model.change_rule(name, rule, remove=True)
    sim.do("commit transaction", real.commit, model.commit)


def schedule(clients: Workload, name: str, body: bytes, after_ms: int) -> None:
    """Send a message that is enqueued after that time."""
    due = clients.sim.clock.wall() + after_ms
    clients._send(name, [Message(body=body, message_id="m", scheduled_enqueue_time_ms=due)])
    clients.sim.finish_all(flush=True)


def test_what_a_store_decides_is_not_staged_in_it() -> None:
    sim = Simulation(1)
    clients = Workload(sim, ["plain", "detecting", "fading"])
    stores = [sim.model.entities[name].stores for name in ("plain", "detecting", "fading")]
    assert stores == [["b"], ["a"], ["b"]]
    schedule(clients, "plain", b"later", 1_000)
    # The store that gets the larger message decides: `b`, then `a`.
    transact(clients, {"plain": Message(body=b"x" * 100), "detecting": Message(body=b"y")})
    transact(clients, {"fading": Message(body=b"y"), "detecting": Message(body=b"x" * 100)})
    # `b` has staged its part of the second; `a` has staged one, then decided the other.
    for store in ("b", "a", "a"):
        sim.finish(store)
    # What `b` decides is lost. The message is due when the bus is opened again.
    assert sim.busy() == ["b"]
    sim.writers["b"].take()
    sim.reboot(1_000, 0)
    # The first commit has the published part, and not yet the message.
    sim.finish("b")
    sim.compare()
    sim.finish_all(flush=True)
    sim.compare()
    assert [row.message.body for row in sim.model.entities["plain"].parts[0].rows.values()] == [
        b"later"
    ]


def test_rules_in_doubt_hold_once_the_bus_has_read_them_again() -> None:
    sim = Simulation(1)
    clients = Workload(sim, ["news"])
    subscription = "news/subscriptions/changed"
    schedule(clients, "news", b"later", 60_000)
    transact(clients, {"news": Message(body=b"now")}, (subscription, "marked"))
    while sim.busy() != [NAME]:
        # Rules run in slices before the message is staged.
        while sim.broker.turns.slices:
            sim.broker.turns.slices.popleft()()
        sim.settle_down()
        for store in sim.busy():
            if store != NAME:
                sim.finish(store)
    sim.fail(NAME, kept=True)
    # The process was stopped for so long that the message is due when the store is open again.
    sim.clock.advance(310_000)
    sim.settle_down()
    sim.finish_all()
    sim.compare()
    (partition,) = sim.model.entities[subscription].partitions
    assert not partition.rows


def test_a_reader_at_a_number_that_comes_next_again_is_dropped() -> None:
    sim = Simulation(3)
    clients = Workload(sim, ["plain"])
    entity = sim.model.entities["plain"]
    clients._send("plain", [Message(body=b"1"), Message(body=b"2")])
    sim.finish_all()
    reader = NamedReader(entity, "n0", [2])
    clients.readers.append(reader)
    clients._read_log(reader)
    assert clients.readers == [reader]
    # The counter has rolled over, and its next number is 2.
    set_counter(sim.broker, "plain", (1 << 63) + 2)
    part = sim.model.part(entity, 0)
    part.rolled = True
    part.set_counter(2)
    clients._read_log(reader)
    assert clients.readers == []
