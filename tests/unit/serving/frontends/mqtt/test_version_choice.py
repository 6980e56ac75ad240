"""Which protocol version the next connection uses, for each row of the table."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.serving.frontends.mqtt.session.version_choice import (
    BY_SETTING,
    NEXT,
    ConnectOutcome,
    VersionChoice,
    VersionStage,
)

ACCEPTED, CLOSED, UNANSWERED, UNSUPPORTED, REFUSED, LOST = ConnectOutcome
AUTO = VersionChoice(VersionStage.FIRST)


def versions(*outcomes: ConnectOutcome) -> str:
    """Return the version of each attempt of which these are the outcomes, and of the next one: 5 or 4 (3.1.1)."""
    choice, tried = AUTO, ""
    for outcome in outcomes:
        tried += "5" if choice.version_5 else "4"
        choice = choice.after(outcome)
    return tried + ("5" if choice.version_5 else "4")


@pytest.mark.parametrize(
    ("outcomes", "tried"),
    [
        ((ACCEPTED, LOST, CLOSED, CLOSED, CLOSED), "555555"),  # one success with MQTT 5 decides
        ((ACCEPTED, LOST, UNSUPPORTED), "5555"),
        ((CLOSED, CLOSED, ACCEPTED, ACCEPTED), "55455"),  # a proxy closed, then the broker is back
        ((CLOSED, CLOSED, CLOSED, CLOSED, CLOSED), "554554"),
        ((CLOSED, CLOSED, ACCEPTED, CLOSED, ACCEPTED), "554544"),  # a broker that closes MQTT 5
        ((CLOSED, CLOSED, ACCEPTED, CLOSED, ACCEPTED, LOST, ACCEPTED), "55454455"),  # and was updated
        ((CLOSED, CLOSED, ACCEPTED, CLOSED, CLOSED), "554545"),
        (
            (CLOSED, CLOSED, ACCEPTED, UNSUPPORTED, ACCEPTED, LOST),
            "5545445",
        ),  # after each end, it may have been updated
        (
            (UNSUPPORTED, ACCEPTED, LOST, CLOSED, REFUSED),
            "544555",
        ),  # refused by name: settled until the end of the connection
        ((UNSUPPORTED, UNSUPPORTED), "545"),
        ((REFUSED, CLOSED, REFUSED, CLOSED, CLOSED), "555554"),  # a wrong password says that the broker speaks MQTT 5
        ((CLOSED, CLOSED, REFUSED), "5545"),
        ((UNANSWERED, ACCEPTED, UNANSWERED, ACCEPTED), "54544"),  # a broker of 3.1.1 that waits for more bytes
        ((UNANSWERED, ACCEPTED, ACCEPTED, LOST, UNANSWERED), "545555"),  # a slow broker
        ((UNANSWERED, UNANSWERED, UNANSWERED, ACCEPTED, CLOSED), "545454"),
    ],
)
def test_versions_that_are_tried(outcomes: tuple[ConnectOutcome, ...], tried: str) -> None:
    assert versions(*outcomes) == tried


@pytest.mark.parametrize(("stage", "outcome"), NEXT)
def test_each_row_of_the_table_changes_the_stage(stage: VersionStage, outcome: ConnectOutcome) -> None:
    assert VersionChoice(stage).after(outcome).stage is not stage


@given(st.lists(st.sampled_from(ConnectOutcome)))
def test_after_one_success_with_mqtt_5_no_other_version_is_tried(outcomes: list[ConnectOutcome]) -> None:
    choice = AUTO.after(ACCEPTED)
    for outcome in outcomes:
        choice = choice.after(outcome)
        assert choice.version_5


@given(st.lists(st.sampled_from(ConnectOutcome)), st.sampled_from(["5", "3.1.1"]))
def test_a_setting_decides_for_good(outcomes: list[ConnectOutcome], protocol: str) -> None:
    choice = VersionChoice(BY_SETTING[protocol])
    for outcome in outcomes:
        choice = choice.after(outcome)
        assert choice.version_5 == (protocol == "5")
        assert choice.serves


@given(st.lists(st.sampled_from(ConnectOutcome)))
def test_a_guess_is_never_served_and_checked_at_once(outcomes: list[ConnectOutcome]) -> None:
    choice = AUTO
    for outcome in outcomes:
        before, choice = choice, choice.after(outcome)
        if outcome is ACCEPTED and not before.serves:
            assert choice.version_5
            assert choice.tries_at_once(before)
