"""The table of defences (tests/reverted.py) fits the code and names existing tests."""

from __future__ import annotations

import re

import pytest

from tests.reverted import DEFENCES, Defence
from tests.source_tree import text_of

#: Items of the issue about strangers and wrong clocks.
ITEMS = range(1, 16)


@pytest.mark.parametrize("defence", DEFENCES, ids=lambda one: f"{one.item}-{one.against}")
def test_a_defence_is_in_the_code_and_has_a_test(defence: Defence) -> None:
    for file, code, _ in defence.changes:
        assert text_of(file).count(code) == 1
    path, _, name = defence.test.partition("::")
    assert re.search(rf"^(async )?def {name}\b" if name else r"^def test", text_of(path), re.M)


def test_every_item_has_a_defence() -> None:
    assert {defence.item for defence in DEFENCES} == set(ITEMS)
