"""The lifecycle's table: total where it must be, and nothing that is not in it happens."""

from __future__ import annotations

from itertools import product

import pytest

from onibus.core.errors import InvalidOperation
from onibus.core.lifecycle import DEAD, HELD, LIFECYCLE, UNLOCKED, Input, State, advance

PAIRS = list(product(State, Input))
LIVING = [state for state in State if state is not State.GONE]


@pytest.mark.parametrize("pair", [pair for pair in PAIRS if pair not in LIFECYCLE])
def test_what_is_not_in_the_table_is_refused(pair: tuple[State, Input]) -> None:
    with pytest.raises(InvalidOperation, match="cannot"):
        advance(*pair)


def test_what_is_in_the_table_happens() -> None:
    for pair, following in LIFECYCLE.items():
        assert advance(*pair) is following


def test_gone_is_for_good_and_everything_can_get_there() -> None:
    assert not [pair for pair in LIFECYCLE if pair[0] is State.GONE]
    reached = {State.GONE}
    while more := {pair[0] for pair, then in LIFECYCLE.items() if then in reached} - reached:
        reached |= more
    assert reached == set(State)


@pytest.mark.parametrize("state", sorted(HELD))
def test_whatever_is_held_can_be_settled_in_every_way(state: State) -> None:
    for event in (Input.COMPLETE, Input.ABANDON, Input.RELEASE, Input.DELAY, Input.DEFER):
        assert advance(state, event) not in HELD, "a hold ends"
    if state not in DEAD:
        assert advance(state, Input.DEAD_LETTER) is State.DEAD_LETTERED
    assert advance(state, Input.RELEASE) is UNLOCKED[state]
    for event in (Input.LOCK, Input.TAKE, Input.PURGE, Input.EXPIRE):
        assert (state, event) not in LIFECYCLE, "nobody else touches what is held"


@pytest.mark.parametrize("state", [state for state in LIVING if state not in HELD])
def test_whatever_is_not_held_can_be_purged_and_not_settled(state: State) -> None:
    assert advance(state, Input.PURGE) is State.GONE
    for event in (Input.COMPLETE, Input.ABANDON, Input.RELEASE, Input.DELAY, Input.DEFER):
        assert (state, event) not in LIFECYCLE


@pytest.mark.promise("B2")
@pytest.mark.parametrize("state", sorted(DEAD))
def test_dead_letters_neither_expire_nor_die_again(state: State) -> None:
    for event in (Input.EXPIRE, Input.DEAD_LETTER):
        assert (state, event) not in LIFECYCLE
    stay = {then for (before, _), then in LIFECYCLE.items() if before is state}
    assert stay <= DEAD | {State.GONE}, "nor do they come back by themselves"


@pytest.mark.promise("L2")
def test_a_deferred_message_goes_back_to_the_active_ones_only_when_asked() -> None:
    ways = {
        pair
        for pair, then in LIFECYCLE.items()
        if pair[0] in (State.DEFERRED, State.DEFERRED_LOCKED) and then is State.ACTIVE
    }
    assert ways == {(State.DEFERRED, Input.DUE)}


@pytest.mark.promise("S6")
def test_a_scheduled_message_ends_under_its_number() -> None:
    ways = {pair[1]: then for pair, then in LIFECYCLE.items() if pair[0] is State.SCHEDULED}
    assert ways == dict.fromkeys((Input.ACTIVATE, Input.CANCEL, Input.PURGE), State.GONE)
