"""Sequence numbers, times and schedules (S) through the SDK of JavaScript: sequence.mjs.

What restarts do to them, and numbers that roll over: test_restarts.py.
"""

from __future__ import annotations

import pytest

from tests.amqp.javascript.playing import Play


@pytest.mark.promise("S1")
def test_the_broker_gives_number_and_time_never_the_client(play: Play) -> None:
    play("sequence.theBrokerGivesNumberAndTime")


@pytest.mark.promise("S2")
def test_numbers_rise_by_one_in_the_order_of_acceptance(play: Play) -> None:
    play("sequence.numbersRiseByOne")


@pytest.mark.promise("S2", "P12")
def test_where_partitioned_the_top_16_bits_are_the_partition(play: Play) -> None:
    play("sequence.thePartitionIsInTheTopBits")


@pytest.mark.promise("S2", "B6")
def test_a_topics_number_in_every_subscription_and_a_new_one_where_it_goes_on(play: Play) -> None:
    play("sequence.atTopicsAndWhereItGoesOn")


@pytest.mark.promise("S3", "D9")
def test_what_is_refused_uses_up_no_number(play: Play) -> None:
    play("sequence.whatIsRefusedUsesUpNoNumber")


@pytest.mark.promise("S4")
def test_times_do_not_run_backwards_and_timers_are_not_frozen(play: Play) -> None:
    play("sequence.timesDoNotRunBackwards")


@pytest.mark.promise("S5", "S7")
def test_scheduled_by_property_and_by_call(play: Play) -> None:
    play("sequence.byPropertyAndByCall")


@pytest.mark.promise("S5")
def test_cancel_deletes_several_all_or_none(play: Play) -> None:
    play("sequence.cancel")


@pytest.mark.promise("S5", "S7", "B3")
def test_a_scheduled_message_waits_at_the_topic(play: Play) -> None:
    play("sequence.atTheTopic")


@pytest.mark.promise("S6", "S7", "B2")
def test_at_its_time_it_is_enqueued_as_if_sent_now(play: Play) -> None:
    play("sequence.asIfSentNow")
