"""Plots as SVG for a page: few colours, no ornaments, the same look everywhere."""

from __future__ import annotations

import io
import warnings
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from onibus.operation.visible import visible

#: Blue for what is, orange for what went wrong.
GOOD, BAD = "#2a6f97", "#c8553d"
_SIZE = (7.2, 2.6)
#: Characters of a name below a bar: a dead-letter reason may have thousands.
_NAME_LENGTH = 40


def _figure() -> tuple[Any, Any]:
    import matplotlib as mpl

    # No window is wanted, and none may be there.
    mpl.use("svg")
    mpl.rcParams["svg.fonttype"] = "none"
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=_SIZE, layout="constrained")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", alpha=0.25)
    return figure, axes


def _svg(figure: Any) -> str:
    from matplotlib import pyplot as plt

    text = io.StringIO()
    with warnings.catch_warnings():
        # The page's reader has the fonts for these characters, whether or not this machine has.
        warnings.filterwarnings("ignore", "Glyph .* missing from font", UserWarning)
        figure.savefig(text, format="svg", metadata={"Date": None})
    plt.close(figure)
    # Without the XML declaration it can be part of a page.
    return text.getvalue()[text.getvalue().index("<svg") :]


#: A moment that is marked in a plot over time, and its name.
Mark = tuple[datetime, str]


def lines(
    times: Sequence[datetime],
    series: Mapping[str, Sequence[float]],
    unit: str,
    marks: Sequence[Mark] = (),
) -> str:
    """Return lines over time, one for each series, and a vertical line for each mark."""
    figure, axes = _figure()
    for moment, name in marks:
        axes.axvline(moment, color=BAD, linewidth=1, linestyle=":")
        axes.annotate(
            _short(visible(name)), (moment, 1), xycoords=("data", "axes fraction"), rotation=90,
            ha="right", va="top", fontsize=7, color=BAD, parse_math=False,
        )  # fmt: skip
    for (name, values), colour in zip(series.items(), (GOOD, BAD, "#7a7a7a"), strict=False):
        axes.plot(times, values, label=name, color=colour, linewidth=1.4)
    axes.set_ylabel(unit)
    axes.set_ylim(bottom=0)
    axes.tick_params(axis="x", rotation=20)
    if len(series) > 1:
        axes.legend(frameon=False)
    return _svg(figure)


def bars(names: Sequence[str], values: Sequence[float], unit: str, colour: str = GOOD) -> str:
    """Return a bar for each name, which others may have chosen."""
    figure, axes = _figure()
    places = range(len(names))
    axes.bar(places, values, color=colour)
    # Names may contain $, which would begin a formula.
    axes.set_xticks(places, [_short(visible(name)) for name in names], parse_math=False)
    axes.set_ylabel(unit)
    if max(map(len, names), default=0) > 4:
        axes.tick_params(axis="x", rotation=20)
    return _svg(figure)


def _short(name: str) -> str:
    return name if len(name) <= _NAME_LENGTH else name[: _NAME_LENGTH - 1] + "…"


def histogram(edges: Sequence[float], counts: Sequence[int], unit: str, of: str) -> str:
    """Return how many there are between each two edges, which grow by factors."""
    figure, axes = _figure()
    axes.stairs(counts, edges, fill=True, color=GOOD)
    axes.set_xscale("log")
    axes.set_xlabel(unit)
    axes.set_ylabel(of)
    return _svg(figure)
