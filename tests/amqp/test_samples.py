"""The official samples for Python run to their end; only the connection string is another.

Those for JavaScript are in no package: they are run by hand.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from onibus.client import Client
from tests.amqp.samples import FILLED, Run, Sample, run_sample, samples_home
from tests.client.server_helpers import development_string
from tests.server.processes import served

#: Samples at the same time: they wait most of the time.
_AT_ONCE = 6
_SUFFIX = "_async"
_DONE = "Send message is done."
_LAST = f"filled {FILLED - 1}"

#: By name; each of them for asyncio too, where there is one.
SAMPLES = {
    "authenticate_client_connstr": Sample(""),
    "deadletter_messages_and_correct": Sample("Fixing message"),
    "failure_and_recovery": Sample("Receiving", endless=True),
    "generate_sas_token_and_authenticate_client": Sample(""),
    "mgmt_queue": Sample("Delete Queue"),
    "mgmt_rule": Sample("Delete Rule"),
    "mgmt_subscription": Sample("Delete Subscription"),
    "mgmt_topic": Sample("Delete Topic"),
    "receive_deadlettered_messages": Sample("receiving deadlettered messages"),
    "receive_deferred_message_queue": Sample("Completing deferred msg: Message to be deferred"),
    "receive_iterator_queue": Sample(_LAST, filled=True, endless=True),
    "receive_peek": Sample("filled 0", filled=True),
    "receive_queue": Sample("filled 0", filled=True),
    "receive_subscription": Sample("filled 0", filled=True),
    "schedule_messages_and_cancellation": Sample("All scheduled messages are cancelled."),
    "schedule_topic_messages_and_cancellation": Sample("All scheduled messages are cancelled."),
    "send_and_receive_amqp_annotated_message": Sample("Message of value body received."),
    "send_queue": Sample(_DONE),
    "send_topic": Sample(_DONE),
    "session_pool_receive": Sample("no non-empty sessions remaining"),
    "session_send_receive": Sample("Session state: b'END'"),
    "topic_subscription_with_rule_operations": Sample("Subscription sb-corrfiltersub is deleted."),
}

#: Which do not run here, and why.
OTHERS = {
    "authenticate_using_azure_named_key_credential": "speaks to port 5671, wherever it is told to",
    "authenticate_using_azure_sas_credential": "speaks to port 5671, wherever it is told to",
    "auto_lock_renew": "takes five minutes; run by hand",
    "client_identity_authentication": "signs in with Microsoft Entra ID",
    "connection_to_custom_endpoint_address": "has its addresses in its text",
    "proxy": "needs an HTTP proxy on port 8899",
    "sample_code_servicebus": "signs in with Microsoft Entra ID",
}


@pytest.fixture(scope="module")
def paths() -> dict[str, Path]:
    """All samples, by their names."""
    return {path.stem: path for path in samples_home().glob("*/*.py")}


@pytest.fixture(scope="module")
def runs(
    paths: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Future[Run]]]:
    """All of them, begun; those that take long first."""
    data = tmp_path_factory.mktemp("samples") / "data"
    wanted = {name: SAMPLES.get(name.removesuffix(_SUFFIX)) for name in paths}
    first = sorted(wanted, key=lambda name: ("session_pool" in name, "deadletter" in name))[::-1]
    with (
        served("--data", data, "--tls", "--log-level", "warning") as server,
        Client.connect(development_string(server.port)) as owner,
        ThreadPoolExecutor(_AT_ONCE) as pool,
    ):
        yield {
            name: pool.submit(run_sample, server, owner, paths[name], sample)
            for name in first
            if (sample := wanted[name]) is not None
        }


def test_no_sample_is_forgotten(paths: dict[str, Path]) -> None:
    assert {name.removesuffix(_SUFFIX) for name in paths} == SAMPLES.keys() | OTHERS.keys()


@pytest.mark.promise("B1", "B3", "B4", "L1", "L2", "L3", "S5")
@pytest.mark.parametrize("name", SAMPLES)
def test_samples_run_to_their_end(runs: dict[str, Future[Run]], name: str) -> None:
    found = [runs[one].result() for one in (name, name + _SUFFIX) if one in runs]
    assert found, "there is no such sample"
    for run in found:
        assert run.code == 0, run.said
        assert SAMPLES[name].says in run.said


def test_what_samples_send_is_there(runs: dict[str, Future[Run]]) -> None:
    assert runs["send_queue"].result().left == (21, 0, 0)
    assert runs["send_queue_async"].result().left == (21, 0, 0)
    assert runs["send_topic"].result().left == (0, 0, 21)
    assert runs["send_topic_async"].result().left == (0, 0, 11)
    assert runs["receive_peek"].result().left == (FILLED, 0, FILLED)
    assert runs["receive_iterator_queue"].result().left[2] == FILLED
