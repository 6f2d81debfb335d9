"""What people read when something fails somewhere in Spark."""

from __future__ import annotations

import pytest
from pyspark.errors import PySparkException

from onibus.cli.pipeline import PipelineFailed, PipelineRefused, told_plainly

TRACE = "[PYTHON_EXCEPTION] in a worker: Traceback (most recent call last):\n  File x, line 1\n"


@pytest.mark.parametrize(
    ("text", "kind", "says"),
    [
        (
            f"{TRACE}onibus.core.errors.EntityNotFound: there is no entity 'q'\n SQLSTATE: 38000",
            PipelineRefused,
            "there is no entity 'q'",
        ),
        (
            f"{TRACE}onibus.client.problems.Unreachable: localhost:5300 does not answer\n",
            PipelineFailed,
            "localhost:5300 does not answer",
        ),
        (
            f"{TRACE}ModuleNotFoundError: No module named 'onibus'\n",
            PipelineFailed,
            "Spark's workers cannot import onibus: install onibus[spark] where they run",
        ),
        (f"{TRACE}OSError: [Errno 28] full\n", PipelineFailed, "OSError: [Errno 28] full"),
        ("[UNRESOLVED] there is no column\nat line 1", PipelineFailed, "there is no column"),
    ],
)
def test_what_it_was_about_is_told(text: str, kind: type[Exception], says: str) -> None:
    told = told_plainly(PySparkException(text))
    assert type(told) is kind
    assert says in str(told)
    assert "Traceback" not in str(told)
