"""The data pipeline on Spark: a source and a sink of the format `onibus`, operators, jobs.

    import onibus.spark

    spark = SparkSession.builder.getOrCreate()
    rows = spark.read.format("onibus").option("url", "…").option("entity", "orders").load()

What Spark runs on other machines (reading and writing) asks a server over HTTP, in Arrow.

Importing this has Spark run the Python of this process, and the Java that is found for it, unless
the environment names others: Spark would take the first `python3` of the PATH, which need not have
this package. In a session that exists already, an import registers the format for that session.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys

from onibus.spark.quiet_ends import end_quietly


def _join_session() -> None:
    """Have the session of this process run this Python, and register the format in it."""
    context = getattr(sys.modules.get("pyspark"), "SparkContext", None)
    active = getattr(context, "_active_spark_context", None)
    if active is None or active.pythonExec == sys.executable:
        return
    from pyspark.sql import SparkSession

    session = SparkSession.getActiveSession()
    active.pythonExec = sys.executable
    if session is not None:
        from onibus.spark.source import OnibusSource

        session.dataSource.register(OnibusSource)


end_quietly()
if "PYSPARK_PYTHON" not in os.environ:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    _join_session()
if "JAVA_HOME" not in os.environ and shutil.which("java") is None:
    from onibus.spark.java import NoJava, find_java

    # Without one, Spark says so when a session is made.
    with contextlib.suppress(NoJava):
        os.environ["JAVA_HOME"] = str(find_java())
