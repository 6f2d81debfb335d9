"""Report: an HTML page with plots of an entity's traffic, from its lake.

Spark aggregates and this page draws: at most a few hundred numbers reach it.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onibus.operation.visible import visible
from onibus.spark.jobs import plots
from onibus.spark.jobs.audit import Verdict, entity_info
from onibus.spark.lake_reporting import report_page
from onibus.spark.lake_tables import LakeTables, open_lake
from onibus.spark.options import read_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: Maximum points of a plot over time.
_POINTS = 120
#: Maximum bars of a plot; the others are added up.
_BARS = 12

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>
body {{ font: 15px/1.5 system-ui, sans-serif; max-width: 52rem; margin: 2rem auto; padding: 0 1rem;
  color: #222; background: #fff }}
h1 {{ font-size: 1.5rem }} h2 {{ font-size: 1.1rem; margin-top: 2.2rem }}
svg {{ width: 100%; height: auto }} p.note {{ color: #666 }}
table {{ border-collapse: collapse }} td, th {{ padding: .2rem 1rem .2rem 0; text-align: left }}
td.number {{ text-align: right; font-variant-numeric: tabular-nums }}
.passed {{ color: #2a6f4f; font-weight: 600 }} .failed {{ color: #c8553d; font-weight: 600 }}
</style></head><body>
{body}
</body></html>
"""


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the page."""

    title: str
    content: str


def report(
    spark: SparkSession,
    source: Mapping[str, str],
    lake: str,
    to: str | Path,
    *,
    with_broker: bool = True,
    verdict: Verdict | None = None,
    marks: Sequence[plots.Mark] = (),
    on_progress: Callable[[str], None] = lambda section: None,
) -> Path:
    """Write a page about an entity; return its path.

    `source` are the options of the format onibus (connection, entity). Only the broker counts
    dropped duplicates, which no log has. With a verdict the page begins with it. `marks` are times
    to show in the plot of rates, with their names.
    """
    options = read_options(source)
    tables = open_lake(spark, lake, options.entity)
    sections = [] if verdict is None else [_verdict(verdict)]
    rates: Callable[[LakeTables], str] = partial(_over_time, marks=marks)
    for title, make in (("Rates", rates), *_SECTIONS):
        on_progress(title)
        sections.append(Section(title, make(tables) or '<p class="note">Nothing to show.</p>'))
    if with_broker:
        with options.client() as client:
            info = entity_info(client, options.entity)
            dropped = f"{info.duplicates_dropped:,} duplicates dropped"
        sections.append(Section("Duplicates", f"<p>{dropped}.</p>"))
    body = [f"<h1>{_escaped(options.entity)}</h1>", f"<p class='note'>{_now()}</p>"]
    body += [f"<h2>{_escaped(one.title)}</h2>\n{one.content}" for one in sections]
    path = Path(to)
    path.parent.mkdir(parents=True, exist_ok=True)
    title = _escaped(f"{options.entity}: report")
    path.write_text(_PAGE.format(title=title, body="\n".join(body)), "utf-8")
    if with_broker and (refusal := report_page(options, lake, path)):
        on_progress(f"the server does not show the page: {refusal}")
    return path


def _escaped(text: str) -> str:
    """Return an untrusted string, escaped for a page."""
    return html.escape(visible(text))


def _now() -> str:
    return datetime.now(UTC).strftime("Generated %Y-%m-%d %H:%M UTC from the lake.")


def _verdict(verdict: Verdict) -> Section:
    """Return the findings of an audit as a table."""
    word = ("passed" if verdict.passed else "failed", verdict.verdict)
    rows = "".join(
        f"<tr><td>{_escaped(one.check)}</td><td class='number'>{one.count:,}</td>"
        f"<td>{_escaped('; '.join(one.examples))}</td></tr>"
        for one in verdict.findings
    )
    notes = (*verdict.incomplete, *verdict.remarks)
    remarks = "".join(f"<p class='note'>{_escaped(one)}</p>" for one in notes)
    return Section(
        "Audit",
        f"<p class='{word[0]}'>{word[1]}: {verdict.messages:,} messages, "
        f"{verdict.outcomes:,} outcomes</p><table>{rows}</table>{remarks}",
    )


def _over_time(tables: LakeTables, marks: Sequence[plots.Mark]) -> str:
    """Plot messages and outcomes per second."""
    from pyspark.sql import functions as F  # noqa: N812

    edges = tables.rows.agg(F.min("enqueued_time"), F.max("enqueued_time")).collect()[0]
    if edges[0] is None:
        return ""
    step = max((edges[1] - edges[0]).total_seconds() / _POINTS, 1.0)
    start = edges[0].timestamp()

    def counted(rows: DataFrame, time: str) -> dict[int, int]:
        slot = F.floor((F.col(time).cast("double") - start) / step)
        return {
            row.slot: row["count"] for row in rows.groupBy(slot.alias("slot")).count().collect()
        }

    arrived, ended = counted(tables.rows, "enqueued_time"), counted(tables.outcomes, "time")
    slots = range(min([0, *ended]), max([*arrived, *ended, 0]) + 1)
    times = [datetime.fromtimestamp(start + slot * step, UTC) for slot in slots]
    series = {
        "enqueued": [arrived.get(slot, 0) / step for slot in slots],
        "ended": [ended.get(slot, 0) / step for slot in slots],
    }
    return plots.lines(times, series, "messages/s", marks)


def _to_completion(tables: LakeTables) -> str:
    """Plot the time from enqueueing to completion, on a logarithmic scale."""
    from pyspark.sql import functions as F  # noqa: N812

    ends = tables.outcomes.where("outcome = 'completed'").select(
        "partition", "sequence_number", "time"
    )
    waited = ends.join(tables.rows, ["partition", "sequence_number"]).select(
        F.expr("greatest(unix_millis(time) - unix_millis(enqueued_time), 1)").alias("ms")
    )
    slot = F.floor(F.log2("ms")).cast("int")
    slots = {row.slot: row["count"] for row in waited.groupBy(slot.alias("slot")).count().collect()}
    if not slots:
        return ""
    first, last = min(slots), max(slots)
    edges = [2**slot / 1000 for slot in range(first, last + 2)]
    counts = [slots.get(slot, 0) for slot in range(first, last + 1)]
    p = waited.select(F.percentile_approx("ms", [0.5, 0.9, 0.99]).alias("p")).collect()[0].p
    words = ", ".join(
        f"{name} {ms / 1000:.3g} s" for name, ms in zip(("50 %", "90 %", "99 %"), p, strict=True)
    )
    return plots.histogram(edges, counts, "seconds", "messages") + f"<p>Percentiles: {words}.</p>"


def _ends(tables: LakeTables) -> str:
    """Plot the outcomes of messages."""
    return _counted(tables.outcomes, "outcome", "messages")


def _dead_letters(tables: LakeTables) -> str:
    """Plot the reasons of dead-lettered messages."""
    rows = tables.outcomes.where("outcome = 'dead-lettered'").fillna("(no reason)", ["reason"])
    return _counted(rows, "reason", "messages", plots.BAD)


def _partitions(tables: LakeTables) -> str:
    """Plot messages by partition."""
    return _counted(tables.rows, "partition", "messages", in_order=True)


def _session_sizes(tables: LakeTables) -> str:
    """Plot sessions by their number of messages."""
    from pyspark.sql import functions as F  # noqa: N812

    sizes = tables.rows.where("session_id IS NOT NULL").groupBy("session_id").count()
    slot = F.floor(F.log2("count")).cast("int")
    slots = {row.slot: row["count"] for row in sizes.groupBy(slot.alias("slot")).count().collect()}
    if not slots:
        return ""
    top = max(slots)
    edges = [2.0**slot for slot in range(top + 2)]
    return plots.histogram(
        edges, [slots.get(slot, 0) for slot in range(top + 1)], "messages", "sessions"
    )


def _counted(
    rows: DataFrame, column: str, unit: str, colour: str = plots.GOOD, *, in_order: bool = False
) -> str:
    """Plot how often each value occurs: the most frequent, or all in order."""
    counted = rows.groupBy(column).count()
    found: list[Any] = counted.orderBy(
        column if in_order else "count", ascending=in_order
    ).collect()
    if not found:
        return ""
    if not in_order and len(found) > _BARS:
        rest = sum(row["count"] for row in found[_BARS:])
        names = [str(row[column]) for row in found[:_BARS]] + ["others"]
        return plots.bars(names, [row["count"] for row in found[:_BARS]] + [rest], unit, colour)
    return plots.bars(
        [str(row[column]) for row in found], [row["count"] for row in found], unit, colour
    )


_SECTIONS: tuple[tuple[str, Callable[[LakeTables], str]], ...] = (
    ("Time from enqueueing to completion", _to_completion),
    ("Outcomes", _ends),
    ("Dead-letter reasons", _dead_letters),
    ("Partitions", _partitions),
    ("Session sizes", _session_sizes),
)
