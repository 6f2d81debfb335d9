"""`make test` has every layer in it, and the list of slow tests names existing tests."""

from __future__ import annotations

import re

import pytest

from tests.slow import QUICK, SLOW, is_slow
from tests.source_tree import ROOT, text_of

#: One scenario of each official client, and one Spark job.
NEEDED = {
    "azure-servicebus": "tests/amqp/sdk/test_delivery.py::test_a_message_arrives_as_it_was_sent",
    "@azure/service-bus": "tests/amqp/test_sdk_javascript.py::test_javascript_clients_do_all_of_it",
    "boto3": "tests/sqs/test_boto3.py::test_batches_with_partial_failures",
    "awscli": "tests/sqs/test_other_clients.py::test_awscli",
    "@aws-sdk/client-sqs": "tests/sqs/test_other_clients.py::test_the_javascript_sdk",
    "Spark": "tests/spark/test_skeleton.py",
}


def exists(entry: str) -> bool:
    """Return whether an entry is a folder, a file, or the beginning of a test in a file."""
    path, _, name = entry.partition("::")
    if not (ROOT / path).exists():
        return False
    function = re.escape(name.partition("[")[0])
    return not name or re.search(rf"^(async )?def {function}", text_of(path), re.M) is not None


@pytest.mark.parametrize("entries", [SLOW, QUICK], ids=["slow", "quick"])
def test_entries_name_tests(entries: tuple[str, ...]) -> None:
    assert [entry for entry in entries if not exists(entry)] == []


def test_quick_entries_are_exceptions() -> None:
    assert [entry for entry in QUICK if not entry.startswith(SLOW)] == []


@pytest.mark.parametrize("client", NEEDED)
def test_every_official_client_is_in_the_quick_tests(client: str) -> None:
    assert exists(NEEDED[client])
    assert not is_slow(NEEDED[client])


def test_entries_are_recognised() -> None:
    assert exists("tests/test_slow.py::test_entries_are")
    assert not exists("tests/test_slow.py::test_nothing")
    assert not exists("tests/missing.py")
    assert is_slow("tests/spark/test_clusters.py::test_spark_connect")
    assert not is_slow("tests/spark/test_skeleton.py::test_x")
