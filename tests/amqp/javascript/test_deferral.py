"""Deferral (L) through the SDK of JavaScript: deferral.mjs."""

from __future__ import annotations

import pytest

from tests.amqp.javascript.playing import Play


@pytest.mark.promise("L1", "L2", "L3")
def test_a_deferred_message_is_set_aside(play: Play) -> None:
    play("deferral.setAside")


@pytest.mark.promise("L2")
def test_they_are_received_by_number_all_or_none(play: Play) -> None:
    play("deferral.byNumberAllOrNone")


@pytest.mark.promise("L2", "B1")
def test_given_back_in_any_way_it_stays_deferred(play: Play) -> None:
    play("deferral.itStaysDeferred")


@pytest.mark.promise("L2", "B1")
def test_settled_in_any_way_its_properties_can_change(play: Play) -> None:
    play("deferral.deadLetteredOrCompletedWithProperties")


@pytest.mark.promise("L2", "B4")
def test_in_a_session_its_holder_receives_deferred_messages(play: Play) -> None:
    play("deferral.inASession")


@pytest.mark.promise("L4", "B2")
def test_deferral_does_not_touch_expiry(play: Play) -> None:
    play("deferral.expiryGoesOn")


@pytest.mark.promise("L5")
def test_deferred_for_a_while_it_comes_back_at_its_place(play: Play) -> None:
    play("deferral.forAWhile")


@pytest.mark.promise("L5", "S5")
def test_a_scheduled_message_that_carries_the_number_works_as_well(play: Play) -> None:
    play("deferral.aScheduledMessageThatCarriesTheNumber")
