"""What a run without a failure proves: the rule of three."""

from __future__ import annotations


def upper_bound(trials: int) -> str:
    """Return the 95 % upper bound of a failure's rate after that many trials without one: 3/n."""
    return f"below {300 / trials:.2g} %" if trials >= 3 else "not bounded"
