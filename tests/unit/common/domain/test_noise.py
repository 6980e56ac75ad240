"""Noise of a machine in measurements: what disturbs them, estimates for a quiet machine, and verdicts to keep."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.common.domain.noise import Conditions, NoiseSnapshot, conditions, disturbance, quiet_ns, read_steal_ns
from gateway.common.domain.verdict import Joining, Measurement, Verdict, read_verdict, remeasured, verdict_document

MS, S = 1_000_000, 1_000_000_000
START = NoiseSnapshot()


def test_steal_is_the_eighth_counter_of_all_processors() -> None:
    assert read_steal_ns("cpu  1 2 3 4 5 6 7 8 9 10\ncpu0 1 2 3 4 5 6 7 99 9 10\n", 100) == 80 * MS
    assert [read_steal_ns(text, 100) for text in ("", "cpu 1 2 3", "cpu  1 2 3 4 5 6 7\n")] == [0, 0, 0]


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (Conditions(), ""),
        (Conditions(load=1.9, steal=0.04, waited=0.09, switches=1000), ""),
        (Conditions(load=2.0), "load 2, steal 0%, waited 0% of a run for a processor"),
        (Conditions(steal=0.05), "load 0, steal 5%, waited 0% of a run for a processor"),
        (Conditions(load=0.5, waited=0.8), "load 0.5, steal 0%, waited 80% of a run for a processor"),
    ],
)
def test_figures_are_disturbed_by_load_by_steal_and_by_waits(found: Conditions, words: str) -> None:
    assert disturbance(found, cores=2) == words


def test_conditions_are_differences_and_means() -> None:
    last = NoiseSnapshot(at_ns=S, steal_ns=100 * MS, waited_ns=1, switches=7, runnable=9)
    assert conditions(START, last, 0.25, cores=2, mhz=1500) == Conditions(4.5, 0.05, 0.25, 7, 1500)


def test_waits_for_a_processor_do_not_count_and_those_of_the_model_do() -> None:
    busy = quiet_ns([36 * MS] * 5, [7 * MS] * 5, START, replace(START, waited_ns=5 * 29 * MS))
    stolen = quiet_ns([36 * MS] * 5, [7 * MS] * 5, START, replace(START, steal_ns=5 * 29 * MS))
    asleep = quiet_ns([36 * MS] * 5, [7 * MS] * 5, START, START)
    assert (busy, stolen, asleep) == (7 * MS, 7 * MS, 36 * MS)


RUNS = st.lists(st.tuples(st.integers(1, S), st.integers(0, S)), min_size=1, max_size=20)


@given(RUNS, st.integers(0, 10**12))
def test_load_alone_never_worsens_a_figure(runs: list[tuple[int, int]], waited_ns: int) -> None:
    cpus, waits = [cpu for cpu, _ in runs], [wait for _, wait in runs]
    quiet = quiet_ns(cpus, cpus, START, START)
    loaded = [cpu + wait for cpu, wait in runs]
    assert quiet_ns(loaded, cpus, START, replace(START, waited_ns=sum(waits))) <= quiet
    assert 0 <= quiet_ns(loaded, cpus, START, replace(START, waited_ns=waited_ns)) <= sorted(loaded)[len(runs) // 2]


JOINED = Joining("proved", rows=8)
BUSY = Measurement(36_000.0, 40_000.0, 7400.0, 0, 687.0, quiet_us=7400.0, quiet_row_us=60.0, disturbed="load 9")
OLD = Verdict(True, "passed", BUSY, level="proven", joining=JOINED)
QUIET = replace(OLD, measured=Measurement(7300.0, 7500.0, 7300.0, 0, 60.0, 7300.0, 60.0), joining=Joining())


@pytest.mark.parametrize(
    ("new", "kept"),
    [
        (QUIET, QUIET),
        (replace(OLD, measured=replace(BUSY, quiet_us=7000.0)), replace(OLD, measured=replace(BUSY, quiet_us=7000.0))),
        (replace(OLD, measured=replace(BUSY, quiet_us=8000.0)), OLD),
        (replace(OLD, measured=replace(BUSY, quiet_us=7000.0), joining=Joining()), OLD),
        (Verdict(False, "took longer than 60 s"), OLD),
        (Verdict(False, "died by SIGKILL", transient=True), OLD),
        (Verdict(True, "opens only"), OLD),
    ],
)
def test_another_trial_counts_if_it_was_undisturbed_or_better_and_never_if_it_failed(
    new: Verdict, kept: Verdict
) -> None:
    assert kept.measured
    assert remeasured(OLD, new, 5.0) == replace(kept, measured=replace(kept.measured, again_s=5.0))


def test_people_are_told() -> None:
    assert BUSY.remark == "measured while the machine was busy (load 9); the gateway measures it again when it is idle"
    again = replace(BUSY, again_s=1_800_000_000.0)
    assert again.remark == "measured while the machine was busy (load 9); measured again at 2027-01-15T08:00:00+00:00"
    assert replace(again, disturbed="").remark == "measured again at 2027-01-15T08:00:00+00:00"
    assert QUIET.measured
    assert QUIET.measured.remark == ""


def test_verdicts_of_earlier_versions_are_read() -> None:
    document = verdict_document(OLD)
    assert read_verdict(document) == OLD
    document["measured"] = {"p50_us": 1.0, "p99_us": 2.0, "cpu_us": 1.0, "memory_bytes": 0, "row_us": 0.5}
    measured = read_verdict(document).measured
    assert measured
    assert (measured.run_us, measured.batch_row_us, measured.remark) == (1.0, 0.5, "")
