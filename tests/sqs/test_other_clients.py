"""Other programs that speak SQS: awscli, the JavaScript SDK, a celery worker."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.node import run_node
from tests.server.processes import PATIENCE_S, Served, wait_for
from tests.source_tree import ROOT
from tests.sqs.clients import new_name
from tests.sqs.environment import clean

HERE = Path(__file__).parent


def aws(endpoint: str, *args: str) -> Any:
    """Run awscli as people do; return what it prints."""
    command = [sys.executable, "-m", "awscli", "--endpoint-url", endpoint, "sqs", *args]
    done = subprocess.run(
        command, env=clean(), capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    if done.returncode:
        return done.stderr
    return json.loads(done.stdout) if done.stdout.strip() else None


@pytest.mark.promise("F1", "F3")
def test_awscli(server: Served, tmp_path: Path) -> None:
    endpoint, name = server.ready["sqs"], new_name("-cli.fifo")
    made = aws(endpoint, "create-queue", "--queue-name", name, "--attributes", "FifoQueue=true")
    url = made["QueueUrl"]
    send = ["send-message", "--queue-url", url, "--message-body", "from the shell"]
    send += ["--message-group-id", "g", "--message-deduplication-id", "d"]
    attributes = '{"n": {"DataType": "Number", "StringValue": "1"}}'
    first = aws(endpoint, *send, "--message-attributes", attributes)
    assert aws(endpoint, *send)["MessageId"] == first["MessageId"]
    received = aws(
        endpoint,
        *("receive-message", "--queue-url", url, "--attribute-names", "All"),
        *("--message-attribute-names", "All", "--max-number-of-messages", "10"),
    )
    (message,) = received["Messages"]
    assert message["Body"] == "from the shell"
    assert message["Attributes"]["MessageDeduplicationId"] == "d"
    assert message["MessageAttributes"]["n"]["StringValue"] == "1"
    handle = message["ReceiptHandle"]
    assert aws(endpoint, "delete-message", "--queue-url", url, "--receipt-handle", handle) is None
    assert aws(endpoint, "receive-message", "--queue-url", url) is None
    assert "NonExistentQueue" in aws(endpoint, "get-queue-url", "--queue-name", "no-such")


@pytest.mark.promise("F3", "F4", "F9")
def test_the_javascript_sdk(server: Served) -> None:
    """It checks the MD5 of what it sent and received."""
    script = HERE / "javascript" / "sdk.mjs"
    assert run_node(script, **clean(ENDPOINT=server.ready["sqs"])) == "all is well\n"


TASKS = """
import os
from celery import Celery

endpoint = os.environ["ENDPOINT"]
app = Celery("tasks", broker=f"sqs://test:test@{endpoint.removeprefix('http://')}")
app.conf.update(
    task_ignore_result=True,
    worker_enable_remote_control=False,
    worker_send_task_events=False,
    broker_transport_options={
        "region": "us-east-1",
        "is_secure": False,
        "polling_interval": 0.1,
        "wait_time_seconds": 1,
        "visibility_timeout": 30,
    },
)


@app.task(bind=True, max_retries=1)
def note(self, number):
    if number == 3 and not self.request.retries:
        raise self.retry(countdown=0)
    with open(os.environ["RESULTS"], "a") as file:
        file.write(f"{number}\\n")
"""


def test_a_celery_worker(server: Served, sqs: Any, tmp_path: Path) -> None:
    (tmp_path / "tasks.py").write_text(TASKS)
    results = tmp_path / "results"
    results.touch()
    environment = clean(
        ENDPOINT=server.ready["sqs"],
        RESULTS=str(results),
        PYTHONPATH=f"{ROOT}:{tmp_path}",
    )
    send = "import tasks; [tasks.note.delay(n) for n in range(5)]"
    subprocess.run([sys.executable, "-c", send], env=environment, check=True, timeout=PATIENCE_S)
    command = [sys.executable, "-m", "celery", "-A", "tasks", "worker", "--pool", "solo"]
    command += ["--without-gossip", "--without-mingle", "--without-heartbeat", "-l", "warning"]
    with (tmp_path / "log").open("w") as log:
        worker = subprocess.Popen(command, env=environment, stdout=log, stderr=log, cwd=tmp_path)
        try:
            wait_for(lambda: len(results.read_text().split()) >= 5)
            url = sqs.get_queue_url(QueueName="celery")["QueueUrl"]
            wait_for(lambda: left(sqs, url) == 0)
        finally:
            worker.terminate()
            worker.wait(PATIENCE_S)
    assert sorted(results.read_text().split()) == ["0", "1", "2", "3", "4"]


def left(sqs: Any, url: str) -> int:
    names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
    told = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=names)["Attributes"]
    return sum(int(value) for value in told.values())
