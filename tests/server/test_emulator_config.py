"""The Service Bus emulator's Config.json starts the bus as it is (X11).

The files here are built after those that are found in public repositories: the one that the
emulator ships, with its comments, and what people make of it.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from onibus import Bus, CorrelationFilter, Rule, SqlAction, SqlFilter, TrueFilter
from onibus.core.errors import EntityExists, InvalidArgument
from onibus.server.config import load
from onibus.server.wanted import create_missing
from tests.bus_helpers import DAY, HOUR, MINUTE, SECOND, bodies, get, msg, run

SHIPPED = """\ufeff{
  "UserConfig": {
    "Namespaces": [
      {
        "Name": "sbemulatorns",
        "Queues": [
          {
            "Name": "queue.1",
            "Properties": {
              "DeadLetteringOnMessageExpiration": false,
              "DefaultMessageTimeToLive": "PT1H",
              "DuplicateDetectionHistoryTimeWindow": "PT20S",
              "ForwardDeadLetteredMessagesTo": "",
              "ForwardTo": "",
              "LockDuration": "PT1M",
              "MaxDeliveryCount": 3,
              "RequiresDuplicateDetection": false,
              "RequiresSession": false
            }
          }
        ],

        "Topics": [
          {
            "Name": "topic.1",
            "Properties": {
              "DefaultMessageTimeToLive": "PT1H",
              "DuplicateDetectionHistoryTimeWindow": "PT20S",
              "RequiresDuplicateDetection": false
            },
            "Subscriptions": [
              {
                "Name": "subscription.1",
                "Properties": { "LockDuration": "PT1M", "MaxDeliveryCount": 3, "ForwardTo": "" },
                "Rules": [
                  {
                    "Name": "app-prop-filter-1",
                    "Properties": {
                      "FilterType": "Correlation",
                      "CorrelationFilter": {
                        "ContentType": "application/json"
                        // Other supported properties
                        // "CorrelationId": "id1",
                        // "To": "xyz"
                      }
                    }
                  }
                ]
              },
              {
                "Name": "subscription.2",
                "Rules": [
                  {
                    "Name": "user-prop-filter-1",
                    "Properties": {
                      "FilterType": "Correlation",
                      "CorrelationFilter": { "Properties": { "prop1": "value1" } }
                    }
                  }
                ]
              },
              { "Name": "subscription.3" },
              {
                "Name": "subscription.4",
                "Rules": [
                  {
                    "Name": "sql-filter-1",
                    "Properties": {
                      "FilterType": "Sql",
                      "SqlFilter": {
                        "SqlExpression": "sys.MessageId = '123456' AND userProp1 = 'value1'"
                      },
                      "Action" : { "SqlExpression": "SET sys.To = 'Entity'" }
                    }
                  },
                ]
              }, /* a comma, and this, at the end of a list */
            ]
          }
        ]
      }
    ],
    "Logging": { "Type": "File" }
  }
}
"""


def config(directory: Path, namespace: Any) -> str:
    path = directory / "Config.json"
    path.write_text(json.dumps({"UserConfig": {"Namespaces": [namespace]}}), "utf-8")
    return str(path)


def queue(directory: Path, **properties: Any) -> dict[str, Any]:
    """Return the settings of a queue with these properties."""
    file = config(directory, {"Queues": [{"Name": "q", "Properties": properties}]})
    return load(file).entities[0].given


@pytest.mark.promise("X11")
@run
async def test_the_file_that_the_emulator_ships(tmp_path: Path) -> None:
    path = tmp_path / "Config.json"
    path.write_text(SHIPPED, "utf-8")
    async with Bus.ephemeral() as bus:
        made = await create_missing(bus, load(str(path)).entities)
        assert made == ["queue.1", "topic.1"] + [
            f"topic.1/subscriptions/subscription.{number}" for number in (1, 2, 3, 4)
        ]
        settings = bus.queue("queue.1").settings
        assert (settings.default_time_to_live_ms, settings.max_delivery_count) == (HOUR, 3)
        assert settings.forward_to is None
        rules = [list(bus.subscription(name).rules) for name in made[2:]]
        assert rules == [
            [Rule("app-prop-filter-1", CorrelationFilter(content_type="application/json"))],
            [Rule("user-prop-filter-1", CorrelationFilter(properties={"prop1": "value1"}))],
            [Rule("$Default", TrueFilter())],
            [
                Rule(
                    "sql-filter-1",
                    SqlFilter("sys.MessageId = '123456' AND userProp1 = 'value1'"),
                    SqlAction("SET sys.To = 'Entity'"),
                )
            ],
        ]
        await bus.send("topic.1", msg("x", message_id="123456", properties={"userProp1": "value1"}))
        assert bodies(await get(bus, made[4])) == ["x"]
        (changed,) = await get(bus, made[5])
        assert changed.message.to == "Entity"


@pytest.mark.promise("X11")
def test_what_service_bus_and_we_have_besides(tmp_path: Path) -> None:
    given = queue(
        tmp_path,
        EnablePartitioning=True,
        PartitionCount=16,
        EnableBatchedOperations=True,
        MaxSizeInMegabytes=2,
        MaxMessageSizeInKilobytes=3,
        AutoDeleteOnIdle="P10675199DT2H48M5.4775807S",
        Status="SendDisabled",
        UserMetadata="mine",
        requiresDUPLICATEdetection=True,
        DuplicateDetectionHistoryTimeWindow="P1D",
        retention_ms=5 * MINUTE,
    )
    assert given == {
        "enable_partitioning": True,
        "max_size_bytes": 2 << 20,
        "max_message_bytes": 3 << 10,
        "auto_delete_on_idle_ms": None,
        "status": "send-disabled",
        "user_metadata": "mine",
        "requires_duplicate_detection": True,
        "duplicate_detection_window_ms": DAY,
        "retention_ms": 5 * MINUTE,
    }


def test_a_window_that_only_the_emulator_takes_becomes_the_shortest(tmp_path: Path) -> None:
    given = queue(tmp_path, DuplicateDetectionHistoryTimeWindow="PT5S")
    assert given == {"duplicate_detection_window_ms": 20 * SECOND}


def test_the_one_place_where_comments_are_none(tmp_path: Path) -> None:
    path = tmp_path / "any-name"
    path.write_text(
        '// a comment first\n{"userconfig": {"namespaces": [{"queues": [{"name": "a", "properties":'
        ' {"UserMetadata": "http://x /* no */ ,} \\" // no"}}]}]}}',
        "utf-8",
    )
    (one,) = load(str(path)).entities
    assert one.given == {"user_metadata": 'http://x /* no */ ,} " // no'}


@run
async def test_entities_may_be_named_before_what_they_forward_to(tmp_path: Path) -> None:
    namespace = {
        "Queues": [
            {"Name": "first", "Properties": {"ForwardTo": "Middle"}},
            {"Name": "last"},
        ],
        "Topics": [
            {
                "Name": "middle",
                "Subscriptions": [{"Name": "s", "Properties": {"ForwardTo": "last"}}],
            }
        ],
    }
    async with Bus.ephemeral() as bus:
        made = await create_missing(bus, load(config(tmp_path, namespace)).entities)
        assert sorted(made) == ["first", "last", "middle", "middle/subscriptions/s"]
        await bus.send("first", msg("x"))
        assert bodies(await bus.receiver("last").receive(wait_ms=5_000)) == ["x"]


@run
async def test_forwarding_in_a_circle_is_refused(tmp_path: Path) -> None:
    namespace = {
        "Queues": [
            {"Name": "a", "Properties": {"ForwardTo": "b"}},
            {"Name": "b", "Properties": {"ForwardTo": "a"}},
        ]
    }
    async with Bus.ephemeral() as bus:
        with pytest.raises(InvalidArgument, match=r"Queues\[0\]: no entity 'b'"):
            await create_missing(bus, load(config(tmp_path, namespace)).entities)


@run
async def test_what_is_there_is_left_as_it_is(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with Bus.ephemeral() as bus:
        await bus.create_queue("q", max_delivery_count=7)
        namespace = {"Queues": [{"Name": "q", "Properties": {"MaxDeliveryCount": 3}}]}
        with caplog.at_level(logging.WARNING):
            assert await create_missing(bus, load(config(tmp_path, namespace)).entities) == []
        assert (
            "Queues[0]: entity exists and stays unchanged: max_delivery_count is 7, not 3"
            in caplog.text
        )
        assert bus.queue("q").settings.max_delivery_count == 7
        with pytest.raises(EntityExists, match=r"Topics\[0\]: q exists already"):
            await create_missing(bus, load(config(tmp_path, {"Topics": [{"Name": "Q"}]})).entities)


def test_what_means_nothing_is_left_aside_and_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert queue(tmp_path, RequiresSesion=True) == {}
    assert "Properties.RequiresSesion ignored: it has no effect here" in caplog.text
    assert "did you mean RequiresSession?" in caplog.text


@pytest.mark.parametrize(
    ("namespace", "told"),
    [
        (3, "UserConfig.Namespaces[0]: write a table"),
        ({"Queues": 3}, "Namespaces[0].Queues: write a list"),
        ({"Queues": [{}]}, "Queues[0]: Name: write a string"),
        ({"Queues": [{"Name": "-"}]}, "Queues[0]: invalid entity name '-'"),
        ({"Queues": [{"Name": "a"}, {"Name": "A"}]}, "Queues[1]: a is already in"),
        (
            {"Queues": [{"Name": "a", "Properties": {"LockDuration": "1 minute"}}]},
            "Queues[0].Properties.LockDuration: '1 minute' is not a duration: write PT30S",
        ),
        (
            {"Queues": [{"Name": "a", "Properties": {"LockDuration": 60}}]},
            "Queues[0].Properties.LockDuration: ",
        ),
        (
            {"Queues": [{"Name": "a", "Properties": {"MaxSizeInMegabytes": "1"}}]},
            "Queues[0].Properties.MaxSizeInMegabytes: ",
        ),
        (
            {"Queues": [{"Name": "a", "Properties": {"MaxDeliveryCount": 0}}]},
            "Queues[0]: max_delivery_count is 0",
        ),
        (
            {"Queues": [{"Name": "a", "Properties": {"RequiresSession": "yes"}}]},
            "Queues[0]: settings: Expected `bool`",
        ),
    ],
)
def test_mistakes(tmp_path: Path, namespace: Any, told: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        load(config(tmp_path, namespace))
    assert told in str(refused.value)
    assert str(refused.value).startswith(str(tmp_path))


@pytest.mark.parametrize(
    ("rule", "told"),
    [
        ({}, "Rules[0]: Name: write a string"),
        ({"Name": "r", "Properties": {"FilterType": "Magic"}}, "FilterType: write Correlation"),
        ({"Name": "r", "Properties": {"FilterType": "Sql"}}, "SqlFilter: write a table"),
        (
            {"Name": "r", "Properties": {"FilterType": "Sql", "SqlFilter": {"SqlExpression": ""}}},
            "SqlFilter: SqlExpression: write a string",
        ),
        (
            {"Name": "r", "Properties": {"FilterType": "Sql", "SqlFilter": {"SqlExpression": "="}}},
            "Rules[0]: ",
        ),
        (
            {
                "Name": "r",
                "Properties": {"FilterType": "Correlation", "CorrelationFilter": {"Lable": "x"}},
            },
            "CorrelationFilter: unknown name 'Lable': did you mean Label?",
        ),
        (
            {
                "Name": "r",
                "Properties": {"FilterType": "Correlation", "CorrelationFilter": {"Label": ""}},
            },
            "Rules[0]: a correlation filter must name at least one property",
        ),
        ({"Name": "r", "Properties": {"Action": {"SqlExpression": "DROP"}}}, "Rules[0]: "),
    ],
)
def test_mistakes_in_rules(tmp_path: Path, rule: Any, told: str) -> None:
    namespace = {"Topics": [{"Name": "t", "Subscriptions": [{"Name": "s", "Rules": [rule]}]}]}
    with pytest.raises(InvalidArgument) as refused:
        load(config(tmp_path, namespace))
    assert told in str(refused.value)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{", "not JSON, even with comments allowed"),
        ('{\n// one\n/* two\nthree */ "a": x}', "line 4"),
        ("{}", "UserConfig: write a table"),
        ('{"UserConfig": {}}', "exactly one namespace"),
        ('{"UserConfig": {"Namespaces": [{}, {}]}}', "exactly one namespace"),
    ],
)
def test_what_is_no_such_file(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "Config.json"
    path.write_text(text, "utf-8")
    with pytest.raises(InvalidArgument) as refused:
        load(str(path))
    assert told in str(refused.value)
