"""Read a store of a bus into a pandas frame, without Onibus: python read_block.py data/main.sqlite

docs/on-disk.md describes the format. The program needs SQLite, struct, CRC-32, XXH3 and
MessagePack, and pyarrow for Arrow blocks. It opens the file read-only; the bus may run in another
process.
"""

import sqlite3
import struct
import sys
from contextlib import closing
from pathlib import Path
from typing import Any
from zlib import crc32

import pandas as pd
from msgspec import msgpack
from xxhash import xxh3_64_intdigest

FIELDS = (
    *("body", "message_id", "session_id", "partition_key", "properties", "time_to_live_ms"),
    *("scheduled_enqueue_time_ms", "subject", "correlation_id", "content_type", "to", "reply_to"),
    *("reply_to_session_id", "format", "enqueued_sequence_number", "hop_count"),
    *("as_sent", "rewritten", "dead_letter_of", "received_before"),
)
#: Fields of messages that were neither sent over AMQP nor dead-lettered in another entity.
USUAL = {"as_sent": b"", "rewritten": False, "dead_letter_of": None, "received_before": 0}


def messages_of(block: bytes, entries: bytes | None) -> list[dict[str, Any]]:
    """Return the messages of one block in any encoding."""
    magic, version, encoding, rows, index_crc, body_check = struct.unpack_from("<2sBBIII", block)
    if encoding == 2:
        index, index_crc = index_of(entries or b"", rows)
        body = block[16:]
    else:
        index, body = block[16 : 16 + 52 * rows], block[16 + 52 * rows :]
    assert (magic, version, crc32(index)) == (b"OB", 1, index_crc), "the block is damaged"
    messages = arrow_messages(body, body_check) if encoding else [{} for _ in range(rows)]
    start = 0
    for message, entry in zip(messages, struct.iter_unpack("<QqqQIIqI", index), strict=True):
        message["ordinal"], message["enqueued_time_ms"], _, _, end, crc, _, _ = entry
        if encoding == 0:
            assert crc32(body[start:end]) == crc, "the row is damaged"
            message |= USUAL
            message |= zip(FIELDS, msgpack.decode(body[start:end]), strict=False)
            start = end
    return messages


def index_of(entries: bytes, rows: int) -> tuple[bytes, int]:
    """Return the index of a block that was staged, and its checksum."""
    first, stamp, arrived, *columns, check = msgpack.decode(entries)
    expires, sessions, kinds = (
        struct.unpack(f"<{rows}{code}", column) if isinstance(column, bytes) else [column] * rows
        for code, column in zip("qQI", columns, strict=True)
    )
    numbers = zip(range(first, first + rows), expires, sessions, kinds, strict=True)
    index = [
        struct.pack("<QqqQIIqI", ordinal, stamp, expiry, session, 0, 0, arrived, kind)
        for ordinal, expiry, session, kind in numbers
    ]
    return b"".join(index), check


def arrow_messages(body: bytes, body_check: int) -> list[dict[str, Any]]:
    """Return the messages of an Arrow body, with decoded properties."""
    from pyarrow import ipc

    assert xxh3_64_intdigest(body) & 0xFFFFFFFF == body_check, "the body is damaged"
    messages = ipc.open_stream(body).read_all().to_pylist()
    return [
        m | USUAL | {"properties": msgpack.decode(m["properties"] or b"\x80")} for m in messages
    ]


def payload_of(path: str, block: int, payload: bytes | int) -> bytes:
    """Return a block's bytes, from its row or, for a large block, from its file."""
    if isinstance(payload, bytes):
        return payload
    content = Path(f"{path}.blocks/{block}").read_bytes()
    fingerprint = xxh3_64_intdigest(content[:4096], len(content)) - 2**63
    assert fingerprint == payload, "the file does not belong to the block"
    return content


def read_store(path: str) -> pd.DataFrame:
    """Return the log of every partition in a store: all stored messages, settled or not."""
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as store:
        blocks = store.execute(
            "SELECT partition, block, payload, entries FROM block_index "
            "JOIN blocks USING (block) ORDER BY partition, first"
        )
        rows = [
            {"partition": partition} | message
            for partition, block, payload, entries in blocks
            for message in messages_of(payload_of(path, block, payload), entries)
        ]
    return pd.DataFrame(
        rows, columns=["partition", "ordinal", "enqueued_time_ms", *FIELDS], dtype=object
    )  # objects keep None and exact integers


if __name__ == "__main__":
    print(read_store(sys.argv[1]).to_string(max_colwidth=40))
