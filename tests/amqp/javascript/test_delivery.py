"""Locks, expiry, sessions and pauses (B) through the SDK of JavaScript: delivery.mjs."""

from __future__ import annotations

import pytest

from tests.amqp.javascript.playing import Play


@pytest.mark.promise("B1")
def test_a_locked_message_is_nobody_elses_until_it_is_settled(play: Play) -> None:
    play("delivery.lockedMessages")


@pytest.mark.promise("B1")
def test_a_lost_lock_settles_nothing(play: Play) -> None:
    play("delivery.everySettlementNeedsItsLock")


@pytest.mark.promise("B1")
def test_the_last_delivery_allowed_dead_letters(play: Play) -> None:
    play("delivery.theLastDeliveryAllowed")


@pytest.mark.promise("B1", "B2")
def test_a_receiver_dead_letters_with_its_reason(play: Play) -> None:
    play("delivery.deadLettersAreASubQueue")


@pytest.mark.promise("B2")
def test_what_could_not_be_forwarded_are_not_the_dead_letters(play: Play) -> None:
    play("delivery.transferredDeadLetters")


def test_rights_are_asked_for_by_every_link(play: Play) -> None:
    play("delivery.whoeverIsNotAllowed")


@pytest.mark.promise("B1")
def test_receive_and_delete_and_receivers_that_wait(play: Play) -> None:
    play("delivery.receiveAndDelete")


@pytest.mark.promise("B2")
def test_the_smaller_time_to_live_counts(play: Play) -> None:
    play("delivery.theSmallerTimeToLiveCounts")


@pytest.mark.promise("B2")
def test_no_expiry_while_held_and_dead_letters_do_not_expire(play: Play) -> None:
    play("delivery.noExpiryWhileHeld")


@pytest.mark.promise("B4")
def test_a_session_has_one_holder_and_gives_its_messages_in_order(play: Play) -> None:
    play("delivery.aSessionHasOneHolder")


@pytest.mark.promise("B4")
def test_the_state_of_a_session_is_kept_without_messages(play: Play) -> None:
    play("delivery.sessionState")


@pytest.mark.promise("B4")
def test_sessions_are_used_by_their_own_receivers(play: Play) -> None:
    play("delivery.sessionsAreUsedByTheirOwnReceivers")


@pytest.mark.promise("B7")
def test_an_idle_entity_is_deleted(play: Play) -> None:
    play("delivery.anIdleEntityIsDeleted")


@pytest.mark.promise("B7")
def test_quotas_and_sizes(play: Play) -> None:
    play("delivery.quotasAndSizes")


@pytest.mark.promise("B7")
def test_a_paused_entity(play: Play) -> None:
    play("delivery.paused")


@pytest.mark.promise("B7")
def test_a_paused_topic_and_a_paused_subscription(play: Play) -> None:
    play("delivery.pausedTopics")
