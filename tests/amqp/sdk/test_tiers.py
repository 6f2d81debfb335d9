"""`service_bus_profile`: the tiers of Service Bus through the official Python clients."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from azure.core.exceptions import HttpResponseError, ResourceExistsError
from azure.servicebus import ServiceBusClient
from azure.servicebus.exceptions import MessageSizeExceededError, ServiceBusError
from azure.servicebus.management import (
    AccessRights,
    AuthorizationRule,
    CorrelationRuleFilter,
    ServiceBusAdministrationClient,
    SqlRuleFilter,
)

from onibus import Rule, SqlFilter
from onibus.client import Client
from tests.amqp.sdk.world import bodies, msg
from tests.bus_helpers import KEYS
from tests.server.processes import PATIENCE_S, Served, served
from tests.server.server_helpers import developing

KILOBYTE, MEGABYTE = 1 << 10, 1 << 20
LIMIT = r"currently allowed on the link\. TrackingId:"


@dataclass
class Tier:
    """A server of one tier, and both clients of it."""

    server: Served
    admin: Any
    client: ServiceBusClient

    def take(self, queue: str, count: int) -> list[str]:
        """Receive and delete messages."""
        with self.client.get_queue_receiver(queue, receive_mode="receiveanddelete") as receiver:
            found: list[Any] = []
            while len(found) < count:
                found += receiver.receive_messages(count, max_wait_time=PATIENCE_S)
            return bodies(found)


@contextmanager
def tier(tmp_path_factory: pytest.TempPathFactory, name: str) -> Iterator[Tier]:
    data = tmp_path_factory.mktemp(name) / "data"
    with served("--data", data, "--service-bus-profile", name) as server:
        whole = server.ready["development"]
        trust = {"connection_verify": server.ready["offered_certificate"], "retry_total": 0}
        with (
            ServiceBusAdministrationClient.from_connection_string(whole, **trust) as admin,
            ServiceBusClient.from_connection_string(whole, retry_total=0) as client,
        ):
            yield Tier(server, admin, client)


@pytest.fixture(scope="module")
def standard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tier]:
    with tier(tmp_path_factory, "standard") as found:
        yield found


@pytest.fixture(scope="module")
def premium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tier]:
    with tier(tmp_path_factory, "premium") as found:
        yield found


@pytest.fixture(scope="module")
def relaxed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tier]:
    with tier(tmp_path_factory, "relaxed") as found:
        yield found


@pytest.mark.promise("B7")
def test_standard_takes_messages_of_256_kilobytes(standard: Tier) -> None:
    made = standard.admin.create_queue("large")
    assert made.max_message_size_in_kilobytes == 256
    with standard.client.get_queue_sender("large") as sender:
        sender.send_messages(msg("x" * 255 * KILOBYTE))
        with pytest.raises(MessageSizeExceededError, match=LIMIT):
            sender.send_messages(msg("x" * 257 * KILOBYTE))
        later = datetime.now(UTC) + timedelta(hours=1)
        with pytest.raises(ServiceBusError, match="exceeds the limit"):
            sender.schedule_messages(msg("x" * 257 * KILOBYTE), later)
        batch = sender.create_message_batch()
        assert batch.max_size_in_bytes == 256 * KILOBYTE
        with pytest.raises(ValueError, match="too large"):
            sender.create_message_batch(MEGABYTE)
    assert len(standard.take("large", 1)[0]) == 255 * KILOBYTE
    about = standard.admin.get_queue_runtime_properties("large")
    assert about.total_message_count == 0, "nothing of the others is stored"


@pytest.mark.promise("B11", "B7")
def test_standard_limits_messages_over_rest(standard: Tier) -> None:
    standard.admin.create_queue("rest")
    batch = json.dumps([{"Body": "x" * 200 * KILOBYTE}] * 2)
    kind = {"content-type": "application/vnd.microsoft.servicebus.json"}
    with standard.server.client(headers=developing()) as client:
        for body, headers in (("x" * 257 * KILOBYTE, {}), (batch, kind)):
            answer = client.post("/rest/messages", content=body, headers=headers)
            assert (answer.status_code, "exceeds the limit" in answer.text) == (403, True)
        assert client.post("/rest/messages", content="x" * 255 * KILOBYTE).status_code == 201


@pytest.mark.promise("P13")
def test_standard_rejects_a_batch_with_several_keys(standard: Tier) -> None:
    standard.admin.create_queue("wide", enable_partitioning=True)
    standard.admin.create_queue("once", enable_partitioning=True, requires_duplicate_detection=True)
    standard.admin.create_queue("narrow")
    several = [msg(key, key, partition_key=key) for key in KEYS[:2]]
    told = "Batching brokered messages with distinct SessionId or PartitionKey is not supported"
    with standard.client.get_queue_sender("wide") as sender:
        with pytest.raises(ServiceBusError, match=told):
            sender.send_messages(several)
        sender.send_messages([msg("1", partition_key="k"), msg("2", partition_key="k")])
    with (
        standard.client.get_queue_sender("once") as sender,
        pytest.raises(ServiceBusError, match="PartitionKey, or MessageId is not supported"),
    ):
        sender.send_messages([msg("1", "1"), msg("2", "2")])
    with standard.client.get_queue_sender("narrow") as sender:
        sender.send_messages(several)
    assert standard.take("wide", 2) == ["1", "2"]
    assert len(standard.take("narrow", 2)) == 2


@pytest.mark.promise("P1", "B7")
def test_standard_has_its_sizes(standard: Tier) -> None:
    assert standard.admin.get_namespace_properties().messaging_sku == "Standard"
    for wrong, told in (
        (
            {"max_size_in_megabytes": 10_240},
            "following values: 1024;2048;3072;4096;5120",
        ),
        ({"max_message_size_in_kilobytes": 1_024}, "must be 256 when the namespace 'localhost'"),
    ):
        with pytest.raises(HttpResponseError, match=told):
            standard.admin.create_queue("wrong", **wrong)
    whole = standard.admin.create_queue(
        "sized", max_size_in_megabytes=5_120, enable_partitioning=True
    )
    assert whole.max_size_in_megabytes == 81_920
    whole.max_delivery_count = 5
    standard.admin.update_queue(whole)
    assert standard.admin.get_queue("sized").max_delivery_count == 5


@pytest.mark.promise("B7")
def test_premium_takes_the_message_size_of_its_entity(premium: Tier) -> None:
    assert premium.admin.create_queue("usual").max_message_size_in_kilobytes == 1_024
    premium.admin.create_topic("big", max_message_size_in_kilobytes=2_048)
    premium.admin.create_subscription("big", "all")
    for wrong in (512, 102_401):
        with pytest.raises(HttpResponseError, match="between 1024 and 102400"):
            premium.admin.create_topic("wrong", max_message_size_in_kilobytes=wrong)
    large = msg("x" * (2 * MEGABYTE - 10 * KILOBYTE))
    with premium.client.get_topic_sender("big") as sender:
        sender.send_messages(large)
        assert sender.create_message_batch().max_size_in_bytes == MEGABYTE
    with premium.client.get_subscription_receiver("big", "all") as receiver:
        [found] = receiver.receive_messages(max_wait_time=PATIENCE_S)
        assert len(str(found)) == 2 * MEGABYTE - 10 * KILOBYTE
        receiver.complete_message(found)
    with (
        premium.client.get_queue_sender("usual") as sender,
        pytest.raises(MessageSizeExceededError, match=LIMIT),
    ):
        sender.send_messages(large)


@pytest.mark.promise("P1", "P13")
def test_premium_has_no_new_partitioned_entities(premium: Tier) -> None:
    assert premium.admin.get_namespace_properties().messaging_sku == "Premium"
    for create in (premium.admin.create_queue, premium.admin.create_topic):
        with pytest.raises(HttpResponseError, match="EnablePartitioning must be set to false"):
            create("wide", enable_partitioning=True)
    assert premium.admin.create_queue("80", max_size_in_megabytes=81_920) is not None
    # Existing ones continue to work (document 002), with the service's batches.
    with premium.server.client(headers=developing()) as client:
        made = client.put("/v1/queues/old", json={"enable_partitioning": True})
        assert made.status_code in (200, 201), made.text
    assert premium.admin.get_queue("old").enable_partitioning
    with premium.client.get_queue_sender("old") as sender:
        with pytest.raises(ServiceBusError, match="Batching brokered messages"):
            sender.send_messages([msg(key, partition_key=key) for key in KEYS[:2]])
        sender.send_messages(msg("1", partition_key=KEYS[0]))
    assert premium.take("old", 1) == ["1"]


@pytest.mark.promise("B7", "P13")
def test_relaxed_is_the_default_and_has_our_own_limits(relaxed: Tier) -> None:
    assert relaxed.admin.get_namespace_properties().messaging_sku == "Standard"
    made = relaxed.admin.create_queue("q", enable_partitioning=True, max_size_in_megabytes=7)
    assert (made.max_message_size_in_kilobytes, made.max_size_in_megabytes) == (1_024, 7 * 16)
    relaxed.admin.create_queue("small", max_message_size_in_kilobytes=4)
    with relaxed.client.get_queue_sender("q") as sender:
        sender.send_messages([msg(key, partition_key=key) for key in KEYS[:2]])
        sender.send_messages(msg("x" * 900 * KILOBYTE))
        assert sender.create_message_batch().max_size_in_bytes == MEGABYTE
    with (
        relaxed.client.get_queue_sender("small") as sender,
        pytest.raises(MessageSizeExceededError, match=LIMIT),
    ):
        sender.send_messages(msg("x" * 5 * KILOBYTE))
    assert len(relaxed.take("q", 3)) == 3


@pytest.mark.promise("P13", "B7")
def test_rules_of_batches_apply_to_scheduled_messages(standard: Tier, relaxed: Tier) -> None:
    later = datetime.now(UTC) + timedelta(hours=1)
    several = [msg(key, partition_key=key) for key in KEYS[:2]]
    large = [msg("x" * 200 * KILOBYTE) for _ in range(2)]
    standard.admin.create_queue("later", enable_partitioning=True)
    relaxed.admin.create_queue("later", enable_partitioning=True)
    with standard.client.get_queue_sender("later") as sender:
        with pytest.raises(ServiceBusError, match="Batching brokered messages"):
            sender.schedule_messages(several, later)
        with pytest.raises(ServiceBusError, match=r"message batch of .* exceeds the limit"):
            sender.schedule_messages(large, later)
        one_key = [msg(body, partition_key="k") for body in ("1", "2")]
        assert len(sender.schedule_messages(one_key, later)) == 2
    about = standard.admin.get_queue_runtime_properties("later")
    assert about.scheduled_message_count == 2, "nothing of the others is stored"
    with relaxed.client.get_queue_sender("later") as sender:
        assert len(sender.schedule_messages([*several, *large], later)) == 4


@pytest.mark.promise("B7", "B11")
def test_tiers_limit_properties(standard: Tier, relaxed: Tier) -> None:
    one: Any = {"stack": "x" * (33 * KILOBYTE)}
    many: Any = {f"part-{number}": "é" * 8 * KILOBYTE for number in range(4)}
    good: Any = {"stack": "x" * 32 * KILOBYTE}
    for tier_, refused in ((standard, True), (relaxed, False)):
        tier_.admin.create_queue("properties")
        with tier_.client.get_queue_sender("properties") as sender:
            for properties, told in ((one, "The property 'stack'"), (many, "size quota for this")):
                for messages in (
                    msg("x", application_properties=properties),
                    [msg("first"), msg("second", application_properties=properties)],
                ):
                    if refused:
                        with pytest.raises(MessageSizeExceededError, match=told):
                            sender.send_messages(messages)
                    else:
                        sender.send_messages(messages)
            sender.send_messages(msg("good", application_properties=good))
    with standard.server.client(headers=developing()) as client:
        answer = client.post(
            "/properties/messages", content="x", headers={"stack": f'"{"x" * 33 * KILOBYTE}"'}
        )
        assert answer.status_code == 403, "over REST too"
    assert standard.take("properties", 1) == ["good"]
    assert len(relaxed.take("properties", 7)) == 7


@pytest.mark.promise("B7")
def test_tiers_limit_filters_and_keys(standard: Tier) -> None:
    standard.admin.create_topic("filters")
    rules = [Rule(str(number), SqlFilter("a = 1")) for number in range(1_999)]
    with Client.connect(standard.server.ready["development"]) as owner:
        owner.create_subscription("filters", "most", rules=rules)
    standard.admin.create_subscription("filters", "last")
    told = "SubCode=40300. The maximum number of resources of type SqlFilter"
    with pytest.raises(HttpResponseError, match=told) as caught:
        standard.admin.create_subscription("filters", "more")
    assert caught.value.status_code == 403
    with pytest.raises(HttpResponseError, match=told):
        standard.admin.create_rule("filters", "last", "more", filter=SqlRuleFilter("a = 2"))
    standard.admin.create_rule(
        "filters", "last", "other", filter=CorrelationRuleFilter(correlation_id="1")
    )
    with pytest.raises(ResourceExistsError):
        standard.admin.create_subscription("filters", "last")
    rights: Any = [AccessRights.SEND]
    keys = [
        AuthorizationRule(
            type="SharedAccessAuthorizationRule", rights=rights, key_name=f"key-{n}",
            primary_key="p" * 44, secondary_key="s" * 44, claim_type="SharedAccessKey",
            claim_value="None",
        )
        for n in range(13)
    ]  # fmt: skip
    with pytest.raises(HttpResponseError, match=r"type AuthorizationRule .* limit is 12"):
        standard.admin.create_queue("keys", authorization_rules=keys)
    standard.admin.create_queue("keys", authorization_rules=keys[:12])


@pytest.mark.promise("B7")
def test_premium_has_a_thousand_entities(premium: Tier) -> None:
    with premium.server.client(headers=developing()) as client:
        there = [*premium.admin.list_queues(), *premium.admin.list_topics()]
        for number in range(len(there), 1_000):
            assert client.put(f"/v1/queues/many-{number}", json={}).status_code in (200, 201)
        told = "SubCode=40300. The maximum number of resources of type Entity .* limit is 1000"
        with pytest.raises(HttpResponseError, match=told) as caught:
            premium.admin.create_topic("one-more")
        assert caught.value.status_code == 403
        with pytest.raises(ResourceExistsError):
            premium.admin.create_queue("many-999")
        premium.admin.delete_queue("many-999")
        premium.admin.create_topic("one-more")
        assert client.put("/v1/queues/native", json={}).status_code in (200, 201), "not for others"
