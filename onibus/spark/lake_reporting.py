"""Reports to the server about a lake: its files, its last batch, the verdict of an audit, a page.

The server keeps them with the readers of the lake, and the console shows them. They are not part of
a capture or an audit: if the server rejects one, the work continues.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from onibus.api.log import (
    FINDING_LENGTH_MAX,
    FINDINGS_MAX,
    PAGE_LENGTH_MAX,
    AuditReport,
    ReaderReport,
    TableReport,
)
from onibus.client import Client
from onibus.core.errors import OnibusError
from onibus.spark.lake import MESSAGES, OUTCOMES, Lake
from onibus.spark.lake_manifest import FileRow
from onibus.spark.options import ReadOptions

if TYPE_CHECKING:
    from onibus.spark.jobs.audit import Verdict


def reader_name(identity: str, table: str) -> str:
    """Return the name of the reader of a lake's table."""
    return f"lake-{identity}" if table == MESSAGES else f"lake-{identity}-{table}"


def report_table(
    client: Client,
    entity: str,
    reader: str,
    token: str,
    files: Sequence[FileRow],
    batch_rows: int = 0,
) -> str:
    """Report the files of a table after a batch; return why the server rejects it, or ""."""
    table = TableReport(
        files=len(files),
        rows=sum(max(one.rows, 0) for one in files),
        size_bytes=sum(one.size for one in files),
        batch_rows=batch_rows,
    )
    return _report(client, entity, reader, ReaderReport(token=token, table=table))


def report_verdict(client: Client, lake: Lake, verdict: Verdict) -> str:
    """Report the verdict of an audit; return why the server rejects it, or ""."""
    found = [f"{one.count:,} {one.check}" for one in verdict.findings if one.count]
    words = [one[:FINDING_LENGTH_MAX] for one in (*found, *verdict.incomplete, *verdict.remarks)]
    audit = AuditReport(
        verdict=verdict.verdict,
        messages=verdict.messages,
        outcomes=verdict.outcomes,
        findings=words[:FINDINGS_MAX],
    )
    return _report_lake(client, lake, ReaderReport(audit=audit))


def report_page(options: ReadOptions, lake: str, path: Path) -> str:
    """Report an HTML page about an entity's lake; return why the server rejects it, or ""."""
    page = path.read_text("utf-8")
    if len(page) > PAGE_LENGTH_MAX:
        return f"it has {len(page):,} characters, and the server keeps {PAGE_LENGTH_MAX:,}"
    with options.client() as client:
        return _report_lake(client, Lake(lake, options.entity), ReaderReport(page=page))


def _report_lake(client: Client, lake: Lake, report: ReaderReport) -> str:
    """Report to the reader of a lake that shows for all its tables."""
    identity = lake.identity()
    if identity is None:
        return "the lake was not captured yet"
    table = OUTCOMES if "/subscriptions/" in lake.entity.lower() else MESSAGES
    return _report(client, lake.entity, reader_name(identity, table), report)


def _report(client: Client, entity: str, reader: str, report: ReaderReport) -> str:
    try:
        client.report_reader(entity, reader, report)
    except OnibusError as error:
        return str(error)
    return ""
