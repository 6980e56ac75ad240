"""The ledger of open versions: reservations, the order in which versions are closed, costs, times of the day."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.common.domain.errors import ConfigurationError
from gateway.common.domain.selection import Candidate
from gateway.common.domain.verdict import Measurement, Verdict
from gateway.serving.config import parse_config
from gateway.serving.engine.residency import MIB, Ledger, Resident, ResidentCost, due, expected_cost, revised_cost
from tests.simulators.engine_rig import variant


def cost(mib: float, reload_s: float = 1.0, **others: float) -> ResidentCost:
    return ResidentCost({"cpu": int(mib * MIB), **{kind: int(own * MIB) for kind, own in others.items()}}, reload_s)


def ledger(*mibs: float, budget: float = 10, **changes: object) -> Ledger:
    """Return a ledger with residents of these sizes, numbered from 0; number n was used at n."""
    made = Ledger({"cpu": int(budget * MIB)})
    for number, mib in enumerate(mibs):
        made.add(Resident(f"m{number}", "1", cost(mib), used_ns=number, **changes))  # type: ignore[arg-type]
    return made


def idle(of: Ledger) -> dict[int, int]:
    return {number: each.used_ns for number, each in of.residents.items()}


def test_a_reservation_counts_before_it_is_open() -> None:
    made = ledger(4)
    assert made.lacking(cost(6)) == {}
    made.add(Resident("next", "1", cost(6)))
    assert made.lacking(cost(1)) == {"cpu": MIB}, "a second load sees what the first one reserved"


def test_without_a_budget_everything_fits() -> None:
    assert Ledger({}).lacking(cost(1e6)) == {}
    assert Ledger({}).excess(cost(1e6)) == ""


def test_what_never_fits_is_refused_with_the_figures() -> None:
    words = ledger(budget=10).excess(cost(12))
    assert words == (
        "takes 12 MiB of memory, more than the 10 MiB of [residency] memory_mib; "
        "raise that, or take a smaller variant (EG-315)"
    )
    assert "of the memory of nvidia-gpu" in Ledger({"nvidia-gpu": MIB}).excess(
        ResidentCost({"cpu": 1, "nvidia-gpu": 2 * MIB})
    )


def test_the_least_recently_used_goes_first_among_equals() -> None:
    made = ledger(4, 4)
    assert made.victims(cost(4), idle(made)) == (0,)
    assert made.victims(cost(4), {0: 9, 1: 1}) == (1,)


def test_what_answers_is_pinned_or_closing_is_never_closed() -> None:
    made = ledger(4, 4, pinned=True)
    assert made.victims(cost(4), idle(made)) is None
    made = ledger(4, 4)
    assert made.victims(cost(4), {}) is None, "none is idle"
    made.close(0)
    assert made.victims(cost(4), idle(made)) == (), "what is being closed makes the room"


def test_a_larger_number_of_priority_goes_first() -> None:
    made = ledger(4)
    made.add(Resident("later", "1", cost(4), priority=2, used_ns=99))
    assert made.victims(cost(4), idle(made)) == (1,)


def test_what_is_cheap_to_open_again_goes_before_what_is_expensive() -> None:
    made = Ledger({"cpu": 10 * MIB})
    made.add(Resident("slow", "1", cost(4, reload_s=9.0), used_ns=1))
    made.add(Resident("quick", "1", cost(4, reload_s=0.1), used_ns=2))
    assert made.victims(cost(4), idle(made)) == (1,)
    made.remove(1)
    made.add(Resident("other", "1", cost(4, reload_s=0.1), used_ns=3))
    for number in range(2, 200):  # each eviction makes what stays relatively older: nothing stays for ever
        if made.victims(cost(4), idle(made)) == (0,):
            break
        made.remove(number)
        made.add(Resident("other", "1", cost(4, reload_s=0.1), used_ns=number + 2))
    else:
        pytest.fail("the expensive one was never closed although nobody uses it")


def test_no_version_is_closed_that_a_later_one_makes_needless() -> None:
    made = ledger(1, 9)
    assert made.victims(cost(9), idle(made)) == (1,)


def test_each_budget_must_have_room() -> None:
    made = Ledger({"cpu": 10 * MIB, "nvidia-gpu": 4 * MIB})
    made.add(Resident("cpu", "1", cost(2), used_ns=1))
    made.add(Resident("gpu", "1", ResidentCost({"cpu": MIB, "nvidia-gpu": 3 * MIB}, 9.0), used_ns=2))
    wanted = ResidentCost({"cpu": MIB, "nvidia-gpu": 2 * MIB})
    assert made.lacking(wanted) == {"nvidia-gpu": MIB}
    assert made.victims(wanted, idle(made)) == (1,), "the other one takes nothing of that accelerator"


@given(
    st.lists(st.tuples(st.integers(1, 9), st.booleans(), st.booleans(), st.integers(1, 3)), max_size=12),
    st.integers(1, 20),
)
def test_what_is_closed_makes_room_and_nothing_of_it_is_needless(
    residents: list[tuple[int, bool, bool, int]], mib: int
) -> None:
    made = Ledger({"cpu": 20 * MIB})
    for number, (own, pinned, _, priority) in enumerate(residents):
        made.add(Resident(str(number), "1", cost(own), priority, pinned, number))
    able = {number: number for number, (_, pinned, busy, _) in enumerate(residents) if not busy}
    closable = [number for number in able if not residents[number][1]]
    victims = made.victims(cost(mib), able)
    lack = sum(own for own, *_ in residents) + mib - 20
    if victims is None:
        assert lack > sum(residents[number][0] for number in closable)
        return
    freed = [residents[number][0] for number in victims]
    assert set(victims) <= set(closable)
    assert sum(freed) >= lack
    assert all(sum(freed) - own < lack for own in freed)


def test_the_cost_is_what_the_trial_measured_until_the_version_was_opened() -> None:
    measured = Verdict(True, "", Measurement(1.0, 1.0, 1.0, 50 * MIB))
    candidate = Candidate(variant("a"), "cpu", 1, True, "", verdict=measured)
    first = expected_cost(candidate, {})
    assert expected_cost(candidate, {"cpu": 40 * MIB}).nbytes == {"cpu": 40 * MIB}, "an estimate refuses nothing"
    assert expected_cost(candidate, {}, 20 * MIB).nbytes == {"cpu": 30 * MIB}, "what a trial had besides is known"
    assert first.nbytes == {"cpu": 50 * MIB}
    assert not first.measured
    assert revised_cost(first, candidate, 30 * MIB, 2.0, alone=True).nbytes == {"cpu": 30 * MIB}
    assert revised_cost(first, candidate, 30 * MIB, 2.0, alone=False).nbytes == {"cpu": 50 * MIB}
    assert revised_cost(first, candidate, 70 * MIB, 2.0, alone=False).nbytes == {"cpu": 70 * MIB}
    assert revised_cost(first, candidate, -9, 2.0, alone=True).nbytes == {"cpu": 1}, "its file has one byte"


def test_on_an_accelerator_its_files_stand_for_its_memory() -> None:
    candidate = Candidate(variant("a"), "nvidia-gpu", 1, True, "")
    assert expected_cost(candidate, {}).nbytes == {"cpu": 1, "nvidia-gpu": 1}


@pytest.mark.parametrize(
    ("before", "now", "is_due"),
    [
        ("07:29", "07:30", True),
        ("07:30", "07:31", False),
        ("07:30", "07:30", False),
        ("07:20", "08:00", True),
        ("23:59", "00:00", False),
        ("23:00", "07:30", True),
        ("07:31", "07:29", False),  # the clock was set back
    ],
)
def test_a_time_of_the_day_comes_once(before: str, now: str, is_due: bool) -> None:
    assert due(("07:30",), before, now) is is_due


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[[residency.model]]\nmodel = "a"\nwarm_at = ["7:30"]', 'local times such as "07:30"'),
        ('[[residency.model]]\nmodel = "a"\npin = true\nidle_s = 5.0', "contradicts pin"),
        ('[[residency.model]]\nmodel = "a"\n[[residency.model]]\nmodel = "a"', "names 'a' twice"),
        ('[[residency.accelerator]]\nkind = "gpu"\nmemory_mib = 1', "must be one of"),
        ('[[residency.cache]]\nmodel = "a"\nmib = 0', "must be more than 0"),
    ],
)
def test_settings_that_mean_nothing_are_refused(text: str, words: str) -> None:
    with pytest.raises(ConfigurationError, match="residency") as error:
        parse_config(text, "")
    assert words in str(error.value)


def test_what_does_not_close_keeps_its_bytes_and_another_one_makes_the_room() -> None:
    made = ledger(4, 4)
    made.close(0)
    made.overdue()
    assert made.used("cpu") == 8 * MIB
    assert made.victims(cost(4), idle(made)) == (1,)
    made.close(1)
    assert made.victims(cost(4), idle(made)) == (), "the second one is not late"
    assert made.victims(cost(8), idle(made)) is None
