"""A tour of the bus and its pipeline: python examples/demo.py [--messages 200000]

Sends messages in sessions; every tenth is a duplicate, and some are scheduled. Receives and settles
them while a pipeline captures everything into a lake, and kills the server and the pipeline on the
way. The official Service Bus and SQS clients take part. Then it audits the lake, compares the
counts, writes a report with plots and the times of the kills, and queries the lake with DuckDB.
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
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from onibus import Message
from onibus.client import Client, Retry
from onibus.core.errors import NoSession, OnibusError
from onibus.spark.lake import MESSAGES, OUTCOMES, Lake

console = Console(highlight=False)

QUEUE, FIFO = "orders", "orders.fifo"
SESSIONS = 500
#: Messages of the official clients, which are slower.
OFFICIAL = 200
BATCH = 200
#: Every 10th message is a duplicate of an earlier one; every 100th is scheduled.
DUPLICATE, SCHEDULED = 10, 100
#: Questions to the lake.
QUERIES = (
    "SELECT outcome, reason, count(*) AS messages FROM outcomes GROUP BY ALL ORDER BY ALL",
    "SELECT session_id, count(*) AS messages FROM messages GROUP BY ALL ORDER BY 2 DESC, 1 LIMIT 3",
    "SELECT outcome, round(median(epoch_ms(time) - epoch_ms(enqueued_time)) / 1000, 1) AS seconds "
    "FROM outcomes JOIN messages USING (sequence_number) GROUP BY ALL ORDER BY ALL",
)
#: Retries that outlast a restart of the server.
PATIENT = Retry(attempts=60)


class Server:
    """A process `onibus serve` that can be killed and restarted."""

    def __init__(self, data: Path) -> None:
        self._data = data
        self._ports: dict[str, str] = {}
        self.connection = ""
        self.start()

    def start(self) -> None:
        """Start it, on the same ports as before."""
        ports = self._ports or {"http": "0", "amqp": "0", "sqs": "0"}
        flags = [f"--{name}-port={port}" for name, port in ports.items()]
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-m", "onibus", "serve", "--development", "--json"),
                *("--data", str(self._data), "--log-level", "warning", *flags),
            ],
            stdout=subprocess.PIPE,
        )
        assert self._process.stdout is not None
        ready = json.loads(self._process.stdout.readline())
        self._ports = {name: str(ready[name]).rpartition(":")[2] for name in ports}
        self.connection = ready["development"]
        self.service_bus: str = ready["service_bus"]
        self.sqs: str = ready["sqs"]

    def kill(self) -> None:
        """Kill it without warning, and restart it."""
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        self.start()

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait()


class Pipeline:
    """A process `onibus pipeline capture --continuous` that can be killed and restarted."""

    def __init__(self, server: Server, lake: Path) -> None:
        self._arguments = [
            *(sys.executable, "-m", "onibus", "pipeline", "capture", QUEUE, "--continuous"),
            *("--interval", "2 seconds", "--lake", str(lake), "--connect", server.connection),
        ]
        self.start()

    def start(self) -> None:
        self._process = subprocess.Popen(
            self._arguments, stdout=subprocess.DEVNULL, start_new_session=True
        )

    def kill(self) -> None:
        """Kill it and its Java process, and restart it."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self.start()

    def stop(self) -> None:
        """Stop it after its current batch."""
        self._process.terminate()
        self._process.wait()


def messages(count: int, seed: int) -> Iterator[list[Message]]:
    """Yield batches: every tenth message has the id and the session of an earlier one."""
    chance = random.Random(seed)
    batch = []
    for index in range(count):
        which = chance.randrange(index) if index and index % DUPLICATE == 0 else index
        message = Message(
            body=f"order {which}".encode() * 20,
            message_id=f"order-{which}",
            session_id=f"customer-{which % SESSIONS}",
        )
        if which % SCHEDULED == 1:
            message.scheduled_enqueue_time_ms = int((time.time() + 20) * 1000)
        batch.append(message)
        if len(batch) == BATCH:
            yield batch
            batch = []
    if batch:
        yield batch


def send(connection: str, count: int, progress: Progress) -> int:
    """Send everything; return how many duplicates the broker dropped."""
    bar = progress.add_task("sending", total=count)
    with Client.connect(connection, retry=PATIENT) as client:
        for batch in messages(count, seed=7):
            client.send_batch(QUEUE, batch)
            progress.advance(bar, len(batch))
        return client.queue(QUEUE).duplicates_dropped


