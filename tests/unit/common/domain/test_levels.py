"""Levels of verification: what is required, what is chosen, and whether a bare model has rows."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from gateway.common.domain.manifest import LEVELS, ModelManifest, TensorSpec, Variant
from gateway.common.domain.selection import Candidate, choose, joining_obstacle, level_obstacle, required_level, settled
from gateway.common.domain.tensor import Datatype
from gateway.common.domain.verdict import Joining, Measurement, Verdict

ROWS = TensorSpec("x", Datatype.FP32, (-1, 4))
FIXED = TensorSpec("x", Datatype.FP32, (1, 4))
PROVEN = Joining("proved")
BARE = ModelManifest("m", "1", (ROWS,), (ROWS,), ())


def verdict(level: str, p50_us: float = 10.0, **changes: object) -> Verdict:
    cost = Measurement(p50_us, p50_us, p50_us, 0)
    return Verdict(True, "", cost, level=level, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("signed", "released", "configured", "wanted"),
    [
        (False, "", "", "unverified"),
        (False, "proven", "", "unverified"),
        (True, "", "", "proven"),
        (True, "exercised", "", "exercised"),
        (True, "unverified", "", "unverified"),
        (True, "exercised", "proven", "proven"),
        (False, "", "exercised", "exercised"),
        (True, "", "unverified", "unverified"),
    ],
)
def test_the_device_decides_then_the_release_then_whether_it_is_signed(
    signed: bool, released: str, configured: str, wanted: str
) -> None:
    assert required_level(replace(BARE, require=released), signed=signed, configured=configured) == wanted


def test_a_level_below_what_is_required_is_an_obstacle_with_its_remedies() -> None:
    for reached, required in product(LEVELS, LEVELS):
        obstacle = level_obstacle(verdict(reached), required)
        assert bool(obstacle) == (LEVELS.index(reached) < LEVELS.index(required))
        if obstacle:
            assert f"is {reached}, but must be {required} here" in obstacle
            assert all(remedy in obstacle for remedy in ("golden set", f'require = "{reached}"', "[selection] require"))


def test_a_slower_candidate_of_a_higher_level_is_chosen() -> None:
    candidates = [
        Candidate(Variant(level, "onnx", "fp32", ()), "cpu", rank, True, "", verdict=verdict(level, p50_us))
        for rank, (level, p50_us) in enumerate((("exercised", 1.0), ("proven", 50.0), ("proven", 20.0)), 1)
    ]
    chosen = choose(candidates, "latency")
    assert chosen is not None
    assert chosen.rank == 3
    assert choose(candidates[:1], "latency") is candidates[0]


@pytest.mark.parametrize(
    ("manifest", "joining", "batched", "obstacle"),
    [
        (BARE, PROVEN, True, ""),
        (BARE, Joining("proved", "runs contradict it"), False, "runs contradict it"),
        (BARE, Joining("declared", difference="by 2"), True, ""),
        (BARE, Joining(reason="joined answers differ"), False, "joined answers differ"),
        (BARE, None, False, "it was not tried"),
        (replace(BARE, batch=True), Joining(reason="joined answers differ"), True, "joined answers differ"),
        (replace(BARE, batch=False), None, False, "the manifest says that the first dimension does not count rows"),
        (replace(BARE, inputs=(FIXED,)), None, False, "the shapes have no dimension of rows"),
    ],
)
def test_a_file_has_rows_where_that_was_proven_and_a_manifest_where_it_says_so(
    manifest: ModelManifest, joining: Joining | None, batched: bool, obstacle: str
) -> None:
    found = verdict("exercised", joining=joining)
    assert settled(manifest, found).batched == batched
    assert joining_obstacle(manifest, found) == obstacle
