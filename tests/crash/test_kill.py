"""`kill -9` of a process that commits: every commit it had reported is there, and in order."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from onibus.core.records import BLOCKS
from onibus.store.sqlite import SqliteStore

KILLS = 12

COMMIT_FOREVER = """
import sys
from onibus.core.records import BLOCKS, COUNTERS
from onibus.store.conformance import batch, block
from onibus.store.sqlite import SqliteStore
store = SqliteStore(
    sys.argv[1], "one", log_bytes_max=1 << 20, file_bytes_min=int(sys.argv[2])
)
number = (store.highest(BLOCKS) or 0) + 1
while True:
    store.commit(batch((BLOCKS, block(number, b"x" * 9000)), (COUNTERS, (0, number) + (0,) * 7)))
    sys.stdout.write(f"{number}\\n")
    sys.stdout.flush()
    store.maintain()
    number += 1
"""


@pytest.mark.promise("B8", "S3")
@pytest.mark.parametrize("file_bytes_min", [10_000, 9_000], ids=["rows", "files"])
def test_kill_loses_nothing(tmp_path: Path, file_bytes_min: int) -> None:
    rng = random.Random(1)
    path = tmp_path / "store"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    reported = 0
    for _ in range(KILLS):
        with subprocess.Popen(
            [sys.executable, "-c", COMMIT_FOREVER, os.fspath(path), str(file_bytes_min)],
            stdout=subprocess.PIPE,
            env=environment,
        ) as process:
            assert process.stdout is not None
            for _ in range(rng.randrange(3, 30)):
                reported = int(process.stdout.readline())
            # Somewhere in one of the next commits.
            time.sleep(rng.random() * 0.01)
            process.kill()
            # A last line that the kill cut off was not reported.
            whole = process.stdout.read().split(b"\n")[:-1]
            reported = int(whole[-1]) if whole else reported
        store = SqliteStore(path, "one")
        numbers = [row[0] for row in store.scan(BLOCKS, ("block",))]
        assert numbers in (list(range(1, reported + 1)), list(range(1, reported + 2)))
        assert all(payload == b"x" * 9_000 for _, payload in store.scan(BLOCKS))
        files = os.listdir(f"{path}.blocks") if os.path.isdir(f"{path}.blocks") else []
        assert sorted(map(int, files)) == (numbers if file_bytes_min <= 9_000 else [])
        store._unusable = "killed again"
        store.close()
    assert reported > KILLS * 2
