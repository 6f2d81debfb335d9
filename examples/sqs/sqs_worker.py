"""A worker for an SQS queue: python sqs_worker.py

Sends three jobs, then processes messages of the queue until SIGTERM or Ctrl-C.
AWS_ENDPOINT_URL_SQS names the server; by default it is the one that `make run` starts.
"""

import os
import signal
import threading
from typing import Any

import boto3

QUEUE = "jobs"


def connect() -> Any:
    """Return a client for the development server, or for the server in the environment."""
    return boto3.client(
        "sqs",
        endpoint_url=os.environ.get("AWS_ENDPOINT_URL_SQS", "http://localhost:9324"),
        region_name=os.environ.get("AWS_REGION", "us-east-1"),
        aws_access_key_id=os.environ.get("AWS_ACCESS_KEY_ID", "test"),
        aws_secret_access_key=os.environ.get("AWS_SECRET_ACCESS_KEY", "test"),
    )


def create_queue(sqs: Any) -> str:
    """Create the queue if it does not exist; return its URL."""
    url: str = sqs.create_queue(QueueName=QUEUE, Attributes={"VisibilityTimeout": "30"})["QueueUrl"]
    return url


def send_jobs(sqs: Any, url: str) -> None:
    """Send three jobs in one batch."""
    entries = [{"Id": str(n), "MessageBody": f"job {n}"} for n in range(1, 4)]
    sqs.send_message_batch(QueueUrl=url, Entries=entries)


def work(sqs: Any, url: str, stopping: threading.Event) -> None:
    """Receive, process and delete messages until the event is set."""
    while not stopping.is_set():
        received = sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10, WaitTimeSeconds=1)
        for message in received.get("Messages", []):
            print("done", message["Body"], flush=True)
            sqs.delete_message(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])


def main() -> None:
    """Send jobs and process messages until SIGTERM or Ctrl-C."""
    stopping = threading.Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        signal.signal(name, lambda *_: stopping.set())
    sqs = connect()
    url = create_queue(sqs)
    send_jobs(sqs, url)
    work(sqs, url, stopping)


if __name__ == "__main__":
    main()
