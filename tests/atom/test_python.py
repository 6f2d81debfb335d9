"""Everything that the administration client of Python can do, against a server process."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from azure.core.exceptions import (
    ClientAuthenticationError,
    HttpResponseError,
    ResourceExistsError,
    ResourceNotFoundError,
)
from azure.servicebus.management import (
    AccessRights,
    AuthorizationRule,
    CorrelationRuleFilter,
    FalseRuleFilter,
    SqlRuleAction,
    SqlRuleFilter,
    TrueRuleFilter,
)

from onibus import Message
from onibus.client import Client
from tests.atom.helpers import Name, administration, plain
from tests.server.processes import Served
from tests.server.server_helpers import signed

#: Nearly everything in its models may be None by its types.
Azure = Any

WITHOUT_END = timedelta(days=10_675_199)
#: Settings of a queue that are not the defaults.
CHOSEN: dict[str, Any] = {
    "lock_duration": timedelta(seconds=45),
    "max_delivery_count": 7,
    "default_message_time_to_live": timedelta(days=3, hours=1),
    "dead_lettering_on_message_expiration": True,
    "requires_duplicate_detection": True,
    "duplicate_detection_history_time_window": timedelta(minutes=3),
    "requires_session": True,
    "max_size_in_megabytes": 2048,
    "auto_delete_on_idle": timedelta(hours=2),
    "user_metadata": 'for <us> & "them"',
    "max_message_size_in_kilobytes": 2048,
}


def test_a_queue_over_its_life(azure: Azure, owner: Client, name: Name) -> None:
    queue = name("orders/eu")
    made = azure.create_queue(queue, **CHOSEN)
    assert made.name == queue
    for found in (made, azure.get_queue(queue)):
        assert {key: getattr(found, key) for key in CHOSEN} == CHOSEN
        assert (found.status, found.availability_status) == ("Active", "Available")
    settings = owner.queue(queue).settings
    assert (settings.lock_duration_ms, settings.max_size_bytes) == (45_000, 2 << 30)
    with pytest.raises(ResourceExistsError):
        azure.create_queue(queue)

    found = azure.get_queue(queue)
    found.max_delivery_count = 3
    found.status = "SendDisabled"
    found.user_metadata = None
    found.default_message_time_to_live = WITHOUT_END
    azure.update_queue(found)
    settings = owner.queue(queue).settings
    assert (settings.max_delivery_count, settings.status) == (3, "send-disabled")
    assert (settings.default_time_to_live_ms, settings.user_metadata) == (None, "")
    assert settings.lock_duration_ms == 45_000, "what was sent back as it came has not changed"

    azure.delete_queue(queue)
    for ask in (azure.get_queue, azure.get_queue_runtime_properties, azure.delete_queue):
        with pytest.raises(ResourceNotFoundError):
            ask(queue)
    with pytest.raises(ResourceNotFoundError):
        azure.update_queue(found)


def test_a_queue_of_defaults_has_those_of_service_bus(azure: Azure, name: Name) -> None:
    made = azure.create_queue(name("q"))
    assert (made.lock_duration, made.max_delivery_count) == (timedelta(minutes=1), 10)
    assert (made.max_size_in_megabytes, made.max_message_size_in_kilobytes) == (1024, 1024)
    assert made.duplicate_detection_history_time_window == timedelta(minutes=10)
    assert made.default_message_time_to_live is not None
    assert made.default_message_time_to_live >= WITHOUT_END
    azure.update_queue(made)
    assert azure.get_queue(made.name).default_message_time_to_live >= WITHOUT_END


@pytest.mark.promise("P1", "D4")
def test_what_is_fixed_at_creation_cannot_be_changed(azure: Azure, name: Name) -> None:
    made = azure.create_queue(name("q"), enable_partitioning=True)
    assert made.max_size_in_megabytes == 16 * 1024, "sixteen partitions of a gigabyte each"
    azure.update_queue(made)
    assert azure.get_queue(made.name).max_size_in_megabytes == 16 * 1024
    for setting in ("enable_partitioning", "requires_session", "requires_duplicate_detection"):
        changed = azure.get_queue(made.name)
        setattr(changed, setting, not getattr(changed, setting))
        with pytest.raises(HttpResponseError, match="fixed when the entity is created") as caught:
            azure.update_queue(changed)
        assert caught.value.status_code == 400
    changed = azure.get_queue(made.name)
    changed.duplicate_detection_history_time_window = timedelta(seconds=19)
    with pytest.raises(HttpResponseError, match="must be from 20000"):
        azure.update_queue(changed)


@pytest.mark.promise("B3")
def test_topics_subscriptions_and_rules_over_their_lives(
    azure: Azure, owner: Client, name: Name
) -> None:
    topic = name("news/all")
    made = azure.create_topic(topic, user_metadata="x", requires_duplicate_detection=True)
    assert (made.name, made.user_metadata, made.support_ordering) == (topic, "x", True)
    with pytest.raises(ResourceExistsError):
        azure.create_topic(topic)
    made.default_message_time_to_live = timedelta(hours=1)
    azure.update_topic(made)
    assert azure.get_topic(topic).default_message_time_to_live == timedelta(hours=1)

    azure.create_subscription(topic, "all", max_delivery_count=4)
    chosen = azure.get_subscription(topic, "all")
    assert (chosen.name, chosen.max_delivery_count) == ("all", 4)
    chosen.lock_duration = timedelta(seconds=20)
    chosen.dead_lettering_on_filter_evaluation_exceptions = False
    azure.update_subscription(topic, chosen)
    settings = owner.subscription(f"{topic}/subscriptions/all").settings
    assert (settings.lock_duration_ms, settings.dead_letter_on_filter_error) == (20_000, False)
    with pytest.raises(ResourceExistsError):
        azure.create_subscription(topic, "all")

    azure.create_subscription(topic, "some")
    azure.delete_rule(topic, "some", "$Default")
    azure.create_rule(
        topic,
        "some",
        "large",
        filter=SqlRuleFilter("n > @least", {"@least": 5}),
        action=SqlRuleAction("SET seen = @who", {"@who": "us"}),
    )
    for n in (3, 9):
        owner.send(topic, Message(body=b"", message_id=str(n), properties={"n": n}))
    (message,) = owner.receiver(f"{topic}/subscriptions/some").receive(10)
    assert message.properties == {"n": 9, "seen": "us", "RuleName": "large"}
    rule = azure.get_rule(topic, "some", "LARGE")
    rule.filter = SqlRuleFilter("n = 1")
    azure.update_rule(topic, "some", rule)
    assert azure.get_rule(topic, "some", "large").filter.sql_expression == "n = 1"
    with pytest.raises(ResourceExistsError):
        azure.create_rule(topic, "some", "large", filter=TrueRuleFilter())
    with pytest.raises(ResourceNotFoundError):
        azure.get_rule(topic, "some", "small")

    about = azure.get_topic_runtime_properties(topic)
    assert about.subscription_count == 2
    azure.delete_subscription(topic, "some")
    assert [one.name for one in azure.list_subscriptions(topic)] == ["all"]
    azure.delete_topic(topic)
    for ask in (lambda: azure.get_topic(topic), lambda: list(azure.list_subscriptions(topic))):
        with pytest.raises(ResourceNotFoundError):
            ask()


VALUES: dict[str, Any] = {
    "text": "a < b & c",
    "whole": 5,
    "long": 2**40,
    "real": 0.5,
    "endless": float("-inf"),
    "yes": True,
    "time": datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
    # Without a zone, as it was given.
    "local": datetime(2026, 1, 2, 3, 4, 5),
    "span": timedelta(days=1, seconds=2),
}


@pytest.mark.promise("B3")
def test_filters_of_all_kinds_are_told_as_they_were_given(azure: Azure, name: Name) -> None:
    topic = name("t")
    azure.create_topic(topic)
    azure.create_subscription(topic, "s")
    given = {
        "correlation": CorrelationRuleFilter(
            correlation_id="c",
            message_id="m",
            to="t",
            reply_to="r",
            label="l",
            session_id="s",
            reply_to_session_id="rs",
            content_type="ct",
            properties=dict(VALUES),
        ),
        "sql": SqlRuleFilter("n = @whole OR s = @text", {"@whole": 5, "@text": "x"}),
        "true": TrueRuleFilter(),
        "false": FalseRuleFilter(),
    }
    for rule, chosen in given.items():
        azure.create_rule(topic, "s", rule, filter=chosen)
    azure.delete_rule(topic, "s", "$Default")
    found = {rule.name: rule.filter for rule in azure.list_rules(topic, "s")}
    assert found.keys() == given.keys()
    for rule, chosen in given.items():
        assert type(found[rule]) is type(chosen)
    told = found["correlation"]
    assert told.properties == VALUES
    named = ("correlation_id", "message_id", "to", "reply_to", "label", "session_id")
    assert [getattr(told, field) for field in named] == ["c", "m", "t", "r", "l", "s"]
    assert (told.reply_to_session_id, told.content_type) == ("rs", "ct")
    assert found["sql"].parameters == {"@whole": 5, "@text": "x"}


@pytest.mark.promise("P10")
def test_counts_are_told_by_state_and_added_up_over_partitions(
    azure: Azure, owner: Client, name: Name
) -> None:
    queue = name("q")
    azure.create_queue(queue, enable_partitioning=True)
    for n in range(8):
        owner.send(queue, Message(body=b"x", partition_key=str(n)))
    later = int((datetime.now(UTC) + timedelta(hours=1)).timestamp() * 1000)
    owner.send(queue, Message(body=b"x", scheduled_enqueue_time_ms=later))
    receiver = owner.receiver(queue)
    first, second = receiver.receive(2)
    receiver.dead_letter(first)
    receiver.defer(second)
    about = azure.get_queue_runtime_properties(queue)
    assert (about.active_message_count, about.dead_letter_message_count) == (6, 1)
    assert (about.scheduled_message_count, about.total_message_count) == (1, 9)
    assert about.transfer_message_count == about.transfer_dead_letter_message_count == 0
    assert about.size_in_bytes > 0
    assert datetime.now(UTC) - about.created_at_utc < timedelta(minutes=5)
    (listed,) = [one for one in azure.list_queues_runtime_properties() if one.name == queue]
    assert listed.total_message_count == 9


def test_lists_come_in_pages(azure: Azure, owner: Client, name: Name) -> None:
    topic = name("t")
    owner.create_topic(topic)
    names = [f"s{n:03}" for n in range(105)]
    for one in names:
        owner.create_subscription(topic, one)
    assert [one.name for one in azure.list_subscriptions(topic)] == names
    pages = list(azure.list_subscriptions(topic, max_page_size=40).by_page())
    assert [len(list(page)) for page in pages] == [40, 40, 25]
    found = [one.name for one in azure.list_topics(max_page_size=1)]
    assert found == sorted(found)
    assert topic in found


@pytest.mark.promise("B6")
def test_messages_are_forwarded_to_what_a_queue_names(
    azure: Azure, owner: Client, name: Name
) -> None:
    source, target = name("source"), name("target/of")
    azure.create_queue(target)
    made = azure.create_queue(source, forward_to=target, forward_dead_lettered_messages_to=target)
    assert made.forward_to is not None
    assert made.forward_to.startswith("sb://localhost:")
    assert made.forward_to.endswith(f"/{target}")
    assert owner.queue(source).settings.forward_to == target
    azure.update_queue(made)
    owner.send(source, Message(body=b"on its way"))
    (message,) = owner.receiver(target).receive(1, wait_ms=5_000)
    assert message.body == b"on its way"
    made.forward_to = made.forward_dead_lettered_messages_to = None
    azure.update_queue(made)
    settings = owner.queue(source).settings
    assert settings.forward_to is settings.forward_dead_letters_to is None
    with pytest.raises(HttpResponseError, match="nowhere' could not be found"):
        azure.create_queue(name("q"), forward_to="nowhere")


def rule(key_name: str, *rights: AccessRights, primary: str = "p" * 44) -> AuthorizationRule:
    return AuthorizationRule(
        type="SharedAccessAuthorizationRule",
        claim_type="SharedAccessKey",
        claim_value="None",
        rights=list(rights),
        key_name=key_name,
        primary_key=primary,
        secondary_key="s" * 44,
    )


#: Names and keys of who owns a queue, and who sends to it.
KEYS = (("boss", "p" * 44), ("sender", "q" * 44))


def test_a_queue_has_keys_of_its_own(azure: Azure, server: Served, name: Name) -> None:
    queue, other = name("q"), name("q")
    azure.create_queue(other)
    boss = rule("boss", AccessRights.MANAGE, AccessRights.SEND, AccessRights.LISTEN)
    sender = rule("sender", AccessRights.SEND, primary="q" * 44)
    made = azure.create_queue(queue, authorization_rules=[boss, sender])
    told = {one.key_name: one for one in made.authorization_rules}
    assert {key: set(one.rights) for key, one in told.items()} == {
        "boss": {"Manage", "Send", "Listen"},
        "sender": {"Send"},
    }
    assert (told["boss"].primary_key, told["boss"].secondary_key) == ("p" * 44, "s" * 44)
    # This client signs for the whole namespace, which no key of a queue can.
    with (
        administration(server, "boss", "p" * 44) as client,
        pytest.raises(ClientAuthenticationError),
    ):
        client.get_queue(queue)
    shown = {key: signed(f"sb://localhost/{queue}", *key) for key in KEYS}
    with plain(server) as web:
        answers = {key: web.get(f"/{queue}", headers=shown[key]) for key in KEYS}
        assert [answers[key].status_code for key in KEYS] == [200, 401]
        assert "lacks the right Manage" in answers[KEYS[1]].text
        assert web.get(f"/{other}", headers=shown[KEYS[0]]).status_code == 401
        assert web.get("/$Resources/queues", headers=shown[KEYS[0]]).status_code == 401
    made.authorization_rules = [rule("boss", AccessRights.LISTEN)]
    azure.update_queue(made)
    (left,) = azure.get_queue(queue).authorization_rules
    assert (left.key_name, left.rights) == ("boss", ["Listen"])
    with pytest.raises(HttpResponseError, match="16 to 256"):
        azure.create_queue(
            name("q"), authorization_rules=[rule("x", AccessRights.SEND, primary="k")]
        )


def test_who_has_no_key_is_refused(server: Served, azure: Azure, name: Name) -> None:
    queue = azure.create_queue(name("q"))
    with administration(server, key="not the key") as client:
        for ask in (
            lambda: client.get_queue(queue.name),
            lambda: client.create_queue(name("q")),
            lambda: client.update_queue(queue),
            lambda: client.delete_queue(queue.name),
            lambda: list(client.list_topics()),
            client.get_namespace_properties,
        ):
            with pytest.raises(ClientAuthenticationError) as caught:
                ask()
            assert caught.value.status_code == 401


def test_the_namespace_tells_of_itself(azure: Azure) -> None:
    about = azure.get_namespace_properties()
    assert (about.name, about.messaging_sku) == ("localhost", "Standard")
    assert about.created_at_utc <= about.modified_at_utc


@pytest.mark.promise("B7")
def test_settings_without_effect_read_back_as_written(azure: Azure, name: Name) -> None:
    queue, topic = name("q"), name("t")
    flags = {"enable_batched_operations": False, "enable_express": True, "user_metadata": " a\n<b>"}
    azure.create_queue(queue, **flags)
    azure.create_topic(topic, support_ordering=False, **flags)
    flags.pop("enable_express")
    azure.create_subscription(topic, "s", **flags)
    found = azure.get_queue(queue)
    assert (found.enable_batched_operations, found.enable_express) == (False, True)
    told = azure.get_topic(topic)
    assert (told.support_ordering, told.enable_express, told.user_metadata) == (
        *(False, True),
        flags["user_metadata"],
    )
    kept = azure.get_subscription(topic, "s")
    assert kept.enable_batched_operations is False
    # An update that names other settings changes none of these.
    found.enable_express = False
    azure.update_queue(found)
    again = azure.get_queue(queue)
    assert (again.enable_batched_operations, again.enable_express) == (False, False)
    assert azure.get_queue_runtime_properties(queue).total_message_count == 0


@pytest.mark.promise("B3")
def test_topics_count_their_filters_for_clients_that_know_it(
    azure: Azure, server: Served, name: Name
) -> None:
    topic = name("t")
    azure.create_topic(topic)
    azure.create_subscription(topic, "s")
    azure.create_rule(topic, "s", "false", filter=FalseRuleFilter())
    azure.create_rule(topic, "s", "sql", filter=SqlRuleFilter("a = 1"))
    azure.create_rule(topic, "s", "c", filter=CorrelationRuleFilter(label="x"))

    told = azure.get_topic_runtime_properties(topic)
    assert (told.sql_filter_count, told.correlation_filter_count) == (3, 1)
    with plain(server) as client:
        older = client.get(f"/{topic}", headers=signed()).text
    assert "SubscriptionCount" in older
    assert "FilterCount" not in older
