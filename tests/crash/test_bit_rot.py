"""One flipped bit, or a file cut short, anywhere in a store's files: noticed, or without effect.

Noticed means `Damaged` or `StoreFailed` at opening, scanning or reading. Never may an answer differ
silently, and noticing changes nothing that a repair might need.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from onibus import Bus, Message
from onibus.core.errors import Damaged, OnibusError
from onibus.core.records import BLOCKS, Row, Table
from onibus.store.conformance import batch
from onibus.store.interface import Store
from onibus.store.sqlite import SqliteStore
from tests.simulator.crashes import TABLES, contents, draw_batch

SHARDS = 4
DAMAGES_A_SHARD = 60
#: The number of the last commit.
LAST = 40
FILES = ("store", "store-wal")
KILLED, CLOSED = "killed", "closed"

Contents = dict[Table, list[Row]]


def write_stores(directory: Path) -> Contents:
    """Leave a store as a kill leaves it (rows in both files), and closed (all in the main one)."""
    rng = random.Random(1)
    store = SqliteStore(directory / "store", "one", log_bytes_max=0)
    for number in range(1, LAST + 1):
        store.commit(draw_batch(rng, number))
        if number == LAST // 2:
            # Rows that stay, so that most of the main file is in use.
            payload = rng.randbytes(20_000)
            rows = ((BLOCKS, (-i, payload)) for i in range(20))
            store.commit(batch(*rows))
            store.maintain()
    expected = contents(store)
    save(directory, KILLED)
    store.close()
    save(directory, CLOSED)
    return expected


def save(directory: Path, state: str) -> None:
    (directory / state).mkdir()
    for name in (*FILES, "store.witness"):
        if (directory / name).exists():
            shutil.copy(directory / name, directory / state / name)


def by_key(store: Store, expected: Contents) -> Contents:
    """Read every row that is expected, one by one."""
    return {
        table: [row for key in keys if (row := store.read(table, key)) is not None]
        for table in TABLES
        for keys in [[row[: table.key] for row in expected[table]]]
    }


def files(path: Path) -> dict[str, bytes]:
    return {
        name: (path.parent / name).read_bytes() for name in FILES if (path.parent / name).exists()
    }


def noticed(path: Path, expected: Contents) -> bool:
    """Return whether the store says that it is damaged; if not, all it says must be right."""
    before = files(path)
    try:
        store = SqliteStore(path, "one")
    except OnibusError:
        assert files(path).items() >= before.items(), "noticing has changed a file"
        return True
    said = False
    for ask in (contents, lambda store: by_key(store, expected)):
        try:
            assert ask(store) == expected, "an answer differs and nobody noticed"
        except OnibusError:
            said = True
    assert files(path).items() >= before.items(), "reading has changed a file"
    # Not closed in order: that would move the log, as is right for a store in use.
    store._unusable = "the test is over"
    store.close()
    return said


def flip_bit(path: Path, rng: random.Random) -> str:
    content = bytearray(path.read_bytes())
    # Half of the flips in the first page, where the file says what it is.
    bit = rng.randrange(min(len(content), rng.choice((200, len(content)))) * 8)
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)
    return f"flipped bit {bit} of {path.name}"


def cut(path: Path, rng: random.Random) -> str:
    length = rng.randrange(path.stat().st_size)
    os.truncate(path, length)
    return f"cut {path.name} to {length} bytes"


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Contents]:
    directory = tmp_path_factory.mktemp("pristine")
    return directory, write_stores(directory)


def copy(source: Path, target: Path) -> Path:
    shutil.rmtree(target)
    shutil.copytree(source, target)
    return target / "store"


@pytest.mark.parametrize(
    ("state", "file"), [(KILLED, "store"), (KILLED, "store-wal"), (CLOSED, "store")]
)
@pytest.mark.parametrize("damage", [flip_bit, cut])
@pytest.mark.parametrize("shard", range(SHARDS))
def test_damage_is_noticed_or_harmless(
    shard: int,
    damage: Callable[[Path, random.Random], str],
    state: str,
    file: str,
    pristine: tuple[Path, Contents],
    tmp_path: Path,
) -> None:
    source, expected = pristine
    seen = 0
    for seed in range(shard * DAMAGES_A_SHARD, (shard + 1) * DAMAGES_A_SHARD):
        path = copy(source / state, tmp_path)
        what = damage(tmp_path / file, random.Random(seed))
        try:
            seen += noticed(path, expected)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {what}: {error}") from error
    # What nobody noticed lies in free pages, or in pages that the log has newer.
    assert seen > DAMAGES_A_SHARD // (2 if state == CLOSED else 5)


@pytest.mark.parametrize("state", [KILLED, CLOSED])
def test_undamaged_files_are_served(
    state: str, pristine: tuple[Path, Contents], tmp_path: Path
) -> None:
    source, expected = pristine
    assert not noticed(copy(source / state, tmp_path), expected)


def test_log_that_is_gone_is_noticed(pristine: tuple[Path, Contents], tmp_path: Path) -> None:
    path = copy(pristine[0] / KILLED, tmp_path)
    (tmp_path / "store-wal").unlink()
    with pytest.raises(Damaged, match="its last commits are lost"):
        SqliteStore(path, "one")


def test_main_file_that_is_gone_is_noticed(pristine: tuple[Path, Contents], tmp_path: Path) -> None:
    path = copy(pristine[0] / KILLED, tmp_path)
    log = (tmp_path / "store-wal").read_bytes()
    path.unlink()
    with pytest.raises(Damaged, match="its end is missing"):
        SqliteStore(path, "one")
    assert (tmp_path / "store-wal").read_bytes() == log


def test_control_without_its_witness_a_flipped_log_loses_rows(
    pristine: tuple[Path, Contents], tmp_path: Path
) -> None:
    """Why there is a witness: SQLite takes the flipped bit for the end of its log."""
    source, expected = pristine
    path = copy(source / KILLED, tmp_path)
    log = tmp_path / "store-wal"
    content = bytearray(log.read_bytes())
    content[len(content) // 2] ^= 1
    log.write_bytes(content)
    with pytest.raises(Damaged, match="its last commits are lost"):
        SqliteStore(path, "one")
    (tmp_path / "store.witness").unlink()
    store = SqliteStore(path, "one")
    assert contents(store) != expected
    store.close()


@pytest.mark.promise("B8")
@pytest.mark.parametrize("bulk", [True, False], ids=["arrow", "rows"])
@pytest.mark.parametrize("part", [0.0, 0.01, 0.05, 0.5, 0.99, 1.0])
def test_a_flipped_bit_in_the_file_of_a_block_is_never_served(
    tmp_path: Path, part: float, bulk: bool
) -> None:
    body = bytes(range(256)) * 4

    async def send() -> None:
        async with Bus.open(tmp_path, reserve_bytes=0) as bus:
            await bus.create_queue("q")
            if bulk:
                await bus.send_arrow("q", pa.record_batch({"body": [body] * 1_000}))
            else:
                await bus.send_batch("q", [Message(body=body)] * 1_000)

    async def receive() -> list[bytes]:
        async with Bus.open(tmp_path, reserve_bytes=0) as bus:
            found = []
            receiver = bus.receiver("q", delete=True)
            with contextlib.suppress(OnibusError):
                for _ in range(1_000):
                    found += [message.body for message in await receiver.receive(1)]
            assert bus.alarms
            return found

    asyncio.run(send())
    (file,) = tmp_path.glob("main.sqlite.blocks/*")
    content = bytearray(file.read_bytes())
    content[int(part * (len(content) - 1))] ^= 4
    file.write_bytes(content)
    assert set(asyncio.run(receive())) <= {body}
