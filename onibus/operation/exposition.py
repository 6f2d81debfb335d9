"""Prometheus text format 0.0.4, generated when Prometheus requests it.

The aggregate page has the same families as the per-object page, without the labels that name
objects, so its length does not depend on the number of queues. `fold` says whether values are added
up or the largest counts. They are folded as they arrive, so little is kept in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from onibus.core.tally import BOUNDS, Durations

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

GAUGE = "gauge"
COUNTER = "counter"
HISTOGRAM = "histogram"

Labels = tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """A family of metrics, without its values."""

    name: str
    kind: str
    help: str
    #: labels on both pages
    labels: Labels = ()
    #: labels that name objects, on the per-object page only
    objects: Labels = ()
    fold: Callable[[Iterable[float]], float] = sum


class Samples:
    """Values of one family, by the values of its labels."""

    def __init__(self, metric: Metric, *, per_object: bool) -> None:
        self.metric = metric
        self._shown = metric.labels + metric.objects if per_object else metric.labels
        self._values: dict[Labels, float] = {}
        self._durations: dict[Labels, Durations] = {}

    def put(self, labels: Labels, value: float) -> None:
        """Add a value, folding it with others that have the same labels on this page."""
        key = labels[: len(self._shown)]
        before = self._values.get(key)
        self._values[key] = value if before is None else self.metric.fold((before, value))

    def put_durations(self, labels: Labels, durations: Durations) -> None:
        """Add durations in the same way."""
        self._durations.setdefault(labels[: len(self._shown)], Durations()).add(durations)

    def lines(self) -> Iterable[str]:
        """Yield the lines of the family."""
        metric, shown = self.metric, self._shown
        yield f"# HELP {metric.name} {metric.help}"
        yield f"# TYPE {metric.name} {metric.kind}"
        for values, durations in self._durations.items():
            yield from _histogram(metric.name, _pairs(shown, values), durations)
        for values, value in self._values.items():
            yield f"{metric.name}{_braces(_pairs(shown, values))} {_number(value)}"


def _histogram(name: str, pairs: list[str], durations: Durations) -> Iterable[str]:
    total = 0
    for bound, count in zip((*BOUNDS, None), durations.counts, strict=True):
        total += count
        edge = 'le="+Inf"' if bound is None else f'le="{bound!r}"'
        yield f"{name}_bucket{_braces([*pairs, edge])} {total}"
    yield f"{name}_sum{_braces(pairs)} {durations.total!r}"
    yield f"{name}_count{_braces(pairs)} {total}"


def _pairs(names: Labels, values: Labels) -> list[str]:
    return [f'{name}="{_escaped(value)}"' for name, value in zip(names, values, strict=True)]


def _braces(pairs: list[str]) -> str:
    return "{" + ",".join(pairs) + "}" if pairs else ""


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else repr(value)
