"""Blocks of a store that belong to nothing: neither the log nor a staged part has them."""

from __future__ import annotations

from typing import Any

from onibus.core.records import BLOCK_INDEX, BLOCKS, STAGED
from onibus.core.staged import facts_of
from onibus.store.memory import Tables


def ownerless(tables: Tables) -> list[int]:
    """Return the blocks that no later opening would find a use for."""
    rows: Any = tables[STAGED].values()
    staged = {block for row in rows for block in facts_of(row[-1]).blocks}
    blocks: Any = [block for (block,) in tables[BLOCKS] if (block,) not in tables[BLOCK_INDEX]]
    return [block for block in blocks if block not in staged]
