"""Choice of the variant that serves: the ladder filters and breaks ties, trials gate, the objective decides."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.common.domain.installation import HERE
from gateway.common.domain.inventory import Accelerator, Board, Cpu, Inventory, Rung
from gateway.common.domain.profile import Budget, DeviceMatch, LadderStep, Profile
from gateway.common.domain.selection import (
    OBJECTIVES,
    Candidate,
    Site,
    argument,
    choose,
    climb_trials,
    plan,
    untried,
    with_verdict,
)
from gateway.common.domain.verdict import Measurement, PluginStatus, RuntimeStatus, Verdict
from tests.simulators.engine_rig import manifest, measured, variant

LADDER = (
    LadderStep("intel-gpu", "openvino", ("fp16", "int8"), {"hint": "latency"}),
    LadderStep("cpu", "openvino", ("int8", "fp16")),
    LadderStep("cpu", "onnx", ("int8", "fp32")),
)
READY = {name: RuntimeStatus(name, "1") for name in ("openvino", "onnx", "reference")}
GPU = Accelerator("intel-gpu", "Iris", "/dev/dri/renderD128", (Rung("bus", True), Rung("library", None)))
BROKEN = dataclasses.replace(GPU, rungs=(Rung("bus", True), Rung("permission", False, "not in group render", "add it")))


def site(
    *accelerators: Accelerator, features: tuple[str, ...] = (), runtimes: object = READY, ladder: object = LADDER
) -> Site:
    inventory = Inventory("x86_64", Board(), Cpu(features=features), None, accelerators)
    profile = Profile("p", "", 0, DeviceMatch(), Budget(), ladder)  # type: ignore[arg-type]
    return Site(inventory, profile, runtimes, threads=3, cache_dir="/c")  # type: ignore[arg-type]


def model(*variants: object, **changes: object) -> object:
    return dataclasses.replace(manifest(), variants=variants, **changes)  # type: ignore[arg-type]


OV16 = variant("ov16", runtime="openvino", precision="fp16", accelerators=("cpu", "intel-gpu"))
OV8 = variant("ov8", runtime="openvino", precision="int8", accelerators=("cpu", "intel-gpu"))
ORT = variant("ort", runtime="onnx", precision="fp32")
ODD = variant("odd", runtime="litert", precision="fp32")


def planned(*variants: object, on: Site | None = None, **changes: object) -> tuple[Candidate, ...]:
    return plan(model(*variants, **changes), on or site(GPU))  # type: ignore[arg-type]


def test_the_ladder_orders_variants_on_every_accelerator() -> None:
    found = planned(ORT, OV8, ODD, OV16)
    assert [(c.variant.name, c.accelerator, c.rank) for c in found] == [
        ("ov16", "intel-gpu", 1),
        ("ov8", "intel-gpu", 2),
        ("ov8", "cpu", 3),
        ("ov16", "cpu", 4),
        ("ort", "cpu", 5),
        ("odd", None, None),
    ]
    assert [c.eligible for c in found] == [True] * 5 + [False]
    assert found[-1].reason == "profile p has no step for litert fp32 on cpu"
    (misspelt,) = planned(dataclasses.replace(OV8, accelerators=("igpu",)))
    assert misspelt.reason.endswith("on igpu; there is no accelerator 'igpu'; did you mean \"intel-gpu\"?")
    assert found[0].reason == "not tried on this device yet"


def test_a_candidate_carries_what_its_session_may_use() -> None:
    gpu, *_ = planned(OV16)
    assert (gpu.budget.threads, gpu.budget.accelerator) == (3, "intel-gpu")
    assert (gpu.budget.options, gpu.device) == ({"hint": "latency"}, GPU)


def test_what_is_compiled_lies_apart_for_each_content() -> None:
    """Two versions of one graph differ in nothing but their weights."""
    other = dataclasses.replace(
        OV16, artifacts=tuple(dataclasses.replace(one, sha256="ab" * 32) for one in OV16.artifacts)
    )
    first, second = (next(iter(planned(one))).budget.cache_dir for one in (OV16, other))
    assert first == f"/c/{OV16.content}" != second
    assert [c.budget.cache_dir for c in planned(OV16) if c.accelerator == "cpu"] == [""]


def test_equal_steps_go_to_the_more_accurate_then_to_the_manifests_order() -> None:
    names = {"a": 0.9, "b": 0.95, "c": 0.95}
    same = [variant(name, runtime="onnx", accuracy=accuracy) for name, accuracy in names.items()]
    assert [c.variant.name for c in planned(*same)] == ["b", "c", "a"]


@pytest.mark.parametrize(
    ("accelerators", "reason"),
    [
        ((), "this device has no intel-gpu"),
        ((BROKEN,), "intel-gpu at /dev/dri/renderD128: permission: not in group render; add it"),
    ],
)
def test_an_absent_or_broken_accelerator_leaves_the_processor(
    accelerators: tuple[Accelerator, ...], reason: str
) -> None:
    gpu, cpu = planned(OV16, on=site(*accelerators))
    assert (gpu.eligible, gpu.reason) == (False, reason)
    assert (cpu.accelerator, cpu.eligible) == ("cpu", True)


def test_a_second_working_card_is_used_where_the_first_is_broken() -> None:
    assert planned(OV16, on=site(BROKEN, GPU))[0].device == GPU


def test_needs_are_cpu_features() -> None:
    needy = dataclasses.replace(ORT, needs=("avx2", "avx512_vnni"))
    (without,) = planned(needy, on=site(features=("avx2",)))
    assert (without.eligible, without.reason) == (False, "needs the CPU feature avx512_vnni, which this CPU lacks")
    assert planned(needy, on=site(features=("avx2", "avx512_vnni")))[0].eligible


def test_a_runtime_that_cannot_be_used_says_so() -> None:
    statuses = {"onnx": RuntimeStatus("onnx", None, "not installed", "pip install x[onnx]")}
    ort, ov = planned(ORT, OV8, on=site(runtimes=statuses, ladder=(LADDER[2], LADDER[1])))
    assert (ort.eligible, ort.reason) == (False, "runtime onnx: not installed; pip install x[onnx]")
    assert (ov.eligible, ov.reason) == (False, "runtime openvino: unknown runtime")


def test_another_machines_tree_asks_no_runtime() -> None:
    assert planned(ORT, on=site(runtimes=None))[0].eligible


@pytest.mark.parametrize(
    ("accuracy", "eligible"), [(0.981, True), (0.98, True), (0.9799, False), (None, True), (0.999, True)]
)
def test_what_loses_too_much_accuracy_is_out_before_it_is_tried(accuracy: float | None, eligible: bool) -> None:
    exact = variant("exact", runtime="onnx", accuracy=0.99)
    quantised = variant("q", runtime="onnx", precision="int8", accuracy=accuracy)
    found = {c.variant.name: c for c in planned(exact, quantised)}
    assert found["exact"].eligible
    assert found["q"].eligible is eligible
    if not eligible:
        assert "against exact, more than max_accuracy_loss 0.01" in found["q"].reason


def test_accuracy_measured_here_counts_too() -> None:
    exact = variant("exact", runtime="onnx", accuracy=0.99)
    of = model(exact)
    (candidate,) = plan(of, site())  # type: ignore[arg-type]
    assert not with_verdict(candidate, Verdict(True, "ok", accuracy_loss=0.02), of).eligible  # type: ignore[arg-type]
    assert with_verdict(candidate, Verdict(True, "ok", accuracy_loss=0.005), of).passed  # type: ignore[arg-type]


def test_a_variant_that_took_more_memory_than_the_profile_allows_is_out() -> None:
    of = model(variant("exact", runtime="onnx"))
    (candidate,) = plan(of, site())  # type: ignore[arg-type]
    bounded = dataclasses.replace(candidate, budget=dataclasses.replace(candidate.budget, memory_bytes=64 * 2**20))
    for taken, proven in ((64 * 2**20, True), (65 * 2**20, False)):
        verdict = Verdict(True, "ok", Measurement(1.0, 1.0, 1.0, taken))
        assert with_verdict(bounded, verdict, of).passed is proven  # type: ignore[arg-type]
        assert with_verdict(candidate, verdict, of).passed  # type: ignore[arg-type]
    out = with_verdict(bounded, Verdict(True, "ok", Measurement(1.0, 1.0, 1.0, 65 * 2**20)), of)  # type: ignore[arg-type]
    assert out.reason == "takes 65 MiB of memory, more than the 64 MiB that the profile allows"


def test_a_failed_trial_makes_ineligible_and_an_ineligible_candidate_stays_so() -> None:
    of = model(ORT)
    (candidate,) = plan(of, site())  # type: ignore[arg-type]
    failed = with_verdict(candidate, Verdict(False, "died by SIGSEGV"), of)  # type: ignore[arg-type]
    assert (failed.eligible, failed.passed, failed.reason) == (False, False, "died by SIGSEGV")
    assert with_verdict(failed, Verdict(True, "ok"), of) is failed  # type: ignore[arg-type]
    assert with_verdict(candidate, None, of) is candidate  # type: ignore[arg-type]
    assert untried((candidate, failed)) == (candidate,)


def candidates(*verdicts: Verdict | None) -> tuple[Candidate, ...]:
    """Return one candidate per verdict, in ladder order."""
    of = model(*[variant(str(index), runtime="onnx") for index in range(len(verdicts))])
    found = plan(of, site())  # type: ignore[arg-type]
    return tuple(with_verdict(c, v, of) for c, v in zip(found, verdicts, strict=True))  # type: ignore[arg-type]


def chosen(*verdicts: Verdict | None, objective: str = "latency") -> int | None:
    found = choose(candidates(*verdicts), objective)
    return None if found is None else int(found.variant.name)


@pytest.mark.parametrize(
    ("costs", "expected"),
    [
        ([100.0], 0),
        ([100.0, 91.0], 0),
        ([100.0, 90.0], 1),
        ([100.0, 89.0], 1),
        ([200.0, 100.0, 95.0], 1),
        ([100.0, 95.0, 86.0], 1),
        ([0.0, 0.0], 0),
        ([1.0, 0.0], 1),
    ],
)
def test_a_lead_under_a_tenth_goes_to_ladder_order(costs: list[float], expected: int) -> None:
    assert chosen(*map(measured, costs)) == expected


@given(st.lists(st.floats(0.1, 1e6), min_size=1, max_size=6))
def test_the_choice_is_never_a_ninth_slower_than_the_best_nor_later_than_need_be(costs: list[float]) -> None:
    found = chosen(*map(measured, costs))
    assert found is not None
    assert costs[found] * 0.9 <= min(costs) * (1 + 1e-9)
    assert all(cost * 0.9 >= min(costs) * (1 - 1e-9) for cost in costs[:found])


def test_what_failed_or_was_not_tried_is_never_chosen() -> None:
    assert chosen() is None
    assert chosen(None, Verdict(False, "no")) is None
    assert chosen(None, measured(500.0), Verdict(False, "no", Measurement(1, 1, 1, 1))) == 1
    assert chosen(None, Verdict(True, "passed unmeasured")) == 1
    assert chosen(Verdict(True, "passed unmeasured"), measured(500.0)) == 1


def test_each_objective_looks_at_its_own_measure() -> None:
    quick = Verdict(True, "", Measurement(p50_us=10, p99_us=10, cpu_us=50, memory_bytes=0, row_us=9))
    wide = Verdict(True, "", Measurement(p50_us=20, p99_us=20, cpu_us=40, memory_bytes=0, row_us=2))
    frugal = Verdict(True, "", Measurement(p50_us=30, p99_us=30, cpu_us=30, memory_bytes=0))
    picks = {objective: chosen(quick, wide, frugal, objective=objective) for objective in OBJECTIVES}
    assert picks == {"latency": 0, "throughput": 1, "energy": 2}


def argued(*verdicts: Verdict | None, objective: str = "latency") -> str:
    found = candidates(*verdicts)
    best = choose(found, objective)
    assert best is not None
    return argument(found, best, objective)


@pytest.mark.parametrize(
    ("verdicts", "words"),
    [
        ([Verdict(True, "")], "first in ladder order; nothing was measured here yet"),
        ([measured(80), Verdict(False, "no")], "the only one that passed here, 80 µs"),
        ([measured(80), None], "the only one that passed here, 80 µs; 1 more is not tried yet"),
        ([measured(80), None, None], "the only one that passed here, 80 µs; 2 more are not tried yet"),
        ([measured(80), measured(100), measured(70)], "best latency: 70 µs, 0 80"),
        ([measured(80), measured(75)], "80 µs, within 10 % of 1 (75) and before it in ladder order"),
    ],
)
def test_the_choice_is_argued_in_words(verdicts: list[Verdict | None], words: str) -> None:
    assert argued(*verdicts) == words


def test_the_same_variant_elsewhere_is_told_apart() -> None:
    of = model(OV16)
    found = plan(of, site(GPU))  # type: ignore[arg-type]
    gpu, cpu = (with_verdict(c, v, of) for c, v in zip(found, (measured(20), measured(60)), strict=True))  # type: ignore[arg-type]
    assert argument((gpu, cpu), gpu, "latency") == "best latency: 20 µs, ov16 on cpu 60"


@pytest.mark.parametrize(
    ("verdicts", "rungs"),
    [
        ([None, None], {"compile": None, "golden": None, "measured": None}),
        ([Verdict(False, "died"), None], {"compile": False, "golden": None, "measured": None}),
        (
            [Verdict(False, "golden set failed", answered=True), None],
            {"compile": None, "golden": False, "measured": None},
        ),
        ([Verdict(False, "no such file: /golden/m"), None], {"compile": False, "golden": None, "measured": None}),
        (
            [Verdict(True, "ok", accuracy_loss=0.5, answered=True), None],
            {"compile": None, "golden": False, "measured": None},
        ),
        ([Verdict(False, "died"), measured(5)], {"compile": True, "golden": True, "measured": True}),
    ],
)
def test_trials_climb_the_last_rungs(verdicts: list[Verdict | None], rungs: dict[str, bool | None]) -> None:
    asked = dataclasses.replace(GPU, rungs=(*GPU.rungs, *(Rung(name, None) for name in rungs)))
    where, of = site(asked), model(OV16, OV8)
    gpu = [c for c in plan(of, where) if c.accelerator == "intel-gpu"]  # type: ignore[arg-type]
    tried = [with_verdict(c, v, of) for c, v in zip(gpu, verdicts, strict=True)]  # type: ignore[arg-type]
    (climbed,) = climb_trials(where.inventory, tried).accelerators
    assert {rung.name: rung.ok for rung in climbed.rungs if rung.name in rungs} == rungs
    assert climbed.rungs[:2] == GPU.rungs


OPENVINO, WEBGPU = "OpenVINOExecutionProvider", "WebGpuExecutionProvider"
ANYWHERE = variant("any", runtime="onnx", precision="fp32", accelerators=("cpu", "intel-gpu"))


def providers_of(accelerator: str, options: dict[str, str], **plugins: PluginStatus) -> list[tuple[str, str]]:
    """Return provider and obstacle of each candidate on one step of ONNX Runtime."""
    status = {"onnx": RuntimeStatus("onnx", "1.31.1", plugins=plugins)}
    ladder = (LadderStep(accelerator, "onnx", ("fp32",), options),)
    found = planned(ANYWHERE, on=site(GPU, runtimes=status, ladder=ladder))
    return [(c.budget.provider, "" if c.eligible else c.reason) for c in found]


def test_an_installed_plugin_is_a_candidate_after_the_runtime_itself() -> None:
    assert providers_of("cpu", {}) == [("", "")]
    assert providers_of("cpu", {}, **{OPENVINO: PluginStatus("1.8.1")}) == [("", ""), (OPENVINO, "")]
    both = {WEBGPU: PluginStatus("0.4.0"), OPENVINO: PluginStatus("1.8.1", ("cpu", "intel-gpu"))}
    assert providers_of("intel-gpu", {}, **both) == [(OPENVINO, ""), (WEBGPU, "")]


def test_a_step_may_name_its_providers_the_first_choice_first() -> None:
    plugins = {OPENVINO: PluginStatus("1.8.1")}
    only, first = {"providers": OPENVINO}, {"providers": f"{OPENVINO}, CPUExecutionProvider"}
    assert providers_of("cpu", only, **plugins) == [(OPENVINO, "")]
    assert providers_of("cpu", first, **plugins) == [(OPENVINO, ""), ("", "")]
    assert providers_of("cpu", {"providers": "CPUExecutionProvider"}, **plugins) == [("", "")]
    assert providers_of("cpu", first) == [("", "")]
    missing = f"{OPENVINO} is not installed; {HERE.pip} install onnxruntime-ep-openvino"
    assert providers_of("cpu", only) == [(OPENVINO, missing)]


@pytest.mark.parametrize(
    ("plugins", "reason"),
    [
        ({}, f"{OPENVINO} is not installed; {HERE.pip} install onnxruntime-ep-openvino"),
        ({OPENVINO: PluginStatus("1.8.1", None, "it crashed", "remove it")}, "it crashed; remove it"),
        ({OPENVINO: PluginStatus("1.8.1", ("cpu",))}, f"{OPENVINO} 1.8.1 offers no intel-gpu on this device"),
    ],
)
def test_an_accelerator_that_only_a_plugin_can_use_names_what_is_missing(
    plugins: dict[str, PluginStatus], reason: str
) -> None:
    assert providers_of("intel-gpu", {}, **plugins) == [(OPENVINO, reason)]


def test_a_verdict_depends_on_the_version_of_its_plugin_only() -> None:
    status = RuntimeStatus("onnx", "1.31.1", plugins={OPENVINO: PluginStatus("1.8.1")})
    assert status.version_of("") == "1.31.1"
    assert status.version_of(OPENVINO) == f"1.31.1, {OPENVINO} 1.8.1"


def test_candidates_of_one_variant_are_told_apart_by_provider() -> None:
    status = {"onnx": RuntimeStatus("onnx", "1", plugins={OPENVINO: PluginStatus("1.8.1")})}
    own, plugin = planned(ORT, on=site(runtimes=status, ladder=(LADDER[2],)))
    assert (own.where, plugin.where) == ("cpu", f"cpu by {OPENVINO}")
    assert own.place != plugin.place
    tried = [dataclasses.replace(c, verdict=measured(us)) for c, us in ((own, 10.0), (plugin, 20.0))]
    assert argument(tried, tried[0], "latency") == f"best latency: 10 µs, ort on cpu by {OPENVINO} 20"
