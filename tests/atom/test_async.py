"""The asynchronous administration client of Python."""

from __future__ import annotations

from datetime import timedelta

import pytest
from azure.core.exceptions import ResourceExistsError, ResourceNotFoundError
from azure.servicebus.aio.management import ServiceBusAdministrationClient
from azure.servicebus.management import CorrelationRuleFilter, SqlRuleFilter

from tests.atom.helpers import Name, administration
from tests.bus_helpers import run
from tests.server.processes import Served


@run
async def test_all_kinds_of_entities_over_their_lives(server: Served, name: Name) -> None:
    queue, topic = name("q"), name("t")
    async with administration(server, kind=ServiceBusAdministrationClient) as azure:
        made = await azure.create_queue(queue, max_delivery_count=4)
        made.lock_duration = timedelta(seconds=10)
        await azure.update_queue(made)
        found = await azure.get_queue(queue)
        assert (found.max_delivery_count, found.lock_duration) == (4, timedelta(seconds=10))
        assert (await azure.get_queue_runtime_properties(queue)).total_message_count == 0
        assert queue in [one.name async for one in azure.list_queues(max_page_size=1)]
        with pytest.raises(ResourceExistsError):
            await azure.create_queue(queue)

        await azure.create_topic(topic)
        await azure.create_subscription(topic, "s", requires_session=True)
        assert (await azure.get_subscription(topic, "s")).requires_session
        await azure.create_rule(topic, "s", "r", filter=SqlRuleFilter("n = 1"))
        rule = await azure.get_rule(topic, "s", "r")
        rule.filter = CorrelationRuleFilter(label="red")
        await azure.update_rule(topic, "s", rule)
        rules = [rule async for rule in azure.list_rules(topic, "s")]
        assert [(rule.name, type(rule.filter).__name__) for rule in rules] == [
            ("$Default", "TrueRuleFilter"),
            ("r", "CorrelationRuleFilter"),
        ]
        await azure.delete_rule(topic, "s", "r")
        await azure.delete_subscription(topic, "s")
        assert [one async for one in azure.list_subscriptions(topic)] == []
        assert (await azure.get_topic_runtime_properties(topic)).subscription_count == 0
        await azure.delete_topic(topic)
        await azure.delete_queue(queue)
        with pytest.raises(ResourceNotFoundError):
            await azure.get_queue(queue)
        assert (await azure.get_namespace_properties()).messaging_sku == "Standard"
