"""`onibus pipeline process` as a program of its own: a source of files, tables, a summary."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq

from tests.source_tree import ROOT

_PATIENCE_S = 300


def test_files_become_tables(tmp_path: Path) -> None:
    rows = [
        {"at": 1_700_000_000_000 + at, "line": at, "message_id": f"id-{at % 3}", "body": f"{at}"}
        for at in range(5)
    ]
    source, out = tmp_path / "rows.json", tmp_path / "out"
    source.write_text("\n".join(json.dumps(row) for row in rows), "utf-8")
    command = [
        *(sys.executable, "-m", "onibus", "pipeline", "process", str(source), "--out", str(out)),
        *("--format", "json", "--set", "requires_duplicate_detection=true", "--json"),
        *("--arrival-time", "at", "--arrival-order", "line"),
        *("--conf", f"spark.local.dir={tmp_path / 'spark'}"),
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=_PATIENCE_S, cwd=tmp_path, env=environment
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert (told["accepted"], told["duplicates"], told["waiting"]) == (3, 2, 0)
    accepted = pq.read_table(out / "table=accepted").to_pylist()
    assert sorted(row["sequence_number"] for row in accepted) == [1, 2, 3]
