"""Reports about lakes: what captures and audits hand to the server, and how a browser opens it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from onibus import Bus
from onibus.api.log import AuditReport, ReaderReport, TableReport
from onibus.core.errors import ReaderTaken
from onibus.operation import reports
from onibus.operation.reports import Reports
from onibus.security.keys import Keyring
from tests.bus_helpers import ManualClock, run
from tests.server.http_helpers import KEYS, Client, serving, token

PAGE = "<h1>orders</h1><script>alert(1)</script>"


def table(files: int, batch_rows: int = 0) -> ReaderReport:
    given = TableReport(files=files, rows=10 * files, size_bytes=99, batch_rows=batch_rows)
    return ReaderReport(token="one", table=given)


@run
async def test_a_reader_keeps_the_last_reports_about_its_lake(tmp_path: Path) -> None:
    clock = ManualClock()
    async with Bus.open(tmp_path, clock=clock) as bus:
        await bus.create_queue("orders")
        info = await bus.create_reader("orders", "lake-1", token="one", address="lakes/main")
        assert info.lake is None
        await bus.report_reader("orders", "lake-1", table(3, batch_rows=30))
        began = clock.wall()
        clock.advance(5_000)
        await bus.report_reader("orders", "lake-1", table(1))
        audit = AuditReport(verdict="FAILED", messages=30, outcomes=4, findings=["2 missing"])
        await bus.report_reader("orders", "lake-1", ReaderReport(audit=audit))
        with pytest.raises(ReaderTaken):
            await bus.report_reader(
                "orders", "lake-1", ReaderReport(token="two", table=table(7).table)
            )
    async with Bus.open(tmp_path, clock=clock) as bus:
        [info] = bus.readers("orders")
        lake = info.lake
        assert lake is not None
        assert (lake.files, lake.rows, lake.batch_rows, lake.batch_ms) == (1, 10, 30, began)
        assert (lake.verdict, lake.verdict_ms, lake.findings) == (
            "FAILED",
            began + 5_000,
            ("2 missing",),
        )
        assert lake.page_ms is None
        # Moves keep the reports.
        await bus.move_reader("orders", "lake-1", [1], info.incarnation, "one")
        assert bus.readers("orders")[0].lake == lake


async def reported(client: Client) -> dict[str, Any]:
    [reader] = (await client.do("GET", "/readers"))["readers"]
    found: dict[str, Any] = reader["lake"]
    return found


@run
async def test_a_page_opens_once_without_a_key_and_runs_nothing() -> None:
    bus = await Bus.ephemeral()
    await bus.create_queue("orders")
    await bus.create_reader("orders", "lake/../1")
    async with serving(keys=Keyring(KEYS), bus=bus) as client:
        client.http.headers.update(token("sb://localhost/", "owner", "manage-key"))
        path = "/entities/orders/readers/lake%2F..%2F1"
        audit = {"verdict": "PASSED", "messages": 3, "outcomes": 2}
        await client.do("POST", f"{path}/report", {"audit": audit, "page": PAGE})
        lake = await reported(client)
        assert lake["verdict"] == "PASSED"
        assert lake["verdict_key"] == "owner"
        assert lake["page_ms"] > 0
        opened = (await client.do("POST", f"{path}/page"))["path"]
        del client.http.headers["authorization"]
        page = await client.http.get(opened)
        assert (page.status_code, page.text) == (200, PAGE)
        policy = page.headers["content-security-policy"]
        assert policy.startswith("sandbox; default-src 'none'")
        assert "script" not in policy
        assert page.headers["cache-control"] == "no-store"
        assert (await client.http.get(opened)).status_code == 404
        response = await client.http.post(f"/v1{path}/page")
        assert response.status_code == 401


@run
async def test_reports_are_rejected_beyond_their_bounds() -> None:
    bus = await Bus.ephemeral()
    await bus.create_queue("orders")
    await bus.create_reader("orders", "lake-1")
    async with serving(bus=bus) as client:
        path = "/entities/orders/readers/lake-1/report"
        counts = {"verdict": "PASSED", "messages": 3, "outcomes": 2}
        for wrong in (
            {"audit": counts | {"verdict": "perfect"}},
            {"audit": counts | {"findings": ["x" * 501]}},
            {"audit": counts | {"findings": ["x"] * 21}},
            {"page": "x" * (2 << 20) + "x"},
            {"table": {"files": -1, "rows": 1, "size_bytes": 1}},
        ):
            await client.refused(400, "invalid-argument", "POST", path, wrong)
        await client.refused(
            404, "entity-not-found", "POST", "/entities/orders/readers/none/report", {}
        )


@run
async def test_pages_are_kept_durably_and_the_oldest_make_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reports, "PAGES_MAX", 3)
    for folder in (tmp_path / "data" / "reports", None):
        kept = Reports(folder)
        for number in range(5):
            await kept.keep(7, f"../{number}", f"page {number}")
        again = kept if folder is None else Reports(folder)
        found = [await again.open(again.ticket(7, f"../{number}")) for number in range(5)]
        assert found == [None, None, b"page 2", b"page 3", b"page 4"]
        assert await again.open("a guess") is None
    assert [one.name for one in tmp_path.iterdir()] == ["data"]


@run
async def test_a_ticket_expires(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reports, "TICKET_SECONDS", -1.0)
    kept = Reports()
    await kept.keep(7, "lake", "page")
    assert await kept.open(kept.ticket(7, "lake")) is None


@run
async def test_readers_are_searched_and_paged() -> None:
    bus = await Bus.ephemeral()
    for name in ("a", "b", "c"):
        await bus.create_queue(name)
        await bus.create_reader(name, f"lake-{name}", address="lakes/main")
        await bus.create_reader(name, "own")
    async with serving(bus=bus) as client:

        async def listed(query: str) -> tuple[list[tuple[str, str]], int]:
            found = await client.do("GET", f"/readers?{query}")
            return [(one["entity"], one["name"]) for one in found["readers"]], found["count"]

        assert await listed("") == (
            [
                *[("a", "own"), ("b", "own"), ("c", "own")],
                *[("a", "lake-a"), ("b", "lake-b"), ("c", "lake-c")],
            ],
            6,
        )
        assert await listed("search=LAKES&start=1&limit=1") == ([("b", "lake-b")], 3)
        assert await listed("search=lake-c") == ([("c", "lake-c")], 1)
        await client.refused(400, "invalid-argument", "GET", "/readers?limit=0")
