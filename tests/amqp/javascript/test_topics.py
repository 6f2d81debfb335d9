"""Topics, rules and forwarding (B3, B6) through the SDK of JavaScript: topics.mjs."""

from __future__ import annotations

import pytest

from tests.amqp.javascript.playing import Play


@pytest.mark.promise("B3", "P12")
def test_filters_and_actions(play: Play) -> None:
    play("topics.filtersAndActions")


@pytest.mark.promise("B3")
def test_rules_are_added_changed_and_removed(play: Play) -> None:
    play("topics.rulesAreChanged")


@pytest.mark.promise("B3", "P12")
def test_rules_are_listed_by_name_with_the_right_to_listen(play: Play) -> None:
    play("topics.rulesAreListedByName")


@pytest.mark.promise("B3")
def test_what_one_subscription_does_the_others_do_not_notice(play: Play) -> None:
    play("topics.subscriptionsDoNotNoticeEachOther")


@pytest.mark.promise("B6")
def test_four_hops_and_the_fifth_is_a_dead_letter(play: Play) -> None:
    play("topics.fourHops")


@pytest.mark.promise("B6")
def test_dead_letters_go_on_with_their_reasons(play: Play) -> None:
    play("topics.deadLettersGoOn")
