"""Bodies of many small values are rejected before they are decoded."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest

from onibus.protocols.json_values import SQS_VALUES_MAX, VALUES_MAX, has_more_values
from onibus.protocols.sqs.errors import SqsError
from onibus.protocols.sqs.json_protocol import read
from tests.bus_helpers import run
from tests.server.http_helpers import JSON_TYPE, serving


@pytest.mark.parametrize("value", ["{}", "[]", "0", '""', '"a"', "null"])
def test_values_are_counted_before_they_are_decoded(value: str) -> None:
    body = '{"messages":[' + ",".join([value] * 1_001) + "]}"
    assert has_more_values(body.encode(), 1_000)
    assert not has_more_values(body.encode(), 2_100)


@pytest.mark.parametrize("text", [",[{" * 1_000, '\\",' * 1_000, "\\\\", '",' * 900 + "\\"])
def test_characters_in_strings_are_not_values(text: str) -> None:
    body = json.dumps({"messages": [{"body": text, "message_id": "1"}]}).encode()
    assert not has_more_values(body, 10)
    more = json.dumps({"messages": [{"body": text}] * 20}).encode()
    assert has_more_values(more, 10)


@run
async def test_a_small_compressed_body_of_many_messages_is_rejected() -> None:
    bomb = gzip.compress(b'{"messages":[' + b"{}," * VALUES_MAX + b"{}]}")
    assert len(bomb) < 10_000
    async with serving() as client:
        await client.do("PUT", "/queues/q", {})
        headers = {**JSON_TYPE, "content-encoding": "gzip"}
        response = await client.http.post("/v1/entities/q/batch", content=bomb, headers=headers)
    assert response.status_code == 400
    assert f"more than {VALUES_MAX} values" in response.text


def test_an_sqs_request_of_many_values_is_rejected() -> None:
    entries = b'{"Entries":[' + b"{}," * SQS_VALUES_MAX + b"{}]}"
    with pytest.raises(SqsError, match=f"more than {SQS_VALUES_MAX} values"):
        read(entries, dict[str, Any])
