"""Digests of bodies: told to who sends, and the same to who receives, remembered or not."""

from __future__ import annotations

from hashlib import md5
from typing import Any

import pytest

from onibus.protocols.sqs.md5 import DIGESTS_KEPT, Digests
from tests.sqs.clients import get, new_fifo, put


def digest_of(text: str) -> str:
    return md5(text.encode()).hexdigest()


@pytest.mark.promise("F1")
def test_a_duplicate_with_another_body_does_not_change_the_digest_of_the_first(sqs: Any) -> None:
    url = new_fifo(sqs)
    put(sqs, url, "one é", "a", "same")
    assert put(sqs, url, "two", "a", "same")["MD5OfMessageBody"] == digest_of("two")
    (message,) = get(sqs, url)
    assert (message["Body"], message["MD5OfBody"]) == ("one é", digest_of("one é"))


def test_the_youngest_are_remembered_and_no_more_than_twice_as_many() -> None:
    digests = Digests()
    last = 5 * DIGESTS_KEPT
    for number in range(1, last + 1):
        digests.note(7, number, f"digest {number}")
    known = [number for number in range(1, last + 1) if digests.find(7, number) is not None]
    assert known == list(range(known[0], last + 1)), "the oldest go first"
    assert DIGESTS_KEPT <= len(known) <= 2 * DIGESTS_KEPT
    assert digests.find(7, last) == f"digest {last}"
    assert digests.find(8, last) is None, "the number of another queue"
