"""The programs of the page on operators run. They need Spark, so they are not with the others."""

from __future__ import annotations

from typing import Any

from pyspark.sql import SparkSession

from tests.source_tree import text_of
from tests.test_docs import FENCE


def test_programs_of_the_page_run(spark: SparkSession) -> None:
    blocks = [
        match[2]
        for match in FENCE.finditer(text_of("docs/spark-operators.md"))
        if match[1] == "pyspark"
    ]
    assert blocks
    namespace: dict[str, Any] = {"spark": spark}
    for block in blocks:
        exec(compile(block, "docs/spark-operators.md", "exec"), namespace)
