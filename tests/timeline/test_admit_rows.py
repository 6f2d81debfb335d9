"""Rows of a batch are refused one by one exactly as messages are, and the others get in."""

from __future__ import annotations

from random import Random

import pyarrow as pa

from onibus import Message
from onibus.core.arrow_block import SCHEMA, columns_of
from onibus.core.errors import Refused
from onibus.core.path.admit import Prepared, admit
from onibus.core.path.admit_arrow import admit_rows
from onibus.core.settings import QueueSettings, make
from tests.timeline.workloads import KINDS

SECRET = bytes(32)


def random_message(random: Random) -> Message:
    return Message(
        body=b"x" * random.choice([0, 10, 3_000]),
        message_id=random.choice([None, "", "a", "b" * 128, "c" * 129]),
        session_id=random.choice([None, None, "s", "t" * 129]),
        partition_key=random.choice([None, None, "s", "other"]),
        time_to_live_ms=random.choice([None, None, 1, 0, -1]),
        scheduled_enqueue_time_ms=random.choice([None, None, 0, -1]),
        hop_count=random.choice([0, 0, 0, 9]),
        format=random.choice(["", "", "", "amqp", "other"]),
    )


def told(message: Message, settings: QueueSettings) -> Prepared | str:
    try:
        return admit(message, settings, SECRET)
    except Refused as error:
        return f"{error.code}: {error}"


def test_rows_are_refused_as_messages_are() -> None:
    refusals = 0
    for seed in range(400):
        random = Random(seed)
        settings = make(random.choice(KINDS) | {"max_message_bytes": 2_000}, QueueSettings)
        messages = [random_message(random) for _ in range(20)]
        batch = pa.RecordBatch.from_arrays(columns_of(messages), schema=SCHEMA)
        prepared, refused = admit_rows(batch, settings, SECRET)
        singles = [told(message, settings) for message in messages]
        expected = {at: one for at, one in enumerate(singles) if isinstance(one, str)}
        assert {at: f"{error.code}: {error}" for at, error in refused.items()} == expected, seed
        good = [one for one in singles if isinstance(one, Prepared)]
        hashes = [identity for one in good for identity in one.identities]
        assert prepared.hashes == hashes, seed
        assert prepared.keys is not None
        assert prepared.keys.to_pylist() == [one.key for one in good], seed
        assert len(prepared) == len(good)
        refusals += len(expected)
    assert refusals > 1_000
