"""Consoles that show control characters instead of sending them to the terminal."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from onibus.operation.visible import visible_lines


class SafeConsole(Console):
    """A console for untrusted strings: its own styles and cursor movements still work."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            if segment.control is None:
                yield Segment(visible_lines(segment.text), segment.style)
            else:
                yield segment
