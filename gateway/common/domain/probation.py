"""Decision whether a new version may take over: its behaviour on a share of the traffic, compared with the old version.

Every threshold combines a minimum sample with a percentage: without it, one failed request of one would be 100 %.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar


@dataclass(frozen=True, slots=True)
class Counts:
    """Counters of one version since it was loaded.

    `rejected_runs` failed because of the data of their only request. `infer_ns` is summed over `executions`. `busy`:
    requests wait for it, or are in a run.
    """

    requests: int = 0
    executions: int = 0
    failed_runs: int = 0
    rejected_runs: int = 0
    infer_ns: int = 0
    compared: int = 0
    disagreed: int = 0
    busy: bool = False

    def since(self, earlier: Counts) -> Counts:
        """Return the difference to the counters in `earlier`."""
        return Counts(
            self.requests - earlier.requests,
            self.executions - earlier.executions,
            self.failed_runs - earlier.failed_runs,
            self.rejected_runs - earlier.rejected_runs,
            self.infer_ns - earlier.infer_ns,
            self.compared - earlier.compared,
            self.disagreed - earlier.disagreed,
            self.busy,
        )


@dataclass(frozen=True, slots=True)
class DaemonSnapshot:
    """Snapshot of the daemon: `at_s` is monotonic; `instance` identifies the daemon process.

    `old` is None if no version served before. `hottest_c` and `throttled` are None if the device does not report them.
    """

    at_s: float
    instance: str
    new: Counts
    old: Counts | None = None
    rss_bytes: int = 0
    hottest_c: float | None = None
    throttled: bool | None = None


@dataclass(frozen=True, slots=True)
class Pace:
    """Mean time of a run between two snapshots, in microseconds: of the new version and of the old one."""

    new_us: float
    old_us: float


@dataclass(frozen=True, slots=True)
class ProbationSettings:
    """Settings of `[probation]`: conditions that a new version must meet before it takes over."""

    duration_s: float = 600.0  # time for which it answers its share of the traffic
    share_percent: int = 5  # share of the requests that name no version, answered by the new one during the probation
    disagreed_percent: float = 10.0  # % of compared rows on which it may differ from the old version
    slower_factor: float = 2.0  # highest ratio of its run time to the old version's

    snapshot_every_s: ClassVar[float] = 5.0  # period of the snapshots
    min_requests: ClassVar[int] = 20  # requests that it must answer before percentages and latency are evaluated
    failed_runs_limit: ClassVar[int] = 2  # failed or rejected runs that are tolerated, whatever their share
    failed_percent: ClassVar[float] = 1.0  # % of its runs that may fail, or be rejected beyond the old one's share
    min_snapshots: ClassVar[int] = 5  # pairs of snapshots with runs of both for the median: one outlier counts little
    hang_s: ClassVar[float] = 30.0  # time for which requests may wait without the end of any run
    leak_bytes: ClassVar[int] = 134_217_728  # 128 MiB: memory that the daemon may gain during the probation
    heat_limit_c: ClassVar[float] = 95.0  # highest accepted temperature of a zone, unless it was hotter before


@dataclass(frozen=True, slots=True)
class Judgement:
    """Result of an evaluation. `passed` None: not known yet, evaluate again.

    `evidence` holds the measurements for the fleet's operator.
    """

    passed: bool | None
    reason: str
    evidence: Mapping[str, float | int | str] = field(default_factory=dict)


def pace(before: DaemonSnapshot, after: DaemonSnapshot) -> Pace | None:
    """Return the run times between two snapshots; None if a version had no runs, or there is no old one."""
    if before.old is None or after.old is None:
        return None
    new, old = after.new.since(before.new), after.old.since(before.old)
    return Pace(_run_us(new), _run_us(old)) if new.executions and old.executions else None


def evaluate_probation(  # noqa: PLR0917  two snapshots, the measurements between them, and the limits
    first: DaemonSnapshot,
    last: DaemonSnapshot,
    paces: Sequence[Pace],
    progress_s: float,
    settings: ProbationSettings,
    replayed_rows: int = 0,
) -> Judgement:
    """Evaluate the newest snapshot against the one at the beginning.

    `paces`: run times between any two snapshots so far. `progress_s`: time at which a run of the new version last
    ended, or no request waited for one (monotonic). `replayed_rows`: golden rows that it answered correctly while no
    requests came.
    """
    new = last.new.since(first.new)
    fault = (
        _daemon(first, last, settings)
        or _errors(new, settings)
        or _rejections(new, first, last, settings)
        or _hang(new, last.at_s - progress_s, settings)
        or _disagreement(new, settings)
        or _latency(new, paces, settings)
        or _heat(first, last, settings)
    )
    evidence = {**_evidence(new, paces, first, last), "replayed_rows": replayed_rows}
    if fault:
        return Judgement(False, fault, evidence)
    if last.at_s - first.at_s < settings.duration_s:
        return Judgement(None, "still on probation", evidence)
    if new.requests < settings.min_requests:
        replayed = f"{replayed_rows} golden rows were answered meanwhile" if replayed_rows else "none of them failed"
        return Judgement(True, f"only {new.requests} requests came, too few to judge; {replayed}", evidence)
    return Judgement(True, f"{new.requests} requests answered as they should be", evidence)


def _daemon(first: DaemonSnapshot, last: DaemonSnapshot, settings: ProbationSettings) -> str:
    if first.instance != last.instance:
        return "the daemon restarted during the probation"
    grown = last.rss_bytes - first.rss_bytes
    return f"the daemon grew by {grown / 2**20:.0f} MiB" if grown > settings.leak_bytes else ""


def _errors(new: Counts, settings: ProbationSettings) -> str:
    failed, runs = new.failed_runs, new.executions + new.failed_runs
    if failed <= settings.failed_runs_limit or failed * 100 <= runs * settings.failed_percent:
        return ""
    return f"{failed} of {runs} runs failed, more than {settings.failed_percent:g} %"


def _rejections(new: Counts, first: DaemonSnapshot, last: DaemonSnapshot, settings: ProbationSettings) -> str:
    """Return a fault if the new version rejects a larger share of its requests than the old one does."""
    old = last.old.since(first.old) if first.old and last.old else Counts()
    share, before = _rejected_percent(new), _rejected_percent(old)
    if new.rejected_runs <= settings.failed_runs_limit or share - before <= settings.failed_percent:
        return ""
    found = f"it rejects {share:.1f} % of its runs for their data, the old version {before:.1f} %"
    return f"{found}: more than {settings.failed_percent:g} % more"


def _rejected_percent(counts: Counts) -> float:
    return 100 * counts.rejected_runs / max(1, counts.executions + counts.rejected_runs)


def _hang(new: Counts, idle_s: float, settings: ProbationSettings) -> str:
    return f"requests wait and no run ended for {idle_s:.0f} s" if new.busy and idle_s >= settings.hang_s else ""


def _disagreement(new: Counts, settings: ProbationSettings) -> str:
    if new.compared < settings.min_requests or new.disagreed * 100 <= new.compared * settings.disagreed_percent:
        return ""
    found = f"it differs from the old version on {100 * new.disagreed / new.compared:.1f} % of {new.compared} rows"
    return f"{found}, more than {settings.disagreed_percent:g} %"


def _latency(new: Counts, paces: Sequence[Pace], settings: ProbationSettings) -> str:
    if new.executions < settings.min_requests or len(paces) < settings.min_snapshots:
        return ""
    own_us, before_us = _medians(paces)
    if own_us <= before_us * settings.slower_factor:
        return ""
    found = f"a run takes {own_us:.0f} µs, the old version's {before_us:.0f}"
    return f"{found}: more than {settings.slower_factor:g} times as long"


def _medians(paces: Sequence[Pace]) -> tuple[float, float]:
    from statistics import median  # its fractions and decimals take 4 ms of a start

    return median(pace.new_us for pace in paces), median(pace.old_us for pace in paces)


def _heat(first: DaemonSnapshot, last: DaemonSnapshot, settings: ProbationSettings) -> str:
    if last.throttled and not first.throttled:
        return "the device began to throttle during the probation"
    if last.hottest_c is None or last.hottest_c <= max(settings.heat_limit_c, first.hottest_c or 0.0):
        return ""
    return f"the device is {last.hottest_c:.0f} °C hot, more than {settings.heat_limit_c:g}"


def _run_us(counts: Counts) -> float:
    return counts.infer_ns / max(counts.executions, 1) / 1000


def _evidence(
    new: Counts, paces: Sequence[Pace], first: DaemonSnapshot, last: DaemonSnapshot
) -> dict[str, float | int | str]:
    found: dict[str, float | int | str] = {
        "seconds": round(last.at_s - first.at_s, 1),
        "requests": new.requests,
        "executions": new.executions,
        "failed_runs": new.failed_runs,
        "rejected_runs": new.rejected_runs,
        "compared_rows": new.compared,
        "disagreed_rows": new.disagreed,
        "grown_bytes": last.rss_bytes - first.rss_bytes,
    }
    if paces:
        own_us, before_us = _medians(paces)
        found |= {"run_us": round(own_us, 1), "old_run_us": round(before_us, 1)}
    if last.hottest_c is not None:
        found["hottest_c"] = last.hottest_c
    return found
