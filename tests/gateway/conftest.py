"""Fixtures of the tests that use the bus as a program does."""

from __future__ import annotations

import pytest

from tests.bus_helpers import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    """A clock that stands still until the test moves it."""
    return ManualClock()
