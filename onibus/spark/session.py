"""Makes a Spark session that the pipeline works in: one machine by default, a cluster unchanged."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import onibus
from onibus.core.errors import Failed, InvalidOperation
from onibus.spark.java import find_java, quiet_java
from onibus.spark.launching import tied

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Two cores, and three attempts at every task: with plain local[2] one failure ends a query.
MASTER = "local[2,3]"

_ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
#: Bytes that Spark must be able to write to its temporary files.
_SCRATCH = 1 << 16
_LOGGING = Path(__file__).with_name("log4j2.properties")

#: What the pipeline needs, or runs better with, whatever the master is.
CONFIGURATION = {
    "spark.app.name": "onibus",
    # Reading asks the server only for the partitions, numbers and times that a query wants.
    "spark.sql.python.filterPushdown.enabled": "true",
    # Operators that remember need this store; its changes are then what a batch writes.
    "spark.sql.streaming.stateStore.providerClass": _ROCKSDB,
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    # Connection strings and keys are options: plans, logs and errors show options, these not.
    "spark.sql.redaction.options.regex": "(?i)url|connection|key",
    # Over TCP, the second write of a task waits 40 ms: the worker delays its acknowledgement.
    "spark.python.unix.domain.socket.enabled": "true",
    # Times mean the same everywhere.
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
#: Settings of a driver in this process: quiet logs.
_DRIVER = {"spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={_LOGGING.as_uri()}"}
#: Settings of a driver with local workers.
_LOCAL = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}


def spark_session(master: str = MASTER, **conf: str) -> SparkSession:
    """Return the process's Spark session, creating it if needed.

    `conf` are Spark settings, `**{"spark.driver.memory": "4g"}`, which override ours. An existing
    session gets these settings as far as Spark can still change them.
    """
    check_installed()
    from pyspark.sql import SparkSession

    builder = SparkSession.builder
    if master.startswith("sc://"):
        builder = builder.remote(master)
        # The Spark Connect server fixed the other settings at its start.
        settings = CONFIGURATION | conf
        given = {name: value for name, value in settings.items() if name.startswith("spark.sql.")}
    else:
        local = master.startswith("local")
        _check_scratch(conf.get("spark.local.dir"))
        root = _prepare_environment(local)
        builder = builder.master(master)
        given = CONFIGURATION | _DRIVER | (_LOCAL if local else _workers(root)) | conf
    for name, value in given.items():
        builder = builder.config(name, value)
    with tied():
        return builder.getOrCreate()


def _check_scratch(given: str | None) -> None:
    """Reject if Spark cannot write temporary files: it would end with pages of Java traces."""
    places = os.environ.get("SPARK_LOCAL_DIRS") or given or "/tmp"
    for place in places.split(","):
        try:
            os.makedirs(place, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=place) as scratch:
                scratch.write(bytes(_SCRATCH))
                return
        except OSError as error:
            failed = error
    raise Failed(
        f"Spark cannot write its temporary files to {places}: {failed.strerror}. Free space there, "
        "or name another folder with --conf spark.local.dir=…"
    )


def check_installed() -> None:
    """Refuse where Spark is not installed."""
    if find_spec("pyspark") is None:
        raise InvalidOperation("the pipeline needs Spark: run pip install 'onibus[spark]'")


def check_startable(master: str = MASTER) -> None:
    """Reject if Spark is not installed, or needs a Java that this machine lacks."""
    check_installed()
    if not master.startswith("sc://"):
        find_java()


def _workers(root: Path) -> dict[str, str]:
    """Return the settings for remote workers: the path of our source, if it is not installed."""
    if root.name in ("site-packages", "dist-packages"):
        return {}
    return {"spark.executorEnv.PYTHONPATH": str(root)}


def _java() -> Path:
    """Return the home of a Java that starts without a warning, if a wrapper can be written."""
    home = find_java()
    with contextlib.suppress(OSError):
        return quiet_java(home)
    return home


def _prepare_environment(local: bool) -> Path:
    """Set what Java and the Python workers it starts take from the environment of this process.

    Return the folder from which this process imports us.
    """
    os.environ["JAVA_HOME"] = str(_java())
    # Workers run this Python: another one might lack our packages.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    if local:
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    # They import us by name, from wherever this process did.
    root = Path(onibus.__file__).resolve().parent.parent
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    if str(root) not in paths:
        os.environ["PYTHONPATH"] = os.pathsep.join([str(root), *paths])
    return root
