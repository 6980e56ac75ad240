"""The domain's small tables: versions, lifecycle, verdict keys, bare releases, errors."""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.common.domain.errors import ConfigurationError, VariantError
from gateway.common.domain.inventory import Accelerator, Cpu
from gateway.common.domain.manifest import Artifact, Binding, Golden, Tolerance
from gateway.common.domain.release import Release, bare_variant, complete
from gateway.common.domain.routing import newest_version, version_order
from gateway.common.domain.runtimes import BY_SUFFIX
from gateway.common.domain.verdict import SessionBudget, Signature, verdict_key
from gateway.serving.domain.lifecycle import MOVES, ServableState, advance
from tests.simulators.engine_rig import X, Y, manifest, variant

OLDEST_FIRST = ["alpha", "beta", "1-rc1", "1-rc2", "1", "1.0", "1.2", "1.10", "2", "9", "10"]


def test_versions_are_ordered_as_people_mean_them() -> None:
    by_letters = sorted(OLDEST_FIRST)
    assert sorted(by_letters, key=version_order) == OLDEST_FIRST
    assert sorted(["v10", "v9", "1"], key=version_order) == ["v9", "v10", "1"]
    assert newest_version(["9", "10", "2"]) == "10"
    assert newest_version(["2-rc1", "2"]) == "2"
    assert newest_version([]) is None


@given(
    st.text(st.sampled_from("0123456789abz.-_"), max_size=12), st.text(st.sampled_from("0123456789abz.-_"), max_size=12)
)
def test_any_two_versions_can_be_compared(one: str, other: str) -> None:
    assert (version_order(one) < version_order(other)) + (version_order(other) < version_order(one)) <= 1


@pytest.mark.parametrize(("state", "to"), list(itertools.product(ServableState, ServableState)))
def test_a_servable_moves_only_as_the_table_says(state: ServableState, to: ServableState) -> None:
    allowed = {
        ("START", "LOADING"),
        ("LOADING", "AVAILABLE"),
        ("LOADING", "END"),
        ("AVAILABLE", "UNLOADING"),
        ("UNLOADING", "END"),
    }
    if (state.value, to.value) in allowed:
        assert advance(state, to) is to
    else:
        with pytest.raises(ValueError, match=f"from {state.value} to {to.value}"):
            advance(state, to)
    assert set(MOVES) == set(ServableState)


GOLDEN = Golden("g.npz", "0" * 64, {"onnx": Tolerance()})
MODEL = dataclasses.replace(manifest(), golden=GOLDEN)
DEVICE = Accelerator("intel-gpu", "Iris", "/dev/dri/renderD128", (), {"driver": "1.2"})
FACTS = {
    "of": MODEL, "which": variant("a"), "budget": SessionBudget(2, "cpu", {"hint": "latency"}), "runtime": "1.20",
    "device": DEVICE, "cpu": Cpu("Intel", "i5", 4, ("avx2",)),
}  # fmt: skip


def key(**changes: object) -> str:
    f = {**FACTS, **changes}
    return verdict_key(f["of"], f["which"], f["budget"], f["runtime"], f["device"], cpu=f["cpu"])  # type: ignore[arg-type]


