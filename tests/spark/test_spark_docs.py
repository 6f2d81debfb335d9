"""Each example of the pages on Spark runs as it is printed, from a directory outside the clone."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from onibus.client import Client
from onibus.core.message import Message
from tests.server.processes import served
from tests.source_tree import ROOT, text_of
from tests.spark.test_readme import environment_elsewhere
from tests.test_docs import FENCE

_NAMES = ("spark", "spark-writing", "spark-operators", "pipeline", "lake")
PAGES = [f"docs/{name}.md" for name in _NAMES]
#: Blocks that run elsewhere: a server and clusters (test_pipeline_page.py), and a project.
SHOWN = {"bash", "text"}


def steps(port: int) -> list[tuple[str, int, str, str]]:
    """Return all examples in the order in which they run.

    Those in Python come first, since commands stop the session of the process. Those of the lake
    come last, since they read what the commands captured.
    """
    found = []
    for page in PAGES:
        text = text_of(page)
        for match in FENCE.finditer(text):
            line = text.count("\n", 0, match.start(2)) + 1
            assert match[1] in {"pyspark", "sh", *SHOWN}, f"{page}:{line}"
            if match[1] not in SHOWN:
                found.append((page, line, match[1], match[2].replace(":5300", f":{port}")))

    text = text_of("README.md")
    capture = text.partition("## Capture queues into a lake\n\n")[2].partition("\n\n")[0]
    line = text.count("\n", 0, text.index(capture)) + 1
    found.append(("README.md", line, "sh", textwrap.dedent(capture)))

    def turn(one: tuple[str, int, str, str]) -> int:
        of_lake = one[0] == PAGES[-1]
        if one[2] != "pyspark":
            # Before a capture of every queue, which decodes nothing.
            return 1 if of_lake else 2
        return 3 if of_lake else 0

    return sorted(found, key=turn)


def put_files(place: Path) -> None:
    """Put the files that the examples read into the user's directory."""
    orders = [{"order": at, "customer": ("anna", "ben")[at % 2], "total": at} for at in range(6)]
    rows = [
        {"arrival_time": 1_700_000_000_000 + at, "arrival_order": at, "message_id": f"m{at % 3}",
         "body": f"{at}"}
        for at in range(5)
    ]  # fmt: skip
    pairs = [("payment", "order"), ("order", None)]
    paired = [
        {"arrival_time": 1_700_000_000_000 + at, "arrival_order": at, "message_id": kind,
         "partition_key": "o1", "body": kind, "kind": kind, "needs": needs}
        for at, (kind, needs) in enumerate(pairs)
    ]  # fmt: skip
    files: dict[str, list[dict[str, Any]]] = {"orders.json": orders, "incoming/1.json": orders}
    files |= {"raw/1.json": rows, "steps/1.json": paired}
    for name, content in files.items():
        (place / name).parent.mkdir(exist_ok=True)
        (place / name).write_text("\n".join(map(json.dumps, content)), "utf-8")


def test_each_example_runs_as_printed(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    put_files(elsewhere)
    with served("--data", tmp_path / "data", "--http-port", "0") as server:
        connection = (tmp_path / "data" / "connection-string").read_text().strip()
        with Client.connect(connection) as client:
            for queue in ("orders", "jobs", "totals", "orders-again", "books"):
                client.create_queue(queue)
                client.send_batch(queue, [Message(body=b"%d" % at) for at in range(3)])
            client.create_queue("payments")
            payments = (b'{"id": 1, "total": 2.5}', b'{"id": 2}', b"no JSON")
            client.send_batch("payments", [Message(body=body) for body in payments])
        wanted = steps(server.port)
        done = subprocess.run(
            [sys.executable, str(ROOT / "tests" / "spark" / "page_runner.py")],
            input=json.dumps(wanted),
            cwd=elsewhere,
            env=environment_elsewhere(ONIBUS_CONNECTION=connection),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-5_000:]
        shown = done.stdout.splitlines()
        run = [line for line in shown if line.startswith(("docs/", "README.md:"))]
        assert run == [f"{page}:{line}" for page, line, *_ in wanted]
        with Client.connect(connection) as client:
            # The lake was captured, and the messages of one customer were replayed from it.
            assert client.queue("orders-again").active_count == 3
    assert pq.read_table(elsewhere / "clean" / "table=clean").num_rows == 3
    assert (elsewhere / "report.html").stat().st_size
