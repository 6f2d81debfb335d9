"""The verdict of `make soak`: it fails if a server does not return to its figures at rest."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.crash.crowd import Seen
from tests.crash.soak import MORE, report
from tests.simulator.history import Anomaly

BEFORE = {"resident MB": 60.0, "open files": 40.0, "disk MB": 2.0}
SEEN = Seen(Counter(send=1_000), [])


def test_a_server_that_is_back_where_it_was_passes(capsys: pytest.CaptureFixture[str]) -> None:
    after = {name: figure + MORE[name] for name, figure in BEFORE.items()}
    assert report(BEFORE, after, SEEN, 30) == 0
    printed = capsys.readouterr().out
    assert printed.count("back") == len(MORE)
    assert "below 10 % per fault, below 0.3 % per acknowledged send" in printed


@pytest.mark.parametrize("name", MORE)
def test_a_server_that_has_grown_fails(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    after = {**BEFORE, name: BEFORE[name] + MORE[name] + 1}
    assert report(BEFORE, after, SEEN, 30) == 1
    (line,) = [one for one in capsys.readouterr().out.splitlines() if "grown" in one]
    assert line.startswith(name)


def test_an_anomaly_fails(capsys: pytest.CaptureFixture[str]) -> None:
    seen = Seen(Counter(send=1_000), [Anomaly("lost", "7 of orders")])
    assert report(BEFORE, BEFORE, seen, 30) == 1
    assert "lost: 7 of orders" in capsys.readouterr().err
