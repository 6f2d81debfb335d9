"""Identities as pairs of words: keyed hashes if they are recorded, otherwise plain codes."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from onibus.core.id_runs import Words
from onibus.core.path.admit import hash_identities
from onibus.core.path.admit_arrow import Numbers, raw_values


def words_of_hashes(hashes: list[bytes]) -> Words:
    """Return hashes of 16 bytes as two words each."""
    return np.frombuffer(b"".join(hashes), np.uint64).reshape(-1, 2)


def hashed(ids: pa.Array, scopes: pa.Array | None, secret: bytes) -> Words:
    """Return the hashes of ids inside their scopes; none of them is null."""
    inside = None if scopes is None else raw_values(scopes)
    return words_of_hashes(hash_identities(secret, raw_values(ids), inside))


def coded(ids: pa.Array, scopes: pa.Array | None) -> tuple[Words, Numbers]:
    """Return codes of ids inside their scopes, and the positions of those that are not null.

    They tell the rows of one batch apart, exactly, and mean nothing outside it.
    """
    columns = [ids] if scopes is None else [ids, scopes]
    words = np.zeros((len(ids), 2), np.uint64)
    for at, column in enumerate(columns):
        codes = pc.fill_null(column.dictionary_encode().indices, -1).to_numpy()
        words[:, at] = codes.astype(np.int64).view(np.uint64)
    if not ids.null_count:
        return words, np.arange(len(ids))
    owners = np.flatnonzero(ids.is_valid().to_numpy(zero_copy_only=False))
    return words[owners], owners
