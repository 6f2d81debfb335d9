"""boto3, awscli and the JavaScript SDK behind one word, so that a test is told once for all."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from botocore import xform_name
from botocore.exceptions import ClientError

from tests.cache import cached
from tests.node import node_home
from tests.sqs.clients import client_of, new_name
from tests.sqs.environment import clean

HERE = Path(__file__).parent
NAMES = ("boto3", "awscli", "javascript")
#: The last line of boto3 that speaks the Query protocol.
QUERY_BOTO3 = "boto3==1.26.165"


class Refused(Exception):
    """A client was told of an error."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(code, text)
        self.code = code
        self.text = text


class Asking:
    """Asks through one of the three: `asking.SendMessage(QueueUrl=…)`."""

    def __init__(self, ask: Callable[[str, dict[str, Any]], dict[str, Any]]) -> None:
        self._ask = ask
        #: the actions that were asked for
        self.asked: set[str] = set()

    def __getattr__(self, action: str) -> Callable[..., dict[str, Any]]:
        def call(**given: Any) -> dict[str, Any]:
            self.asked.add(action)
            return self._ask(action, given)

        return call

    def new_fifo(self, **attributes: str) -> str:
        """Make a FIFO queue; return its URL."""
        attributes = {"FifoQueue": "true", **attributes}
        made = self.CreateQueue(QueueName=new_name(".fifo"), Attributes=attributes)
        return str(made["QueueUrl"])

    def send(self, url: str, body: str, group: str = "g", **more: Any) -> dict[str, Any]:
        return self.SendMessage(QueueUrl=url, MessageBody=body, MessageGroupId=group, **more)

    def put(self, url: str, body: str, group: str, identity: str) -> dict[str, Any]:
        return self.send(url, body, group, MessageDeduplicationId=identity)

    def get(self, url: str, count: int = 10, **how: Any) -> list[Any]:
        """Receive, with all that can be told of a message."""
        names = {"MessageSystemAttributeNames": ["All"], "MessageAttributeNames": ["All"]}
        how = {"QueueUrl": url, "MaxNumberOfMessages": count, **names, **how}
        return list(self.ReceiveMessage(**how).get("Messages", []))

    def delete(self, url: str, *messages: Any) -> None:
        for message in messages:
            self.DeleteMessage(QueueUrl=url, ReceiptHandle=message["ReceiptHandle"])

    def hide(self, url: str, message: Any, seconds: int) -> None:
        handle = message["ReceiptHandle"]
        self.ChangeMessageVisibility(QueueUrl=url, ReceiptHandle=handle, VisibilityTimeout=seconds)


def _install_boto3(home: Path) -> None:
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "--target", str(home), QUERY_BOTO3], check=True, timeout=300)


@contextmanager
def asking(name: str, endpoint: str) -> Iterator[Asking]:
    """Give one of the three clients, or boto3 as it was when it spoke Query (`query`)."""
    if name == "boto3":
        yield Asking(_through_boto3(client_of(endpoint)))
        return
    command = [sys.executable, "-W", "ignore", str(HERE / "awscli_lines.py")]
    more = {}
    if name == "query":
        command = [sys.executable, str(HERE / "boto3_lines.py")]
        more = {"PYTHONPATH": str(cached(QUERY_BOTO3.replace("==", "-"), _install_boto3))}
    if name == "javascript":
        command = ["node", "--no-warnings", str(HERE / "javascript" / "lines.mjs")]
        more = {"NODE_HOME": str(node_home(HERE / "javascript"))}
    process = subprocess.Popen(
        command,
        env=clean(ENDPOINT=endpoint, **more),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield Asking(_through_lines(process))
    finally:
        process.kill()
        process.communicate()


def _through_boto3(client: Any) -> Callable[[str, dict[str, Any]], dict[str, Any]]:
    def ask(action: str, given: dict[str, Any]) -> dict[str, Any]:
        try:
            result: dict[str, Any] = getattr(client, xform_name(action))(**given)
        except ClientError as error:
            told = error.response["Error"]
            raise Refused(told["Code"], told["Message"]) from None
        result.pop("ResponseMetadata")
        return result

    return ask


def _through_lines(
    process: subprocess.Popen[str],
) -> Callable[[str, dict[str, Any]], dict[str, Any]]:
    assert process.stdin is not None
    assert process.stdout is not None
    given_to, told_by = process.stdin, process.stdout

    def ask(action: str, given: dict[str, Any]) -> dict[str, Any]:
        given_to.write(json.dumps({"action": action, "given": given}) + "\n")
        given_to.flush()
        line = told_by.readline()
        assert line, "the client ended"
        answer = json.loads(line)
        if "error" in answer:
            raise Refused(answer["error"]["code"], answer["error"]["message"])
        result: dict[str, Any] = answer["result"]
        return result

    return ask
