"""The runner of operations of several steps."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from onibus.core.errors import InvalidArgument, Unknown
from onibus.shard.replies import KeptReply, Reply, answer, fail
from onibus.shard.runner import Steps, all_of, run, turn_over


def test_an_operation_is_resumed_with_the_results_and_errors_of_its_steps() -> None:
    waiting: list[Reply] = []

    def steps() -> Steps[list[object]]:
        found = [(yield lambda reply: answer(reply, 1)), (yield waiting.append)]
        try:
            yield waiting.append
        except Unknown as error:
            found.append(str(error))
        return found

    reply = KeptReply()
    run(steps(), reply)
    answer(waiting.pop(), 2)
    assert not reply.done()
    fail(waiting.pop(), Unknown("lost"))
    assert reply.value == [1, 2, "lost"]


def test_an_error_before_the_first_wait_is_raised_and_a_later_one_is_the_reply() -> None:
    waiting: list[Reply] = []

    def steps(wait: bool) -> Steps[None]:
        yield waiting.append if wait else lambda reply: answer(reply, None)
        raise InvalidArgument("no")

    reply = KeptReply()
    with pytest.raises(InvalidArgument):
        run(steps(False), reply)
    assert not reply.done()
    run(steps(True), reply)
    answer(waiting.pop(), None)
    assert isinstance(reply.error, InvalidArgument)


def test_a_step_that_cannot_begin_raises_in_the_operation() -> None:
    def refuse(reply: Reply) -> None:
        raise InvalidArgument("no")

    def steps() -> Steps[str]:
        try:
            yield refuse
        except InvalidArgument:
            return "rejected"
        return "accepted"

    reply = KeptReply()
    run(steps(), reply)
    assert reply.value == "rejected"


def test_several_steps_end_together_and_a_late_answer_resumes_nothing() -> None:
    waiting: list[Reply] = []
    soon: list[Callable[[], None]] = []

    def steps() -> Steps[list[int]]:
        try:
            yield all_of([waiting.append, waiting.append])
        except Unknown:
            yield turn_over(soon.append)
        found: list[int] = yield all_of([lambda reply: answer(reply, 1), waiting.append])
        assert (yield all_of([])) == []
        return found

    reply = KeptReply()
    run(steps(), reply)
    first, second = waiting
    fail(second, Unknown("lost"))
    answer(first, None)
    assert not reply.done()
    soon.pop()()
    answer(waiting[-1], 2)
    assert reply.value == [1, 2]


def test_an_operation_whose_steps_are_answered_at_once_needs_no_stack() -> None:
    def steps() -> Steps[int]:
        for _ in range(10_000):
            yield lambda reply: answer(reply, None)
        return 7

    reply = KeptReply()
    run(steps(), reply)
    assert reply.value == 7
