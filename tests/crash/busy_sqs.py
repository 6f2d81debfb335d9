"""SQS clients, by boto3, that keep a FIFO queue busy and record requests and outcomes."""

from __future__ import annotations

import time
from collections import deque
from itertools import count
from random import Random
from threading import Event as Flag
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from tests.crash.busy_clients import History
from tests.simulator.history import OK, REFUSED, UNKNOWN
from tests.sqs.clients import client_of

FIFO = "jobs.fifo"
LOCK_MS = 2_000
ATTRIBUTES = {"FifoQueue": "true", "VisibilityTimeout": str(LOCK_MS // 1_000)}


class SqsClient:
    """One thread's client: it sends, receives, deletes, and makes messages visible again."""

    def __init__(self, port: int, history: History, seed: int, stop: Flag) -> None:
        self._sqs = client_of(f"http://127.0.0.1:{port}", read_timeout=10, connect_timeout=5)
        self._history = history
        self._name = f"sqs-{seed}"
        self._random = Random(seed)
        self._bodies = count()
        self._stop = stop
        self._url = ""
        #: ids that were acknowledged not long ago, with the sequence number of each
        self._sent: deque[tuple[str, int]] = deque(maxlen=20)

    def create(self) -> None:
        """Create the queue."""
        self._sqs.create_queue(QueueName=FIFO, Attributes=ATTRIBUTES)

    def run(self) -> None:
        """Be busy until stopped, and finish what was begun."""
        self._find()
        while not self._stop.is_set():
            self._send()
            self._receive("receive")
            time.sleep(self._history.pause_s)

    def drain(self) -> int:
        """Receive and delete; return how many messages there were."""
        self._find()
        return self._receive("drain")

    def _find(self) -> None:
        told, _ = self._told("get_queue_url", QueueName=FIFO)
        self._url = told["QueueUrl"]

    def _told(self, action: str, **given: Any) -> tuple[Any, bool]:
        """Ask until there is a response; return it, None if it is an error, and if some was lost.

        Every request here may be repeated: sends carry a deduplication id.
        """
        lost = False
        while not self._history.is_over:
            try:
                return getattr(self._sqs, action)(**given), lost
            except ClientError as error:
                if error.response["ResponseMetadata"]["HTTPStatusCode"] < 500:
                    return None, lost
            except BotoCoreError:
                lost = True
            time.sleep(0.01)
        raise InterruptedError("the run failed: see its own error")

    def _send(self) -> None:
        again = bool(self._sent) and self._random.random() < 0.1
        body = f"{self._name}-{next(self._bodies)}"
        group = f"g{self._random.randrange(6)}"
        identity, first = self._random.choice(self._sent) if again else (body, None)
        operation = self._history.invoke(
            "send", FIFO, client="sqs", body=body, identity=identity, session=group
        )
        told, _ = self._told(
            "send_message", QueueUrl=self._url, MessageBody=body, MessageGroupId=group,
            MessageDeduplicationId=identity,
        )  # fmt: skip
        number = None if told is None else int(told["SequenceNumber"])
        repeats = first if again and number == first else None
        outcome = REFUSED if told is None else OK
        self._history.complete(
            operation, "send", FIFO, outcome, client="sqs", number=number, duplicate_of=repeats
        )
        if number is not None and not again:
            self._sent.append((identity, number))

    def _receive(self, kind: str) -> int:
        asked = time.time_ns() // 1_000_000
        operation = self._history.invoke("receive", FIFO, client="sqs")
        told, _ = self._told(
            "receive_message", QueueUrl=self._url, MaxNumberOfMessages=5,
            MessageSystemAttributeNames=["All"],
        )  # fmt: skip
        received = told.get("Messages", []) if told else []
        until = time.time_ns() // 1_000_000 + LOCK_MS
        for one in received:
            known = one["Attributes"]
            self._history.complete(
                operation, kind, FIFO, client="sqs", body=one["Body"],
                number=int(known["SequenceNumber"]), session=known["MessageGroupId"],
                stamp=int(known["SentTimestamp"]), token=one["ReceiptHandle"],
                until=until, until_least=asked + LOCK_MS,
            )  # fmt: skip
        for one in received:
            if kind == "receive" and self._random.random() < 0.1:
                # The rest of the group waits for it until its visibility timeout ends.
                break
            self._delete(one)
        return len(received)

    def _delete(self, one: Any) -> None:
        time.sleep(self._history.lateness_s(self._random))
        number = int(one["Attributes"]["SequenceNumber"])
        handle = one["ReceiptHandle"]
        operation = self._history.invoke("complete", FIFO, number=number, token=handle)
        told, lost = self._told("delete_message", QueueUrl=self._url, ReceiptHandle=handle)
        outcome = OK if told is not None else UNKNOWN if lost else REFUSED
        self._history.complete(operation, "complete", FIFO, outcome, number=number, token=handle)
