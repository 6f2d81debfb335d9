"""The entities that MassTransit, NServiceBus and Azure Functions create, as they create them.

These programs run on .NET. Here the SDK for Python makes their administration calls.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from azure.core.exceptions import ResourceExistsError, ResourceNotFoundError
from azure.servicebus.management import (
    CorrelationRuleFilter,
    FalseRuleFilter,
    ServiceBusAdministrationClient,
    SqlRuleAction,
    SqlRuleFilter,
)

from onibus import Message
from onibus.client import Client

Name = Callable[[str], str]
#: What these transports give for "never".
INT_MAX = 2_147_483_647


def test_nservicebus(azure: ServiceBusAdministrationClient, owner: Client, name: Name) -> None:
    # It looks for a queue of this name to see whether it has the right to manage.
    with pytest.raises(ResourceNotFoundError):
        azure.get_queue("$nservicebus-verification-queue")
    error, queue, topic = name("error"), name("Sales.Endpoint"), name("Sales.OrderPlaced")
    dead: dict[str, Any] = {"forward_dead_lettered_messages_to": error}
    for one, more in ((error, {}), (queue, dead)):
        azure.create_queue(
            one,
            lock_duration=timedelta(minutes=5),
            max_delivery_count=INT_MAX,
            max_size_in_megabytes=5 * 1024,
            enable_batched_operations=True,
            enable_partitioning=False,
            **more,
        )
        with pytest.raises(ResourceExistsError):
            azure.create_queue(one)
    found = azure.get_queue(queue)
    assert (found.max_delivery_count, found.lock_duration) == (INT_MAX, timedelta(minutes=5))
    assert str(found.forward_dead_lettered_messages_to).endswith(f"/{error}")
    azure.create_topic(topic, enable_batched_operations=True, max_size_in_megabytes=5 * 1024)
    azure.create_subscription(
        topic,
        "Sales.Endpoint",
        lock_duration=timedelta(minutes=5),
        forward_to=queue,
        dead_lettering_on_filter_evaluation_exceptions=False,
        max_delivery_count=INT_MAX,
        enable_batched_operations=True,
        user_metadata=queue,
    )
    azure.delete_rule(topic, "Sales.Endpoint", "$Default")
    azure.create_rule(topic, "Sales.Endpoint", "$default", filter=FalseRuleFilter())
    azure.create_rule(
        topic,
        "Sales.Endpoint",
        "OrderPlaced",
        filter=SqlRuleFilter("[NServiceBus.EnclosedMessageTypes] LIKE '%Sales.OrderPlaced%'"),
    )
    azure.create_rule(
        topic,
        "Sales.Endpoint",
        "OrderBilled",
        filter=CorrelationRuleFilter(properties={"Sales.OrderBilled": True}),
    )
    subscription = azure.get_subscription(topic, "Sales.Endpoint")
    assert (subscription.user_metadata, subscription.max_delivery_count) == (queue, INT_MAX)
    types = "NServiceBus.EnclosedMessageTypes"
    owner.send(topic, Message(body=b"1", properties={types: "Sales.OrderPlaced, Sales"}))
    owner.send(topic, Message(body=b"2", properties={types: "Sales.OrderCancelled, Sales"}))
    owner.send(topic, Message(body=b"3", properties={"Sales.OrderBilled": True}))
    with owner.receiver(queue) as receiver:
        bodies: list[bytes] = []
        while len(bodies) < 2:
            bodies += [one.body for one in receiver.receive(5, wait_ms=10_000)]
    assert sorted(bodies) == [b"1", b"3"]


def test_masstransit(azure: ServiceBusAdministrationClient, owner: Client, name: Name) -> None:
    topic, queue = name("contracts/order-submitted"), name("order-service")
    lives: Any = {
        "auto_delete_on_idle": timedelta(days=427),
        "default_message_time_to_live": timedelta(days=366),
    }
    with pytest.raises(ResourceNotFoundError):
        azure.get_topic(topic)
    azure.create_topic(topic, enable_batched_operations=True, **lives)
    azure.create_queue(
        queue,
        lock_duration=timedelta(minutes=5),
        max_delivery_count=5,
        dead_lettering_on_message_expiration=True,
        enable_batched_operations=True,
        **lives,
    )
    found = azure.get_queue(queue)
    assert found.auto_delete_on_idle == timedelta(days=427)
    assert found.default_message_time_to_live == timedelta(days=366)
    azure.create_subscription(
        topic, "order-service", forward_to=queue, max_delivery_count=5, **lives
    )
    # At the next start it compares, and updates what differs.
    subscription = azure.get_subscription(topic, "order-service")
    assert str(subscription.forward_to).rpartition("/")[2] == queue
    azure.update_subscription(topic, subscription)
    rule = azure.get_rule(topic, "order-service", "$Default")
    rule.filter = SqlRuleFilter("Priority = 'high'")
    rule.action = SqlRuleAction("SET Marked = 1")
    azure.update_rule(topic, "order-service", rule)
    assert [one.name for one in azure.list_rules(topic, "order-service")] == ["$Default"]
    owner.send(topic, Message(body=b"high", properties={"Priority": "high"}))
    owner.send(topic, Message(body=b"low", properties={"Priority": "low"}))
    with owner.receiver(queue) as receiver:
        [one] = receiver.receive(5, wait_ms=10_000)
        assert (one.body, one.properties["Marked"]) == (b"high", 1)
        receiver.complete(one)
    azure.delete_subscription(topic, "order-service")
    with pytest.raises(ResourceNotFoundError):
        azure.get_subscription(topic, "order-service")


def test_functions_scale_by_counts(
    azure: ServiceBusAdministrationClient, owner: Client, name: Name
) -> None:
    queue, topic = name("jobs"), name("events")
    azure.create_queue(queue)
    azure.create_topic(topic)
    azure.create_subscription(topic, "s")
    owner.send(queue, Message(body=b"1"))
    owner.send(topic, Message(body=b"1"))
    counted = azure.get_queue_runtime_properties(queue)
    assert (counted.active_message_count, counted.dead_letter_message_count) == (1, 0)
    subscribed = azure.get_subscription_runtime_properties(topic, "s")
    assert (subscribed.active_message_count, subscribed.dead_letter_message_count) == (1, 0)
