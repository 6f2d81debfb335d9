"""The data pipeline on Spark: a source and a sink of the format `onibus`, operators, jobs.

    import onibus.spark

    spark = SparkSession.builder.getOrCreate()
    rows = spark.read.format("onibus").option("url", "…").option("entity", "orders").load()

What Spark runs on other machines (reading and writing) asks a server over HTTP, in Arrow.

Importing this has Spark run the Python of this process, and the Java that is found for it, unless
the environment names others: Spark would take the first `python3` of the PATH, which need not have
this package. Import it before the session is made.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
if "JAVA_HOME" not in os.environ and shutil.which("java") is None:
    from onibus.spark.java import NoJava, find_java

    # Without one, Spark says so when a session is made.
    with contextlib.suppress(NoJava):
        os.environ["JAVA_HOME"] = str(find_java())
