"""Whatever the state of checkpoint and broker: the result is right, or there is an error before."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from onibus.directory import claim_holding, claim_reading, claims, producers
from onibus.spark.queue_stream import QueueStreamReader
from onibus.spark.writing import BatchWriter
from tests.spark.served_bus import ServedBus
from tests.spark.stories import JobStory, Story, Wrong

STORIES = 300
STEPS = 12

Replaced = list[tuple[Any, str, Any]]


@pytest.fixture(scope="module")
def served() -> Iterator[ServedBus]:
    with ServedBus() as started:
        yield started


def tell(served: ServedBus, seed: int, *kinds: Sequence[str]) -> None:
    """Tell one story; an error comes with all steps."""
    job = seed % 10 == 9 and not kinds
    story = JobStory(served, seed) if job else Story(served, seed, *kinds)
    try:
        story.tell(STEPS)
    except Wrong as error:
        error.add_note(f"story {seed}:\n" + "\n".join(story.lines))
        raise
    finally:
        story.end()


@pytest.mark.promise("R3", "R5", "R6", "R7", "R8")
def test_every_story_ends_right_or_with_an_error(served: ServedBus) -> None:
    for seed in range(STORIES):
        tell(served, seed)


def any_content() -> Replaced:
    return [(producers, "_check_same", lambda producer, last, attempts, notes: None)]


def unbound_batches() -> Replaced:
    original = BatchWriter.write

    def write(self: BatchWriter, iterator: Any) -> Any:
        message: Any = original(self, iterator)
        return replace(message, query="")

    return [(BatchWriter, "write", write)]


def anyone_takes_over() -> Replaced:
    original = claim_holding.hold

    def hold(of: Any, name: str, reader: str, token: Any, after: int, *more: Any) -> None:
        original(of, name, reader, token, 2**53, *more)

    return [(claim_holding, "hold", hold)]


#: Where a program that lost its hold of a reader is refused.
HOLDERS = (claims, claim_reading, claim_holding)


def tokens_do_not_count() -> Replaced:
    return [(of, "check_holder", lambda reader, token: None) for of in HOLDERS]


def queries_begin_again() -> Replaced:
    return [(claim_holding, "_new_query", lambda reader, token, query, first: True)]


def old_checkpoints_continue() -> Replaced:
    return [(QueueStreamReader, "_check_newest", lambda self, start, known: None)]


#: Where each mistake can show: modes and sinks.
QUEUE, LOG = ("queue",), ("log",)
SINKS = ("stream", "foreach")


@pytest.mark.parametrize(
    ("mistake", "modes", "sinks"),
    [
        (any_content, LOG, SINKS),
        (unbound_batches, LOG, ("foreach",)),
        (anyone_takes_over, QUEUE, (*SINKS, "files")),
        (tokens_do_not_count, QUEUE, (*SINKS, "files")),
        (old_checkpoints_continue, QUEUE, ("files",)),
        (queries_begin_again, QUEUE, ("files",)),
    ],
)
def test_the_stories_find_each_mistake(
    monkeypatch: pytest.MonkeyPatch, mistake: Any, modes: Sequence[str], sinks: Sequence[str]
) -> None:
    for of, name, other in mistake():
        monkeypatch.setattr(of, name, other)
    with ServedBus() as served:
        for seed in range(STORIES):
            try:
                tell(served, seed, modes, sinks)
            except Wrong:
                return
    pytest.fail("no story found it")