CHANGES = {
    "inputs": {"of": dataclasses.replace(MODEL, inputs=(dataclasses.replace(X, finite=True),))},
    "outputs": {"of": dataclasses.replace(MODEL, outputs=(dataclasses.replace(Y, postprocess="softmax"),))},
    "golden": {"of": dataclasses.replace(MODEL, golden=dataclasses.replace(GOLDEN, sha256="1" * 64))},
    "task": {"of": dataclasses.replace(MODEL, task="embedding", task_options={})},
    "options of the task": {"of": dataclasses.replace(MODEL, task="embedding", task_options={"output": "y"})},
    "no golden": {"of": dataclasses.replace(MODEL, golden=None)},
    "tolerance": {
        "of": dataclasses.replace(MODEL, golden=dataclasses.replace(GOLDEN, tolerance={"onnx": Tolerance(0.5)}))
    },
    "digest": {"which": dataclasses.replace(variant("a"), artifacts=(Artifact("m", "f" * 64, 1),))},
    "runtime": {"which": dataclasses.replace(variant("a"), runtime="onnx")},
    "precision": {"which": dataclasses.replace(variant("a"), precision="fp16")},
    "binding": {"which": dataclasses.replace(variant("a"), bind={"x": Binding("input")})},
    "threads": {"budget": SessionBudget(3, "cpu", {"hint": "latency"})},
    "runs": {"budget": SessionBudget(2, "cpu", {"hint": "latency"}, runs=4)},
    "demanded runs": {"of": dataclasses.replace(MODEL, runs=1)},
    "objective": {"budget": SessionBudget(2, "cpu", {"hint": "latency"}, objective="throughput")},
    "accelerator": {"budget": SessionBudget(2, "intel-gpu", {"hint": "latency"})},
    "options": {"budget": SessionBudget(2, "cpu", {"hint": "throughput"})},
    "runtime version": {"runtime": "1.21"},
    "driver": {"device": dataclasses.replace(DEVICE, facts={"driver": "1.3"})},
    "device name": {"device": dataclasses.replace(DEVICE, name="Arc")},
    "no device": {"device": None},
    "processor": {"cpu": Cpu("Intel", "i7", 4, ("avx2",))},
}


def test_a_verdict_holds_only_for_the_very_facts_it_was_found_on() -> None:
    keys = {name: key(**changes) for name, changes in CHANGES.items()}
    assert len({key(), *keys.values()}) == len(CHANGES) + 1
    assert key() == key(device=dataclasses.replace(DEVICE, facts=dict(DEVICE.facts)))


def test_names_labels_and_caches_do_not_void_a_verdict() -> None:
    renamed = dataclasses.replace(MODEL, name="other", version="2", labels=("a",), max_accuracy_loss=0.5)
    assert key(of=renamed) == key()
    assert key(which=dataclasses.replace(variant("a"), name="b", accuracy=0.5)) == key()
    assert key(budget=SessionBudget(2, "cpu", {"hint": "latency"}, "/var/cache")) == key()


@pytest.mark.parametrize(("suffix", "runtime"), BY_SUFFIX.items())
def test_a_bare_model_becomes_a_release_of_one_variant(suffix: str, runtime: str) -> None:
    file = f"any{suffix}"
    artifacts = (Artifact(file, "0" * 64, 1),)
    only = bare_variant(file, artifacts)
    assert (only.runtime, only.precision, only.artifacts) == (runtime, "fp32", artifacts)
    found = Release("m", "3", Path("/m"), "d", bare=only)
    completed = complete(found, only, Signature((X,), (Y,)))
    assert (completed.name, completed.version, completed.inputs, completed.outputs) == ("m", "3", (X,), (Y,))
    assert completed.variants == (only,)
    assert completed.golden is None


def test_the_reference_is_the_first_exact_variant_else_the_most_accurate() -> None:
    low, high = variant("low", accuracy=0.8, precision="int8"), variant("high", accuracy=0.9, precision="fp16")
    exact = variant("exact", accuracy=0.7)
    assert dataclasses.replace(manifest(), variants=(low, high, exact)).reference() == exact
    assert dataclasses.replace(manifest(), variants=(low, high)).reference() == high
    assert manifest().reference() is None


def test_errors_read_as_sentences_with_their_place() -> None:
    whole = ConfigurationError("is odd", file="f.toml", table="a.b", key="k", line=3)
    assert str(whole) == "f.toml:3: a.b.k: is odd"
    assert str(ConfigurationError("is odd")) == "is odd"
    assert str(ConfigurationError("is odd", key="k")) == "k: is odd"
    assert str(VariantError("no device", remedy="plug it in")) == "no device; plug it in"
    assert str(VariantError("no device")) == "no device"
