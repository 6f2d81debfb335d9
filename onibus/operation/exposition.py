"""The text in which Prometheus reads metrics (format 0.0.4), made at the moment it asks.

Samples are gathered per object. The aggregate page has the same families without the labels that
name objects, so that its length does not grow with the number of queues: `fold` says whether their
values are added up or the largest counts.
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
    """One family: all that is known of it but its values."""

    name: str
    kind: str
    help: str
    #: labels on both pages
    labels: Labels = ()
    #: labels that name objects: on the per-object page only
    objects: Labels = ()
    fold: Callable[[Iterable[float]], float] = sum


class Samples:
    """The values of one family, by the values of its labels."""

    def __init__(self, metric: Metric) -> None:
        self.metric = metric
        self.values: dict[Labels, float] = {}
        self.durations: dict[Labels, Durations] = {}

    def lines(self, per_object: bool) -> Iterable[str]:
        """Yield the lines of the family."""
        metric = self.metric
        shown = metric.labels + metric.objects if per_object else metric.labels
        yield f"# HELP {metric.name} {metric.help}"
        yield f"# TYPE {metric.name} {metric.kind}"
        if metric.kind == HISTOGRAM:
            for values, durations in self._folded_durations(len(shown)).items():
                yield from _histogram(metric.name, _pairs(shown, values), durations)
            return
        for values, value in self._folded(len(shown)).items():
            yield f"{metric.name}{_braces(_pairs(shown, values))} {_number(value)}"

    def _folded(self, length: int) -> dict[Labels, float]:
        grouped: dict[Labels, list[float]] = {}
        for values, value in self.values.items():
            grouped.setdefault(values[:length], []).append(value)
        return {values: self.metric.fold(found) for values, found in grouped.items()}

    def _folded_durations(self, length: int) -> dict[Labels, Durations]:
        folded: dict[Labels, Durations] = {}
        for values, durations in self.durations.items():
            folded.setdefault(values[:length], Durations()).add(durations)
        return folded


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
