"""Configuration: file, environment, flags; and every mistake that can be made in it."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from onibus import CorrelationFilter, FalseFilter, Rule, SqlAction, SqlFilter, TrueFilter
from onibus.cli import exits
from onibus.core.errors import InvalidArgument
from onibus.protocols.atom.durations import milliseconds
from onibus.protocols.http.limits import Limits
from onibus.security.rights import Right
from onibus.server.config import OPTIONS, Options, load
from onibus.server.exposure import amqps_port
from tests.bus_helpers import DAY, HOUR, MINUTE, SECOND
from tests.source_tree import ROOT

KEY = "a-key-of-sufficient-length"


def written(directory: Path, text: str, name: str = "onibus.toml") -> str:
    path = directory / name
    path.write_text(text, "utf-8")
    return str(path)


def refusal(directory: Path, text: str = "", **how: Any) -> str:
    """Return why a configuration is refused."""
    with pytest.raises(InvalidArgument) as refused:
        load(written(directory, text), **how)
    return str(refused.value)


# What wins


def test_without_anything_there_are_defaults() -> None:
    options = load().options
    assert (options.http_port, options.amqp_port, options.sqs_port) == (5300, 5672, 9324)
    assert (options.host, options.data, options.insecure) == ("127.0.0.1", "data", False)


def test_flags_win_over_variables_and_these_over_the_file(tmp_path: Path) -> None:
    file = written(tmp_path, 'http_port = 1\nhost = "::1"\namqp_port = 2\nlog_format = "json"')
    variables = {"ONIBUS_HTTP_PORT": "3", "ONIBUS_HOST": "localhost", "ONIBUS_LOG_FORMAT": ""}
    options = load(file, variables, {"http_port": 4, "host": None}).options
    assert (options.http_port, options.host, options.amqp_port) == (4, "localhost", 2)
    assert options.log_format == "json", "an empty variable sets nothing"


def test_the_file_may_be_named_by_a_variable(tmp_path: Path) -> None:
    file = written(tmp_path, "http_port = 7")
    assert load(None, {"ONIBUS_CONFIG": file}).options.http_port == 7
    other = written(tmp_path, "http_port = 8", "other.toml")
    assert load(other, {"ONIBUS_CONFIG": file}).options.http_port == 8


@pytest.mark.parametrize(("text", "value"), [("true", True), ("1", True), ("false", False)])
def test_variables_say_yes_and_no(text: str, value: bool) -> None:
    assert load(None, {"ONIBUS_INSECURE": text}).options.insecure is value
    assert load(None, {"ONIBUS_DEVELOPMENT": text}).options.development is value


@pytest.mark.parametrize(
    ("flags", "port"),
    [
        ({}, None),
        ({"tls": True}, 5671),
        ({"tls": True, "amqp_port": 0}, None),
        ({"tls": True, "amqp_port": 0, "amqps_port": 1}, 1),
        ({"amqps_port": 1}, None),
    ],
)
def test_a_port_for_tls_alone_is_there_with_tls(flags: dict[str, Any], port: int | None) -> None:
    assert amqps_port(load(None, {}, flags)) == port


def test_variables_of_clients_are_left_alone() -> None:
    assert load(None, {"ONIBUS_CONNECTION_STRING": "x", "ONIBUS_PROFILE": "y"}) == load()


def test_every_option_can_be_set_in_all_three_ways() -> None:
    import inspect

    from onibus.cli.serve import serve

    flags = set(inspect.signature(serve).parameters) - {"config", "as_json", "quiet"}
    assert flags == set(OPTIONS)


def test_paths_in_a_file_are_relative_to_it(tmp_path: Path) -> None:
    file = written(tmp_path, 'data = "here"\n[stores]\nmain = "first"\nother = "/elsewhere"')
    config = load(file)
    assert config.options.data == str(tmp_path / "here")
    assert config.stores == {"main": str(tmp_path / "first"), "other": "/elsewhere"}
    assert load(file, {}, {"data": "there"}).options.data == "there"


# What a file can say


def test_tables_of_a_file(tmp_path: Path) -> None:
    file = written(
        tmp_path,
        f"""
        reserve_bytes = 5
        [quotas]
        entities = 3
        [limits]
        connections_max = 12
        head_seconds = 2
        [lake]
        keep_ms = "P90D"
        [[keys]]
        name = "in"
        rights = ["Send"]
        entity = "Orders"
        primary = "{KEY}"
        [queues."queue.1"]
        lock_duration_ms = "PT30S"
        default_time_to_live_ms = "P1D"
        max_delivery_count = 3
        [topics.prices]
        requires_duplicate_detection = true
        [topics.prices.subscriptions.all]
        [topics.prices.subscriptions.some]
        requires_session = true
        [[topics.prices.subscriptions.some.rules]]
        name = "sql"
        sql = "amount > @least"
        parameters = {{ "@least" = 100 }}
        action = "SET priority = 1"
        [[topics.prices.subscriptions.some.rules]]
        name = "equal"
        correlation = {{ subject = "x", properties = {{ city = "Bern" }} }}
        [[topics.prices.subscriptions.some.rules]]
        name = "all"
        [[topics.prices.subscriptions.some.rules]]
        name = "none"
        everything = false
        """,
    )
    config = load(file)
    assert (config.quotas.entities, config.quotas.partitioned_entities) == (3, 100)
    assert (config.limits.connections_max, config.limits.head_seconds) == (12, 2.0)
    assert config.options.reserve_bytes == 5
    assert (config.lake.keep_ms, load().lake.keep_ms) == (90 * DAY, None)
    (key,) = config.keys
    assert (key.name, key.entity, key.rights) == ("in", "orders", {Right.SEND})
    queue, topic, everything, some = config.entities
    assert (queue.name, topic.name) == ("queue.1", "prices")
    assert queue.given == {
        "lock_duration_ms": 30 * SECOND,
        "default_time_to_live_ms": DAY,
        "max_delivery_count": 3,
    }
    assert topic.given == {"requires_duplicate_detection": True}
    assert (everything.name, everything.rules) == ("prices/subscriptions/all", None)
    assert some.rules == [
        Rule("sql", SqlFilter("amount > @least", {"@least": 100}), SqlAction("SET priority = 1")),
        Rule("equal", CorrelationFilter(subject="x", properties={"city": "Bern"})),
        Rule("all", TrueFilter()),
        Rule("none", FalseFilter()),
    ]


def test_the_example_can_be_read() -> None:
    names = [one.name for one in load(str(ROOT / "examples/onibus.toml")).entities]
    assert names[:2] == ["orders", "customers"]


def test_the_root_key_may_come_from_the_environment(tmp_path: Path) -> None:
    file = written(
        tmp_path,
        f'[[keys]]\nname = "RootManageSharedAccessKey"\nprimary = "{KEY}"\n'
        f'[[keys]]\nname = "other"\nprimary = "{KEY}"',
    )
    keys = load(file, {"ONIBUS_ROOT_KEY": KEY[::-1]}).keys
    assert [(key.name, key.primary) for key in keys] == [
        ("RootManageSharedAccessKey", KEY[::-1]),
        ("other", KEY),
    ]


# Mistakes: what is told says where, and what to do


MISTAKES = [
    ("http_prot = 1", "unknown name 'http_prot': did you mean http_port?"),
    ("zzz = 1", "use one of data, ephemeral"),
    ('http_port = "1"', "http_port: Expected `int`, got `str`"),
    ("insecure = 1", "insecure: Expected `bool`, got `int`"),
    ('log_format = "xml"', "log_format: Invalid enum value 'xml'"),
    ("http_port = 65536", "http_port is 65536: use a port from 0 to 65535"),
    ("http_port = 5672", "http_port and amqp_port are both 5672"),
    ("amqps_port = 9324", "amqps_port and sqs_port are both 9324"),
    ('host = ""', "host is empty"),
    ("allow_development_key = true", "allow_development_key is now called development"),
    ('development = "yes"', "development: Expected `bool | null`, got `str`"),
    ('allow_host = "bus"', "allow_host: Expected `array`, got `str`"),
    ('allow_host = ["http://bus"]', "allow_host 'http://bus' is not a host"),
    ('allow_host = ["bus:5300"]', "allow_host 'bus:5300' is not a host"),
    ('allow_host = ["bus", ""]', "allow_host '' is not a host"),
    ('data = ""', "data is empty"),
    ("reserve_bytes = -1", "reserve_bytes is below 0"),
    ('tls_key = "x"', "tls_certificate and tls_key belong together"),
    ("ephemeral = true\ntls = true", "cannot store a generated certificate"),
    ('ephemeral = true\n[stores]\nmain = "x"', "an ephemeral bus has no stores"),
    ("test_mode = true", "test_mode can empty the whole bus: it requires ephemeral"),
    ("x = ", "not TOML: Invalid value (at end of document)"),
    ("stores = 3", "stores: write a table, not a int"),
    ("[stores]\nmain = 3", "stores.main: name the store's directory"),
    ("[quotas]\nentites = 3", "quotas: unknown name 'entites': did you mean entities?"),
    ('[quotas]\nentities = "3"', "quotas: entities: Expected `int`, got `str`"),
    ("[quotas]\nentities = 0", "quotas.entities: write a number above 0"),
    ("[limits]\nhead_seconds = -1.5", "limits.head_seconds: write a number above 0"),
    ("lake = 3", "lake: write a table"),
    ("[lake]\nkeep = 3", "lake: unknown name 'keep': did you mean keep_ms?"),
    ('[lake]\nkeep_ms = "90d"', "lake.keep_ms: '90d' is no"),
    ('[lake]\nkeep_ms = "PT2H"', "lake.keep_ms is 7200000: use at least P1D, or 0"),
    ("queues = 3", "queues: write a table"),
    ("[queues]\norders = 3", "queues.orders: write a table"),
    ("[queues.orders]\nlock_duration = 3", "did you mean lock_duration_ms?"),
    ("[queues.orders]\nlock_duration_ms = 3", "queues.orders: lock_duration_ms is 3"),
    ('[queues.orders]\nlock_duration_ms = "1m"', "queues.orders.lock_duration_ms: '1m' is no"),
    ("[queues.orders]\nmax_delivery_count = true", "queues.orders: settings: Expected `int`"),
    ('[queues."-x"]', "queues.-x: invalid entity name '-x'"),
    ("[queues.a]\n[queues.A]", "queues.A: a is already in"),
    ("[topics.t]\nrequires_session = true", "topics.t: unknown setting"),
    ("[topics.t]\nsubscriptions = 1", "topics.t.subscriptions: write a table"),
    ('[topics.t.subscriptions."a/b"]', "invalid subscription name"),
    ("[topics.t.subscriptions.s]\nrules = 1", "subscriptions.s.rules: write"),
    ("[topics.t.subscriptions.s]\nrules = [1]", "rules[0]: write a table"),
    ("[topics.t.subscriptions.s]\nrules = [{}]", "rules[0]: a rule name has 1 to"),
    (
        '[topics.t.subscriptions.s]\nrules = [{name = "a", sqll = "1=1"}]',
        "rules[0]: unknown name 'sqll': did you mean sql?",
    ),
    (
        '[topics.t.subscriptions.s]\nrules = [{name = "a", sql = "1="}]',
        "topics.t.subscriptions.s.rules[0]: ",
    ),
    (
        '[topics.t.subscriptions.s]\nrules = [{name="a", sql="1=1", everything=true}]',
        "rules[0]: a rule takes only one of sql, everything",
    ),
    (
        '[topics.t.subscriptions.s]\nrules = [{name="a", correlation={subjct="x"}}]',
        "rules[0].correlation: unknown name 'subjct': did you mean subject?",
    ),
    (
        '[topics.t.subscriptions.s]\nrules = [{name="a", correlation={}}]',
        "a correlation filter must name at least one property",
    ),
    ("keys = 1", "keys: write [[keys]]"),
    ('[[keys]]\nname = "a"', "keys[0]: Object missing required field `primary`"),
    ('[[keys]]\nname = "a"\nprimary = ""', "keys[0]: the primary key of 'a' must have 16"),
    (f'[[keys]]\nname = "a/b"\nprimary = "{KEY}"', "keys[0]: invalid key name"),
    (f'[[keys]]\nname = "a"\nprimary = "{KEY}"\nrights = []', "has no rights"),
    (f'[[keys]]\nname = "a"\nprimary = "{KEY}"\nrights = ["Sned"]', "Invalid enum value"),
    (f'[[keys]]\nname = "a"\nprimary = "{KEY}"\nentity = "-"', "invalid entity name"),
    (f'[[keys]]\nname = "a"\nprimry = "{KEY}"', "did you mean primary?"),
    (f'[[keys]]\nname="a"\nprimary="{KEY}"\n[[keys]]\nname="a"\nprimary="{KEY}"', "already"),
]


@pytest.mark.parametrize(("text", "told"), MISTAKES)
def test_mistakes_in_a_file(tmp_path: Path, text: str, told: str) -> None:
    found = refusal(tmp_path, text)
    assert told in found
    assert KEY not in found


def test_what_cannot_be_read_at_all(tmp_path: Path) -> None:
    with pytest.raises(
        InvalidArgument, match="nowhere: No such file or directory: name an existing file"
    ):
        load(str(tmp_path / "nowhere"))
    (tmp_path / "latin.toml").write_bytes(b"# \xe9")
    with pytest.raises(InvalidArgument, match=r"latin\.toml: not UTF-8"):
        load(str(tmp_path / "latin.toml"))


@pytest.mark.parametrize(
    ("variables", "told"),
    [
        ({"ONIBUS_HTTP_PORT": "x"}, "ONIBUS_HTTP_PORT: Expected `int`"),
        ({"ONIBUS_TLS": "perhaps"}, "ONIBUS_TLS: Expected `bool`"),
        ({"ONIBUS_ALLOW_DEVELOPMENT_KEY": "0"}, "is now called ONIBUS_DEVELOPMENT"),
        ({"ONIBUS_HTTP_PROT": "1"}, "ONIBUS_HTTP_PROT: unknown variable: did you mean ONIBUS_"),
        ({"ONIBUS_ROOT_KEY": "short-secret"}, "ONIBUS_ROOT_KEY: the primary key of"),
        ({"ONIBUS_ROOT_KEY": "with ; in its midst"}, "and no ;"),
    ],
)
def test_mistakes_in_the_environment(variables: dict[str, str], told: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        load(None, variables)
    assert told in str(refused.value)
    assert "secret" not in str(refused.value)


def test_a_wrong_flag_is_named() -> None:
    with pytest.raises(InvalidArgument, match="--log-level: Invalid enum value 'loud'"):
        load(None, {}, {"log_level": "loud"})


def test_keys_are_in_no_text_of_a_configuration(tmp_path: Path) -> None:
    config = load(written(tmp_path, f'[[keys]]\nname = "a"\nprimary = "{KEY}"'))
    assert KEY not in repr(config)
    assert KEY not in str(config.keys)


# Durations


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("PT1M", MINUTE),
        ("P1DT2H3M4.5S", DAY + 2 * HOUR + 3 * MINUTE + 4_500),
        ("P1Y1M1W", (365 + 30 + 7) * DAY),
        ("PT0S", 0),
        ("P10675199DT2H48M5.4775807S", None),
        ("P10675199DT2H48M5.477539S", None),
    ],
)
def test_durations(text: str, ms: int | None) -> None:
    assert milliseconds(text) == ms


@pytest.mark.parametrize("text", ["", "P", "PT", "P1", "1M", "PT-1S", "PT1.S", "P1DT", "PT1m", "٣"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(InvalidArgument, match="is not a duration"):
        milliseconds(text)
    with pytest.raises(InvalidArgument, match="is not a duration"):
        milliseconds("P" + "9" * 10_000 + "D")


# Documentation


def test_every_option_is_documented_with_its_default() -> None:
    page = (ROOT / "docs/server.md").read_text("utf-8")
    for name, default in zip(OPTIONS, Options.__struct_defaults__, strict=True):
        quoted = f'"{default}"' if isinstance(default, str) else repr(default)
        assert f"\n| `{name}` | `{quoted}` | " in page, name


def test_every_limit_is_documented_with_its_default() -> None:
    page = (ROOT / "docs/server.md").read_text("utf-8")
    for field in fields(Limits):
        assert f"\n| `{field.name}` | `{field.default}` | " in page, field.name


def test_the_file_in_the_documentation_can_be_read(tmp_path: Path) -> None:
    page = (ROOT / "docs/server.md").read_text("utf-8")
    sample = page.split("```toml\n")[1].split("```")[0]
    config = load(written(tmp_path, sample))
    assert [one.name for one in config.entities][-1] == "prices/subscriptions/large"


def test_every_exit_code_is_documented() -> None:
    page = (ROOT / "docs/command-line.md").read_text("utf-8")
    codes = {value for name, value in vars(exits).items() if name.isupper()}
    assert codes == set(range(8))
    assert all(f"\n| {code} | " in page for code in codes)
