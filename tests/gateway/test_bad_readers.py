"""Readers and moves that cannot be: each is refused with a reason, and changes nothing (R8)."""

from __future__ import annotations

from typing import Any

import pytest

from onibus import errors
from tests.bus_helpers import Disks, ManualClock, run, send
from tests.log_helpers import texts

BAD_READERS: list[tuple[dict[str, Any], type[errors.OnibusError], str]] = [
    ({"name": ""}, errors.InvalidArgument, "a reader's name"),
    ({"name": 7}, errors.InvalidArgument, "a reader's name"),
    ({"name": "x" * 129}, errors.InvalidArgument, "a reader's name"),
    ({"log": "letters"}, errors.InvalidArgument, "use messages or outcomes"),
    ({"start": "first"}, errors.InvalidArgument, "use earliest, latest"),
    ({"start": [1, 2]}, errors.InvalidArgument, "list of 1 positions"),
    ({"start": 1}, errors.InvalidArgument, "list of 1 positions"),
    ({"start": ["1"]}, errors.InvalidArgument, "not a sequence number"),
    ({"start": [9]}, errors.InvalidArgument, "the next one is 4"),
    ({"start": [9], "log": "outcomes"}, errors.InvalidArgument, "the next is 1"),
    ({"idle_ms": 0}, errors.InvalidArgument, "idle_ms"),
    ({"idle_ms": "1"}, errors.InvalidArgument, "idle_ms"),
    ({"name": "there"}, errors.EntityExists, "already"),
    ({"entity": "nothing"}, errors.EntityNotFound, "nothing"),
]


@pytest.mark.parametrize(("how", "kind", "words"), BAD_READERS)
@run
async def test_readers_that_cannot_be_made_are_refused(how: Any, kind: Any, words: str) -> None:
    async with Disks().bus(ManualClock()) as bus:
        await bus.create_queue("q")
        await send(bus, "q", "a", "b", "c")
        await bus.create_reader("q", "there")
        entity, name = how.pop("entity", "q"), how.pop("name", "r")
        with pytest.raises(kind, match=words):
            await bus.create_reader(entity, name, **how)
        assert [info.name for info in bus.readers("q")] == ["there"]


@pytest.mark.promise("R8")
@pytest.mark.parametrize(
    ("name", "positions", "kind", "words"),
    [
        ("unknown", [3], errors.EntityNotFound, "no reader 'unknown'"),
        (None, [3], errors.EntityNotFound, "no reader None"),
        ("r", [1], errors.InvalidArgument, "forward only: it is at 2"),
        ("r", [5], errors.InvalidArgument, "the next one is 4"),
        ("r", [], errors.InvalidArgument, "list of 1"),
        ("r", 3, errors.InvalidArgument, "list of 1"),
        ("r", ["3"], errors.InvalidArgument, "not a sequence number"),
        ("r", [True], errors.InvalidArgument, "not a sequence number"),
    ],
)
@run
async def test_moves_that_make_no_sense_are_refused(
    name: Any, positions: Any, kind: Any, words: str
) -> None:
    async with Disks().bus(ManualClock()) as bus:
        await bus.create_queue("q")
        await send(bus, "q", "a", "b", "c")
        info = await bus.create_reader("q", "r", start=[2])
        with pytest.raises(kind, match=words):
            await bus.move_reader("q", name, positions, info.incarnation)
        with pytest.raises(errors.EntityReplaced):
            await bus.move_reader("q", "r", [3], info.incarnation + 1)
        with pytest.raises(errors.InvalidArgument, match="incarnation"):
            await bus.move_reader("q", "r", [3], None)  # type: ignore[arg-type]
        with pytest.raises(errors.EntityNotFound):
            await texts(bus, "q", reader="unknown")
        with pytest.raises(errors.EntityNotFound):
            await bus.delete_reader("q", "unknown")
        assert bus.readers("q")[0].positions == (2,)
