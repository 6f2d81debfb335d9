"""The official samples of azure-servicebus: fetched from its source distribution, run as they are.

Those of later versions sign in with Microsoft Entra ID; these are the last that take a connection
string. They run on the client that is installed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import threading
from pathlib import Path
from typing import NamedTuple

from onibus import Message
from onibus.client import Client
from onibus.security.keys import DEVELOPMENT_KEY, ROOT_NAME
from tests.cache import cached
from tests.client.server_helpers import development_string
from tests.server.processes import Served

VERSION = "7.12.0"
_FETCH_S = 300
_RUN_S = 150
#: Messages that are there before a sample runs that only receives.
FILLED = 3


class Sample(NamedTuple):
    """How a sample shows that it did what it is for."""

    #: what it prints
    says: str
    #: messages are there before it runs
    filled: bool = False
    #: it goes on forever, and is stopped once it has said so
    endless: bool = False


class Run(NamedTuple):
    """What became of a sample."""

    #: 0 where it came to its end; also for an endless one that was stopped
    code: int
    said: str
    #: active messages left in its queue, in the queue with sessions, and in its subscription
    left: tuple[int, int, int]


def samples_home() -> Path:
    """Return the directory with the samples."""

    def fetch(folder: Path) -> None:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        command += ["--no-binary", "azure-servicebus", "--dest", str(folder)]
        subprocess.run([*command, f"azure-servicebus=={VERSION}"], check=True, timeout=_FETCH_S)
        [archive] = folder.glob("*.tar.gz")
        with tarfile.open(archive) as found:
            found.extractall(folder, filter="data")

    [home] = cached(f"azure-servicebus-{VERSION}", fetch).glob("*/samples")
    return home


def run_sample(server: Served, owner: Client, path: Path, sample: Sample) -> Run:
    """Run a sample with entities of its own."""
    name = path.stem.replace("_", "-")
    queue, sessions, topic = f"{name}-queue", f"{name}-sessions", f"{name}-topic"
    owner.create_queue(queue)
    owner.create_queue(sessions, requires_session=True)
    owner.create_topic(topic)
    owner.create_subscription(topic, "s")
    if sample.filled:
        for entity in (queue, topic):
            owner.send_batch(entity, [Message(body=f"filled {n}".encode()) for n in range(FILLED)])
    variables = {
        "SERVICEBUS_CONNECTION_STR": development_string(server.port),
        "SERVICEBUS_FULLY_QUALIFIED_NAMESPACE": f"localhost:{server.port}",
        "SERVICEBUS_SAS_POLICY": ROOT_NAME,
        "SERVICEBUS_SAS_KEY": DEVELOPMENT_KEY,
        "SERVICEBUS_QUEUE_NAME": queue,
        "SERVICEBUS_SESSION_QUEUE_NAME": sessions,
        "SERVICEBUS_SESSION_ID": "one",
        "SERVICEBUS_TOPIC_NAME": topic,
        "SERVICEBUS_SUBSCRIPTION_NAME": "s",
        # The administration clients speak TLS, with whom they trust.
        "REQUESTS_CA_BUNDLE": server.ready["certificate"],
        "SSL_CERT_FILE": server.ready["certificate"],
        "PYTHONUNBUFFERED": "1",
    }
    code, said = _run(path, variables, sample)
    left = (
        owner.queue(queue).active_count,
        owner.queue(sessions).active_count,
        owner.subscription(f"{topic}/subscriptions/s").active_count,
    )
    return Run(code, said, left)


def _run(path: Path, variables: dict[str, str], sample: Sample) -> tuple[int, str]:
    process = subprocess.Popen(
        [sys.executable, str(path)],
        env={**os.environ, **variables},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    late = threading.Timer(_RUN_S, process.kill)
    late.start()
    lines: list[str] = []
    ended = False
    with process:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line)
            if sample.endless and sample.says in line:
                ended = True
                process.kill()
    late.cancel()
    return 0 if ended else process.returncode, "".join(lines)
