"""One Spark session and one server for all tests of the pipeline: a session takes ten seconds.

Tests that run in parallel stay in one process (tests/conftest.py), so that one Java is enough. What
it runs is run once or twice, and not worth much compiling: that takes more time than it saves.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from uuid import uuid4

import pytest
from pyspark.sql import SparkSession

from onibus.client import Client
from onibus.spark.session import spark_session
from tests.client.server_helpers import ServerProcess, ServerThread
from tests.spark.lake_helpers import Captures
from tests.spark.reading import Reads

os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The Spark session that all tests of a process share."""
    scratch = tmp_path_factory.mktemp("spark")
    session = spark_session(
        **{"spark.sql.warehouse.dir": str(scratch / "warehouse"), "spark.local.dir": str(scratch)}
    )
    yield session
    session.stop()


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server as a process of its own, that all tests share: they use queues of their own."""
    with ServerProcess(tmp_path_factory.mktemp("server")) as started:
        yield started


@pytest.fixture
def client(server: ServerProcess) -> Iterator[Client]:
    """A client of the shared server."""
    with Client.connect(server.connection_string) as client:
        yield client


@pytest.fixture
def entity() -> str:
    """A name that no other test uses."""
    return f"queue-{uuid4().hex[:12]}"


@pytest.fixture
def reads(spark: SparkSession, server: ServerProcess, entity: str) -> Reads:
    """Reads of that entity."""
    return Reads(spark, server.connection_string, entity)


@pytest.fixture(scope="module")
def own_server() -> Iterator[ServerThread]:
    """A server in this process, for the tests of one file."""
    with ServerThread() as server:
        yield server


@pytest.fixture
def bus(own_server: ServerThread, entity: str) -> Iterator[Client]:
    """A client of that server, which has a queue."""
    with own_server.client() as client:
        client.create_queue(entity)
        yield client


@pytest.fixture
def captures(own_server: ServerThread, bus: Client, entity: str) -> Captures:
    """Captures of that queue."""
    return Captures(own_server.connection_string, entity)
