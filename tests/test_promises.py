"""Every promise of this version has a test, and the page that says so is true."""

from __future__ import annotations

import pytest

from tools import promises

PROMISES = promises.read_promises(promises.SEMANTICS.read_text("utf-8"))

MARKED = """
import pytest
pytestmark = pytest.mark.promise("D1")

@pytest.mark.promise("D2", "D3")
def test_function(): ...

@pytest.mark.promise("D4")
class TestClass:
    @pytest.mark.parametrize("n", [pytest.param(1, marks=pytest.mark.promise("D5"))])
    async def test_method(self, n): ...

    def helper(self): ...

@pytest.mark.skip(reason="broken")
@pytest.mark.promise("D6")
def test_that_is_off(): ...
"""


def test_every_required_promise_has_a_test() -> None:
    carried = promises.scan_tests()
    missing = [promise for promise in promises.REQUIRED if promise not in carried]
    assert not missing, f"promises without a test: {', '.join(missing)}"


def test_required_promises_exist() -> None:
    assert set(promises.REQUIRED) <= PROMISES.keys()
    assert len(set(promises.REQUIRED)) == len(promises.REQUIRED)


def test_page_is_up_to_date() -> None:
    page = promises.render(PROMISES, promises.scan_tests())
    assert promises.PAGE.read_text("utf-8") == page, "docs/promises.md is stale: make promises"


def test_markers_name_known_promises() -> None:
    unknown = promises.unknown_ids(PROMISES, promises.scan_tests())
    assert not unknown, "\n".join(unknown)


def test_semantics_are_read_whole() -> None:
    counts = dict.fromkeys("DFPSLBRX", 0)
    for promise in PROMISES:
        counts[promise[0]] += 1
        assert promise[1:] == str(counts[promise[0]]), f"{promise} is out of order"
    assert counts == {"D": 11, "F": 10, "P": 13, "S": 8, "L": 5, "B": 11, "R": 9, "X": 12}


def test_a_promise_spans_lines_and_is_shown_by_its_first_sentence() -> None:
    read = promises.read_promises(
        "## A. First\n\n- A1 One\n  line. Two.\n\nOther text.\n- A2 Three."
    )
    assert read["A1"] == promises.Promise("A1", "A. First", "One line. Two.")
    assert read["A1"].summary == "One line."
    assert list(read) == ["A1", "A2"]


def test_scan_finds_markers_of_functions_classes_modules_and_parameters() -> None:
    function, method = "t.py::test_function", "t.py::TestClass::test_method"
    assert promises.scan_file(MARKED, "t.py") == {
        "D1": [function, method],
        "D2": [function],
        "D3": [function],
        "D4": [method],
        "D5": [method],
    }


@pytest.mark.parametrize(
    "source",
    [
        "@pytest.mark.promise('D1')\ndef helper(): ...",
        "CASES = [pytest.param(1, marks=pytest.mark.promise('D1'))]",
        "@pytest.mark.promise(NAME)\ndef test_it(): ...",
        "@pytest.mark.promise()\ndef test_it(): ...",
    ],
)
def test_scan_refuses_markers_it_would_lose(source: str) -> None:
    with pytest.raises(promises.BadMarker):
        promises.scan_file(source, "t.py")


def test_unknown_ids_are_named_with_their_test() -> None:
    assert promises.unknown_ids(["D1"], {"D1": ["a"], "Z9": ["b"]}) == ["Z9: b"]
