"""Two journeys of real models whose packages are small; `make test-journeys` takes all of them."""

from dataclasses import replace

import pytest

from tests.simulators.workshop_tools import FOLDER
from tests.world.answers import Judgement
from tests.world.journeys.record import Ask, Bound
from tests.world.journeys.steps import graded, travel, unreached
from tests.world.journeys.tables import JOURNEYS

BY_NAME = {each.name: each for each in JOURNEYS}


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("name", "task", "count"),
    [
        ("histogram-boosting", "tabular-classification", 200),
        pytest.param("py3langid", "tabular-classification", 48, marks=pytest.mark.long),
    ],
)
def test_a_model_answers_as_its_package_bare_and_described(name, task, count, tmp_path):
    journey = replace(BY_NAME[name], calibration=None)
    outcome = travel(journey, FOLDER, tmp_path)
    assert outcome.problems == []
    assert outcome.task == task
    assert (outcome.results.asked, outcome.results.within) == (count, count)
    assert outcome.bare[Judgement.WRONG] == 0
    assert sum(outcome.bare.values()) == count


def test_an_answer_that_is_not_the_packages_is_a_problem():
    journey = BY_NAME["histogram-boosting"]
    results = [{"label": "0", "score": 0.9}, {"label": "1", "score": 0.8}]
    asks = [Ask({}, ("0", 0.9)), Ask({}, ("0", 0.8))]
    grade = graded(journey, results, asks, Bound(1e-5))
    assert (grade.asked, grade.within, grade.reached) == (2, 1, False)
    assert unreached({"models new": grade}) == [
        "models new: 1 of 2 answers are within 1e-05 of the package's, 100% must be"
    ]
    assert unreached({"models new": replace(grade, bound=Bound(1e-5, 0.5))}) == []
