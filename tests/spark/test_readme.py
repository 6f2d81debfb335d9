"""README's lines for Spark run as they are printed, from a directory outside the clone."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from onibus.client import Client
from onibus.core.message import Message
from tests.server.processes import served
from tests.source_tree import ROOT

#: What a user adds to see rows; the filter shows that none is needed to be handed over.
_SHOW = """
options = dict(url="http://localhost:5300", entity="orders")
rows = spark.read.format("onibus").options(**options).load().where("sequence_number > 1")
print("batch", sorted(bytes(row.body) for row in rows.collect()))
query = (
    orders.writeStream.format("memory").queryName("seen")
    .option("checkpointLocation", "state").trigger(availableNow=True).start()
)
query.awaitTermination()
print("stream", spark.table("seen").count())
"""


def environment_elsewhere(**more: str) -> dict[str, str]:
    """Return the environment of a user who has not activated ours."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in ("PYTHONPATH", "VIRTUAL_ENV") and not name.startswith(("ONIBUS", "PYSPARK"))
    }
    ours = Path(sys.executable).parent
    places = [one for one in kept["PATH"].split(os.pathsep) if one and Path(one) != ours]
    return {**kept, "PATH": os.pathsep.join(places), "SPARK_LOCAL_IP": "127.0.0.1", **more}


def outside(path: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run this environment's Python elsewhere, with an environment that is not activated."""
    return subprocess.run(
        [sys.executable, *words],
        cwd=path,
        env=environment_elsewhere(),
        capture_output=True,
        text=True,
        check=False,
    )


def test_an_installed_package_is_seen_where_spark_looks(tmp_path: Path) -> None:
    look = "import pkgutil; print([one.name for one in pkgutil.iter_modules()])"
    assert "'pyspark_onibus'" in outside(tmp_path, "-c", look).stdout


def test_the_lines_of_the_readme(tmp_path: Path) -> None:
    [lines] = re.findall(
        r"```text\n(.*?format\(\"onibus\"\).*?)```",
        (ROOT / "README.md").read_text("utf-8"),
        re.DOTALL,
    )
    data, elsewhere = tmp_path / "data", tmp_path / "elsewhere"
    elsewhere.mkdir()
    with served(
        "--data", data, "--config", ROOT / "examples" / "onibus.toml", "--http-port", "0"
    ) as server:
        connection = (data / "connection-string").read_text().strip()
        with Client.connect(connection) as client:
            client.send_batch(
                "orders", [Message(body=b"%d" % at, message_id=f"m{at}") for at in range(3)]
            )
        program = elsewhere / "program.py"
        program.write_text((lines + _SHOW).replace("5300", str(server.port)), "utf-8")
        done = outside(elsewhere, str(program))
    assert done.returncode == 0, done.stderr
    assert "batch [b'1', b'2']" in done.stdout
    assert "stream 3" in done.stdout
