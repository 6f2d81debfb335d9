"""make bench: all figures in one table.

python -m bench [--quick] [sending] [remembering] [waiting] [recovery] [bulk] [topics]
                       [transactions] [http] [amqp] [sqs] [spark-read] [spark-stream]
                       [spark-write] [spark-operators] [pauses] [console] [lake]

python -m bench.lake measures a lake of 5,000,000 messages.
"""

from __future__ import annotations

import argparse
import json

from rich.console import Console
from rich.table import Table

from bench import (
    amqp,
    bulk,
    console,
    http,
    lake,
    pauses,
    recovery,
    remembering,
    sending,
    spark_operators,
    spark_read,
    spark_stream,
    spark_write,
    sqs,
    topics,
    transactions,
    waiting,
)
from bench.measure import Figure


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench")
    parser.add_argument("parts", nargs="*", help="all of them unless named")
    parser.add_argument("--quick", action="store_true", help="a tenth of the size, three rounds")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    arguments = parser.parse_args()
    quick = arguments.quick
    parts = {
        "sending": lambda: sending.measure(3 if quick else 7),
        "remembering": lambda: remembering.measure(
            3 if quick else 7, 1_000_000 if quick else 10_000_000
        ),
        "waiting": lambda: waiting.measure(100_000 if quick else 1_000_000),
        "bulk": lambda: bulk.measure(3 if quick else 7),
        "topics": lambda: topics.measure(3 if quick else 7),
        "transactions": lambda: transactions.measure(3 if quick else 7),
        "http": lambda: http.measure(3 if quick else 7),
        "amqp": lambda: amqp.measure(3 if quick else 7),
        "spark-read": lambda: spark_read.measure(3 if quick else 7),
        "spark-stream": lambda: spark_stream.measure(3 if quick else 7),
        "spark-write": lambda: spark_write.measure(3 if quick else 7),
        "spark-operators": lambda: spark_operators.measure(3 if quick else 7),
        "sqs": lambda: sqs.measure(3 if quick else 7, 0.1 if quick else 1.0),
        "pauses": lambda: pauses.measure(0.1 if quick else 1.0),
        "console": lambda: console.measure(0.1 if quick else 1.0),
        "lake": lake.measure,
        "recovery": lambda: recovery.measure(3 if quick else 7, 0.1 if quick else 1.0),
    }
    unknown = [name for name in arguments.parts if name not in parts]
    if unknown:
        parser.error(f"unknown parts: {', '.join(unknown)}; choose from {', '.join(parts)}")
    screen = Console()
    figures: list[Figure] = []
    for name in arguments.parts or parts:
        with screen.status(f"measuring {name} …"):
            figures += parts[name]()
    if arguments.json:
        print(json.dumps([vars(figure) | {"met": figure.met} for figure in figures], indent=2))
        return
    table = Table("what", "measured", "target", "met", "", title="Onibus on this machine")
    for figure in figures:
        bound = "at most" if figure.at_most else "at least"
        table.add_row(
            figure.name,
            f"{figure.value:,.1f} {figure.unit}",
            f"{bound} {figure.target:g} {figure.unit}",
            "yes" if figure.met else "no",
            figure.note,
        )
    screen.print(table)


if __name__ == "__main__":
    main()