def receive(connection: str, stop: threading.Event, seed: int) -> None:
    """Accept session after session; complete most messages, defer and dead-letter some."""
    chance = random.Random(seed)
    with Client.connect(connection, retry=PATIENT) as client:
        while not stop.is_set():
            try:
                with client.accept_session(QUEUE, wait_ms=500) as session:
                    held = session.receive(200)
                    fates = [chance.random() for _ in held]
                    done = [one for one, fate in zip(held, fates, strict=True) if fate < 0.97]
                    session.complete(*done)
                    for one, fate in zip(held, fates, strict=True):
                        if fate >= 0.985:
                            session.defer(one)
                        elif fate >= 0.97:
                            session.dead_letter(one, reason="NoStock")
            except NoSession:
                continue
            except OnibusError as error:
                # The server was killed: locks may be lost, messages are not.
                console.print(f"[dim]a receiver got {error.code}[/dim]")


def official(server: Server) -> tuple[str, int]:
    """Use the bus with the official clients; return a summary and the number of sent messages."""
    try:
        import boto3
        from azure.servicebus import NEXT_AVAILABLE_SESSION, ServiceBusClient, ServiceBusMessage
    except ImportError:
        return "the official clients are not installed: pip install 'onibus[clients]'", 0
    sqs = boto3.client(
        "sqs",
        endpoint_url=server.sqs,
        region_name="us-east-1",
        aws_access_key_id="test",
        aws_secret_access_key="test",
    )
    url = sqs.get_queue_url(QueueName=FIFO)["QueueUrl"]
    # Each message twice, ten per group: the response to the duplicate equals the first one.
    for group in range(OFFICIAL // 10):
        entries = [
            {
                "Id": str(n),
                "MessageBody": f"{group}/{n}",
                "MessageGroupId": f"g{group}",
                "MessageDeduplicationId": f"{group}/{n}",
            }
            for n in range(10)
        ]
        for _ in range(2):
            sqs.send_message_batch(QueueUrl=url, Entries=entries)
    crossed = 0
    with ServiceBusClient.from_connection_string(server.service_bus) as azure:
        with azure.get_queue_sender(QUEUE) as sender:
            for session in range(OFFICIAL // 10):
                name = f"customer-{session}"
                some = [
                    ServiceBusMessage(b"by azure", message_id=f"{name}/{n}", session_id=name)
                    for n in range(10)
                ]
                sender.send_messages(some)
        # Receive half of the SQS messages over AMQP, group by group.
        while crossed < OFFICIAL // 2:
            with azure.get_queue_receiver(
                FIFO, session_id=NEXT_AVAILABLE_SESSION, max_wait_time=10
            ) as receiver:
                for message in receiver.receive_messages(10, max_wait_time=10):
                    receiver.complete_message(message)
                    crossed += 1
    taken = 0
    while held := sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10).get("Messages"):
        for message in held:
            sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])
        taken += len(held)
    words = (
        f"azure-servicebus sent {OFFICIAL} messages; boto3 sent {OFFICIAL} messages twice. "
        f"Of those, azure-servicebus received {crossed} and boto3 {taken}"
    )
    return words, OFFICIAL


def sum_up(count: int, dropped: int, more: int, lake: Path) -> int:
    """Compare the number of sent messages with the rows in the lake; return 1 if they differ."""
    ids, later = set(), 0
    for batch in messages(count, seed=7):
        for message in batch:
            later += message.message_id not in ids and bool(message.scheduled_enqueue_time_ms)
            ids.add(message.message_id)
    rows = sum(one.row.rows for one in Lake(str(lake), QUEUE).files(MESSAGES))
    table = Table(box=None, show_header=False)
    table.add_column(justify="right")
    for number, words in (
        (count, "sent by this program"),
        (len(ids) - count + dropped, "sent again: a kill lost the broker's response"),
        (-dropped, "duplicates dropped by the broker"),
        (later, "scheduled: each gets a second sequence number when it is due"),
        (more, "sent by azure-servicebus"),
        (len(ids) + later + more, "expected sequence numbers"),
        (rows, f"rows of {QUEUE} in the lake, captured and audited"),
    ):
        table.add_row(f"{number:,}", words)
    console.print(table)
    same = rows == len(ids) + later + more
    console.print("the counts are equal" if same else "[red]the counts differ[/red]")
    return 0 if same else 1


