"""Promise markers: an unknown id stops the run, and `--promise D1` runs the tests that carry D1.

Also what holds for every server that a test starts, and which tests share a process.
"""

from __future__ import annotations

import os
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.slow import is_slow
from tools.promises import SEMANTICS, read_promises

# Servers of several tests run at once: none of them takes the well-known ports.
os.environ.setdefault("ONIBUS_AMQP_PORT", "0")
os.environ.setdefault("ONIBUS_SQS_PORT", "0")

# Every run draws the same examples, and a busy machine fails none of them.
settings.register_profile(
    "repeatable", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("repeatable")

KNOWN = read_promises(SEMANTICS.read_text("utf-8")).keys()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--promise`."""
    parser.addoption(
        "--promise",
        action="append",
        default=[],
        metavar="ID",
        help="run only tests that carry this promise (may be given several times)",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Refuse to look for a promise nobody made."""
    unknown = set(config.getoption("promise")) - KNOWN
    if unknown:
        raise pytest.UsageError(f"no such promise: {', '.join(sorted(unknown))}")


# First, so that `-m "not slow"` sees the markers.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark slow tests, check the ids of all promise markers, keep the selected promises."""
    for item in items:
        if is_slow(item.nodeid):
            item.add_marker(pytest.mark.slow)
    asked = set(config.getoption("promise"))
    kept: list[pytest.Item] = []
    dropped: list[pytest.Item] = []
    for item in items:
        carried = {promise for mark in item.iter_markers("promise") for promise in mark.args}
        # A worker of a parallel run cannot say why it stops: there test_promises.py tells it.
        if not carried <= KNOWN and not hasattr(config, "workerinput"):
            unknown = ", ".join(sorted(carried - KNOWN))
            raise pytest.UsageError(f"{item.nodeid} carries unknown promises: {unknown}")
        (kept if not asked or asked & carried else dropped).append(item)
    if dropped:
        config.hook.pytest_deselected(items=dropped)
        items[:] = kept


#: Groups of tests, and where they are.
_TOGETHER = {"spark": "tests/spark/", "samples": "tests/amqp/test_samples.py"}


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Have tests that share something costly in one process of a parallel run.

    That is Spark, and the official samples, all of which run when the first is asked for. The
    marks that xdist has for this do nothing with the pytest that we use.
    """
    from xdist.scheduler import LoadScopeScheduling

    class Scheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            # The largest group is begun first; every other test is a group of its own.
            return next((name for name, path in _TOGETHER.items() if path in nodeid), nodeid)

    return Scheduling(config, log)
