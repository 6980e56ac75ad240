"""Problems of the link: when it counts as complete, what is logged, and their bounds."""

from __future__ import annotations

from gateway.serving.frontends.mqtt.session.health import PROBLEMS_LIMIT, LinkHealth


def test_the_link_is_complete_while_no_problem_is_left() -> None:
    changes: list[int] = []
    health = LinkHealth(10.0, lambda: changes.append(len(health)), {("connection", "main"): "not made yet"})
    health.begin("publication", "a", "refused")
    health.end("connection", "main")
    assert changes == []
    health.end("publication", "a")
    health.end("publication", "a")
    assert changes == [0]
    health.begin("publication", "b", "refused")
    health.begin("publication", "b", "refused again")
    assert list(health) == ["refused again"]
    assert changes == [0, 1]


def test_problems_of_one_kind_end_together() -> None:
    health = LinkHealth(10.0, lambda: None)
    for subject in "abc":
        health.begin("subscription", subject, subject)
    health.begin("connection", "main", "lost")
    health.end_all("subscription")
    assert list(health) == ["lost"]


def test_many_problems_of_one_kind_share_an_entry_and_displace_no_other() -> None:
    health = LinkHealth(10.0, lambda: None)
    for subject in range(3 * PROBLEMS_LIMIT):
        health.begin("publication", str(subject), "refused")
    health.begin("connection", "main", "lost")
    assert len(health) == PROBLEMS_LIMIT + 2
    health.end("connection", "main")
    assert len(health) == PROBLEMS_LIMIT + 1


def test_a_subject_is_logged_once_per_period() -> None:
    health = LinkHealth(10.0, lambda: None)
    due = [health.is_due("publication", "a", now_s) for now_s in (0.0, 9.9, 10.0, 15.0)]
    assert due == [True, False, True, False]
    assert health.is_due("publication", "b", 15.0)
    assert health.is_due("subscription", "a", 15.0)


def test_subjects_that_are_remembered_for_the_log_are_bounded() -> None:
    health = LinkHealth(10.0, lambda: None)
    assert all(health.is_due("publication", str(number), 0.0) for number in range(3 * PROBLEMS_LIMIT))
    assert len(health._logged_s) == PROBLEMS_LIMIT
