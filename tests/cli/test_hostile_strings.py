"""Strings that strangers chose are shown, never obeyed: by a terminal, a log or a page."""

from __future__ import annotations

import ast
import io
import json
import logging
import os
import pty
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onibus import Message
from onibus.cli.safe_console import SafeConsole
from onibus.client import Client
from onibus.core.rules.rule import Rule, SqlFilter
from onibus.operation import logs
from onibus.operation.visible import visible, visible_json
from onibus.spark.jobs import plots
from tests.cli.conftest import Onibus
from tests.client.server_helpers import ServerThread
from tests.source_tree import ROOT, python_files, tree_of

#: Clears the screen, retitles the window, moves up, rings; C1; turns text around; begins a line.
EVIL = "\x1b[2J\x1b]0;gone\x07\x1b[1A\x9b31m\u202eevil\u2066\r\n2026-01-01 forged\x00\x7f\u2028$x^{"
HIDDEN = re.compile(
    "[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
#: What our own tables send to a terminal: colours, and the ends of lines.
OURS = re.compile("\x1b\\[[0-9;]*m|\r\n")


@pytest.fixture
def evil(server: ServerThread) -> Iterator[Client]:
    """A client of a server in which everything that can be chosen is hostile."""
    with Client.connect(server.connection_string) as client:
        client.create_queue("q", requires_duplicate_detection=True, user_metadata=EVIL)
        client.create_queue("s", requires_session=True)
        client.create_topic("t")
        rule = Rule(name="r", filter=SqlFilter("a = '" + EVIL[:40] + "'"))
        client.create_subscription("t", "u", rules=[rule])
        properties: dict[str, Any] = {EVIL: EVIL}
        for number in range(4):
            one = Message(
                body=EVIL.encode(),
                message_id=f"{number}{EVIL}",
                subject=EVIL,
                properties=properties,
            )
            client.send("q", one)
        client.send("q", one)
        with client.receiver("q") as receiver:
            [first, second] = receiver.receive(2)
            receiver.dead_letter(first, reason=EVIL, description=EVIL)
            receiver.defer(second)
        client.send("s", Message(body=b"x", session_id=EVIL))
        client.schedule("q", Message(body=EVIL.encode(), message_id=EVIL), 4_000_000_000_000)
        client.create_reader("q", f"reader{EVIL}")
        client.claim("q", f"reader{EVIL}", 1)
        whose: Any = {"producer": f"producer{EVIL}", "batch": 0}
        client.stage("q", [Message(body=b"x", message_id="x")], task=0, attempt=0, **whose)
        client.publish("q", attempts=[(0, 0)], checkpoint=EVIL, **whose)
        yield client


#: Commands, and what each must show of what is hostile.
COMMANDS = {
    "peek q": r"3\x1b[2J",
    "peek q --dead-letters": r"0\x1b[2J",
    "dead-letters list q": r"\x1b]0;gone\x07",
    "deferred list q": r"1\x1b[2J",
    "scheduled list q": r"\x1b[2J",
    "sessions s": r"\x1b[2J",
    "duplicates q": r"3\x1b[2J",
    "readers list q": r"reader\x1b[2J",
    "claims list q": r"reader\x1b[2J",
    "producers list q": r"producer\x1b[2J",
    "queue show q": r"\x1b[2J",
    "queue list": "q",
    "rule list t u": r"\x1b[2J",
    "receive q --then leave": r"3\x1b[2J",
    "dead-letters resubmit q --all": "resubmitted",
    "top --looks 1": "q",
}


def test_no_command_sends_control_characters_to_a_terminal(onibus: Onibus, evil: Client) -> None:
    for words, expected in COMMANDS.items():
        result = onibus.run(*words.split())
        assert expected in result.stdout, words
        for shown in (result.stdout, result.stderr):
            assert not HIDDEN.search(shown), (words, shown)
        assert "\n2026-01-01 forged" not in result.stdout, words


def test_json_has_the_values_and_no_control_characters(onibus: Onibus, evil: Client) -> None:
    for words in COMMANDS:
        if words.startswith("dead-letters resubmit"):
            continue
        shown = onibus.shown(*words.split(), "--json")
        assert not HIDDEN.search(shown), words
        told = [json.loads(line) for line in shown.split("\n")[:-1]]
        assert told, words
        if words == "dead-letters list q":
            assert told[0]["dead_letter_reason"] == told[0]["dead_letter_description"] == EVIL


def test_errors_have_no_control_characters(onibus: Onibus, evil: Client) -> None:
    for words in (("peek", EVIL), ("peek", "q", "--sql", EVIL), ("queue", "create", EVIL)):
        told = onibus.run(*words, code=1)
        assert told.stderr, words
        assert not HIDDEN.search(told.stderr), told.stderr
        told = onibus.run(*words, "--json", code=1)
        assert not HIDDEN.search(told.stderr), told.stderr
        json.loads(told.stderr)


def test_nor_on_a_real_terminal(server: ServerThread, evil: Client) -> None:
    """With colours, as on a screen."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "onibus", "dead-letters", "list", "q"]
    environment = {"ONIBUS_CONNECTION": server.connection_string, "TERM": "xterm-256color"}
    with subprocess.Popen(
        command, cwd=ROOT, stdout=theirs, stderr=theirs, env=os.environ | environment
    ) as process:
        os.close(theirs)
        found = b""
        while True:
            try:
                some = os.read(ours, 65_536)
            except OSError:  # the end, on Linux
                break
            if not some:
                break
            found += some
    os.close(ours)
    shown = found.decode()
    assert process.returncode == 0, shown
    assert "\x1b[1m" in shown, "there are no colours: it took this for a file"
    assert r"\x1b" in shown
    assert not HIDDEN.search(OURS.sub("", shown)), shown


@given(st.text())
def test_any_text_becomes_visible(text: str) -> None:
    assert not HIDDEN.search(visible(text))
    assert "\n" not in visible(text)
    if text.isprintable():
        assert visible(text) == text
    document = json.dumps([text], ensure_ascii=False).encode("utf-8", "replace").decode()
    assert json.loads(visible_json(document)) == json.loads(document)
    assert not HIDDEN.search(visible_json(document))


def test_a_console_keeps_its_own_styles_and_lines() -> None:
    stream = io.StringIO()
    console = SafeConsole(file=stream, force_terminal=True, color_system="standard")
    console.print("[bold]a[/bold]\nb")
    assert stream.getvalue() == "\x1b[1ma\x1b[0m\nb\n"
    console.print(EVIL, markup=False)
    console.print(EVIL, markup=False, soft_wrap=True)
    assert not HIDDEN.search(OURS.sub("", stream.getvalue()))


def test_a_log_has_one_line_an_event() -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    logger = logging.Logger("onibus.test")
    logger.addHandler(handler)
    for form in (logs.Lines(), logs.JsonLines()):
        handler.setFormatter(form)
        stream.seek(0)
        stream.truncate()
        try:
            raise ValueError(EVIL)
        except ValueError as error:
            logger.exception("failed: %s", error, extra={"path": EVIL})
        logger.warning("%s", EVIL)
        lines = stream.getvalue().split("\n")[:-1]
        assert not any(HIDDEN.search(line) for line in lines)
        # A traceback is indented.
        assert len([line for line in lines if not line.startswith("  ")]) == 2
        assert not any(line.startswith("2026-01-01 forged") for line in lines)


NAMES = [
    EVIL,
    "$",
    "$$",
    "$x_{",
    "\\frac",
    "a\x1bb",
    "\x00",
    "\ud800",
    "<b>&\"'",
    "名前",
    "x" * 5_000,
]


def test_plots_draw_any_name() -> None:
    drawn = plots.bars(NAMES, range(1, len(NAMES) + 1), "messages")
    texts = [one.text or "" for one in ElementTree.fromstring(drawn).iter() if "text" in one.tag]
    for shown in ("$$", "$x_{", "\\frac", r"a\x1bb", r"\ud800", "<b>&\"'", "名前"):
        assert shown in texts
    assert max(map(len, texts)) <= 40
    assert not HIDDEN.search(drawn.replace("\n", ""))


def test_only_two_files_write_to_a_terminal() -> None:
    """Everything else prints through them."""
    writes = {
        path
        for path in python_files("onibus/cli", "onibus/spark", "onibus/server")
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Call)
        and ast.unparse(node.func).rpartition(".")[2] in ("print", "echo", "secho", "Console")
        and ast.unparse(node.func) not in ("out.console.print", "out.told.print")
        and not ast.unparse(node.func).endswith(("console.print", "told.print"))
    }
    assert writes == {"onibus/cli/printing.py"}
