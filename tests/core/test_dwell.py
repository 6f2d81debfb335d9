"""Under a noisy tenant the dwell time of quiet tenants stays flat; the plot in docs/ shows it."""

from __future__ import annotations

import pytest

from tools.dwell import NOISY_FROM, PAGE, POINT_SECONDS, draw, simulate


@pytest.mark.promise("B10")
def test_quiet_tenants_do_not_wait_for_a_noisy_one() -> None:
    fair, plain = simulate(fair=True), simulate(fair=False)
    noise = slice(NOISY_FROM // POINT_SECONDS, None)
    waits = [wait for wait in fair.quiet if wait is not None]
    assert len(waits) == len(fair.quiet), "quiet tenants are served at all times"
    assert max(waits) < 0.1
    assert max(wait for wait in plain.quiet[noise] if wait is not None) > 90
    # The noisy tenant pays for its own backlog, and no more than all would without fair delivery.
    loud = [wait for wait in fair.noisy if wait is not None]
    assert max(loud) < 1.2 * max(wait for wait in plain.noisy if wait is not None)
    assert PAGE.read_text() == draw(fair, plain), "run python -m tools.dwell"
