"""Commands of `onibus` in a process of their own, one after the other: they share one Java.

The process reads the words of a command from each line that it is given, and writes a line that
tells how it ended. It can be killed, as somebody's terminal can be.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.source_tree import ROOT


class Commands:
    """Runs commands, on the Spark of a master; `settings` are those of Spark."""

    def __init__(self, scratch: Path, master: str = "local[2,3]", **settings: str) -> None:
        self._scratch = scratch
        given = {"spark.local.dir": str(scratch), **settings}
        confs = [word for name, value in given.items() for word in ("--conf", f"{name}={value}")]
        self._words = ["--master", master, *confs, "--json"]
        self._process: subprocess.Popen[str] | None = None

    def run(self, *words: str | Path, code: int = 0) -> Any:
        """Run `onibus pipeline` with these words, and expect how it ends.

        Return what it told, which is None where it was killed.
        """
        if self._process is None:
            self._process = self._start()
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        line = json.dumps(["pipeline", *map(str, words), *self._words])
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            assert self.end() == code, f"{words[0]} ended by itself"
            return None
        ended, told, said = json.loads(answer)
        assert ended == code, f"{words}: {told} {said}"
        return json.loads(told.splitlines()[-1]) if told else said

    def _start(self) -> subprocess.Popen[str]:
        with (self._scratch / "log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "tests.spark.commands"],
                cwd=ROOT,
                env=os.environ | {"PYTHONPATH": str(ROOT)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )

    def kill(self) -> None:
        """Kill the process, and everything that it started."""
        assert self._process is not None
        os.killpg(self._process.pid, signal.SIGKILL)

    def end(self) -> int:
        """Leave nothing of it behind; return how it ended."""
        process, self._process = self._process, None
        assert process is not None
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        for stream in (process.stdin, process.stdout):
            assert stream is not None
            stream.close()
        return process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._process is not None:
            self.end()


def main() -> None:
    """Run what comes in."""
    from typer.testing import CliRunner

    from onibus.cli.main import app

    for line in sys.stdin:
        done = CliRunner().invoke(app, json.loads(line))
        said = done.stderr if done.exception is None else f"{done.stderr}{done.exception!r}"
        print(json.dumps([done.exit_code, done.stdout, said]), flush=True)


if __name__ == "__main__":
    main()