def query(lake: Path) -> None:
    """Query the lake's Delta tables with DuckDB, without Spark."""
    try:
        import duckdb
        from deltalake import DeltaTable
    except ImportError:
        console.print("DuckDB is not installed: pip install 'onibus[lake]' duckdb")
        return
    with duckdb.connect() as connection:
        for name in (MESSAGES, OUTCOMES):
            connection.register(name, DeltaTable(str(lake / QUEUE / name)).to_pyarrow_dataset())
        for words in QUERIES:
            console.print(f"[bold]{words}[/bold]", soft_wrap=True)
            found = connection.sql(words)
            table = Table(*found.columns, box=None)
            for row in found.fetchall():
                table.add_row(*(str(value) for value in row))
            console.print(table)


def onibus(*arguments: str) -> int:
    """Run a command as a user would."""
    console.print(f"[bold]$ onibus {' '.join(arguments[:-2])}[/bold]", markup=True)
    return subprocess.run([sys.executable, "-m", "onibus", *arguments], check=False).returncode


def tour(count: int, folder: Path, page: Path) -> int:
    """Run all steps; return the exit code of the audit, or 1 if the counts differ."""
    server = Server(folder / "data")
    lake = folder / "lake"
    stop = threading.Event()
    pipeline: Pipeline | None = None
    try:
        with Client.connect(server.connection) as client:
            client.create_queue(
                QUEUE,
                requires_session=True,
                requires_duplicate_detection=True,
                enable_partitioning=True,
                retention_ms=3_600_000,
            )
            client.create_queue(FIFO, fifo=True, retention_ms=3_600_000)
        console.print(f"[bold]1.[/bold] {count:,} messages, captured by a pipeline")
        pipeline = Pipeline(server, lake)
        receivers = [
            threading.Thread(target=receive, args=(server.connection, stop, seed), daemon=True)
            for seed in range(2)
        ]
        for thread in receivers:
            thread.start()
        kills: list[str] = []
        killer = threading.Thread(target=_kill, args=(server, pipeline, stop, kills), daemon=True)
        killer.start()
        with Progress(console=console) as progress:
            dropped = send(server.connection, count, progress)
        console.print(f"[bold]2.[/bold] the broker dropped {dropped:,} duplicates")
        time.sleep(25)
        stop.set()
        for thread in (*receivers, killer):
            thread.join()
        words, more = official(server)
        console.print(f"[bold]3.[/bold] {words}")
        pipeline.stop()
        pipeline = None
        console.print("[bold]4.[/bold] capture the rest, then audit the lake")
        place = ("--lake", str(lake), "--connect", server.connection)
        marks = [word for kill in kills for word in ("--mark", kill)]
        code = (
            onibus("pipeline", "capture", "--all", *place)
            or onibus("pipeline", "audit", FIFO, *place)
            or onibus("pipeline", "audit", QUEUE, "--report", str(page), *marks, *place)
        )
        console.print("[bold]5.[/bold] compare the counts")
        differ = sum_up(count, dropped, more, lake)
        console.print("[bold]6.[/bold] query the lake with DuckDB")
        query(lake)
        return code or differ
    finally:
        stop.set()
        if pipeline is not None:
            pipeline.stop()
        server.stop()


def _kill(server: Server, pipeline: Pipeline, stop: threading.Event, kills: list[str]) -> None:
    """Kill the server twice and the pipeline once; record the times."""
    for wait, victim, name in (
        (4, server, "server"),
        (12, pipeline, "pipeline"),
        (4, server, "server"),
    ):
        if stop.wait(wait):
            return
        console.print(f"[red]kill -9 of the {name}[/red]; it restarts")
        kills.append(f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S}Z=kill of the {name}")
        victim.kill()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--messages", type=int, default=200_000)
    parser.add_argument("--folder", type=Path, help="keep the data and the lake in this folder")
    given = parser.parse_args()
    page = Path(tempfile.gettempdir()) / "onibus-demo.html"
    if given.folder is not None:
        given.folder.mkdir(parents=True, exist_ok=True)
        code = tour(given.messages, given.folder, page)
        console.print(f"the lake and the data are in {given.folder}")
    else:
        with tempfile.TemporaryDirectory(prefix="onibus-demo-") as folder:
            code = tour(given.messages, Path(folder), page)
        console.print("the lake and the data were removed; --folder keeps them")
    console.print(f"the report is {page}; its first plot shows the kills")
    sys.exit(code)


if __name__ == "__main__":
    main()
