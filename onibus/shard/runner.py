"""Operations of several steps, each written as one generator, and the runner that drives them.

An operation yields a step and is resumed with its result, or with its error:

    yield durable(stores)

A step is a function that gets a reply, as most functions of the broker do. The runner has no thread
and no clock: it resumes an operation on the stack of the response that it waits for, so the same
responses in the same order make the same run.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from onibus.shard.replies import KeptReply, Reply, answer, fail

if TYPE_CHECKING:
    from onibus.shard.shard import Shard

T = TypeVar("T")
#: Begins something; the reply gets its result.
Step = Callable[[Reply], object]
Steps = Generator[Step, Any, T]


def run(steps: Steps[Any], reply: Reply) -> None:
    """Run an operation; the reply gets what it returns.

    An error before the first wait is raised, as by a function that rejects a call.
    """
    _Run(steps, reply).go_on(None, None)


class _Run:
    """An operation under way."""

    __slots__ = ("_begun", "_reply", "_steps")

    def __init__(self, steps: Steps[Any], reply: Reply) -> None:
        self._steps = steps
        self._reply = reply
        self._begun = False

    def go_on(self, value: Any, error: BaseException | None) -> None:
        """Resume the operation, up to the next step whose result is not there at once."""
        while True:
            try:
                step = self._steps.send(value) if error is None else self._steps.throw(error)
            except StopIteration as end:
                answer(self._reply, end.value)
                return
            except Exception as failure:
                if not self._begun:
                    raise
                fail(self._reply, failure)
                return
            wait = KeptReply()
            try:
                step(wait)
            except Exception as failure:
                value, error = None, failure
                continue
            if not wait.done():
                self._begun = True
                wait.then(self._resume)
                return
            value, error = wait.value, wait.error

    def _resume(self, kept: KeptReply) -> None:
        self.go_on(kept.value, kept.error)


def all_of(steps: Sequence[Step]) -> Step:
    """Return a step that begins several; its result is theirs in order, or the first error."""

    def begin(reply: Reply) -> None:
        results: list[Any] = [None] * len(steps)
        left = len(steps)

        def ended(place: int, kept: KeptReply) -> None:
            nonlocal left
            left -= 1
            results[place] = kept.value
            if kept.error is not None:
                fail(reply, kept.error)
            elif not left:
                answer(reply, results)

        for place, step in enumerate(steps):
            step(KeptReply(partial(ended, place)))
        if not steps:
            answer(reply, results)

    return begin


def durable(stores: Iterable[Shard], value: Any = None) -> Step:
    """Return a step that waits until everything applied so far in these stores is durable."""
    several = list(dict.fromkeys(stores))
    if len(several) == 1:
        return lambda reply: several[0].answer_after(reply, value)

    def steps() -> Steps[Any]:
        yield all_of([store.answer_after for store in several])
        return value

    return lambda reply: run(steps(), reply)


def turn_over(call_soon: Callable[[Callable[[], None]], object]) -> Step:
    """Return a step that lets others have their turn."""
    return lambda reply: call_soon(partial(answer, reply, None))
