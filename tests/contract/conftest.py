"""Variants for the contract of runtimes (those of the shipped models, and small ones built here), servers, a broker."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import pytest_asyncio

from gateway.common.domain.manifest import INDEPENDENT, ModelManifest, Tolerance, Variant
from gateway.common.domain.manifest_toml import read_manifest
from gateway.common.domain.tensor import Tensors
from gateway.common.domain.verdict import SessionBudget
from gateway.serving.domain.golden import read_golden
from gateway.serving.domain.isolation import WorkerPolicy
from gateway.serving.domain.ports import Session
from gateway.serving.frontends.http import direct
from gateway.serving.runtimes.catalog import get_runtime
from gateway.serving.runtimes.isolated import IsolatedSession
from tests.simulators import models
from tests.simulators.broker import Mosquitto, mosquitto
from tests.simulators.models import FILES
from tests.simulators.mqtt_peer import Peer, peer

MODELS = Path(__file__).resolve().parents[2] / "models"
MANIFESTS = sorted(MODELS.glob("*/*/manifest.toml"))
ROWS = 8


@dataclass(frozen=True, slots=True)
class Case:
    """A variant, where its files lie, rows to feed it, and how near it must be to the oracle."""

    manifest: ModelManifest
    variant: Variant
    files: Path
    inputs: Tensors
    tolerance: Tolerance
    isolated: bool = False

    def open(self, budget: SessionBudget | None = None) -> Session:
        if self.isolated:
            lent, variant = lambda: nullcontext(self.files), self.variant
            return IsolatedSession(self.manifest, variant, lent, budget or SessionBudget(), WorkerPolicy(spare=False))
        return get_runtime(self.variant.runtime).open(
            self.manifest, self.variant, self.files, budget or SessionBudget()
        )

    def oracle(self) -> Session:
        reference = next(each for each in self.manifest.variants if each.runtime == "reference")
        return get_runtime("reference").open(self.manifest, reference, self.files, SessionBudget())


def shipped(manifest_file: Path, name: str) -> Case:
    """Return a case of a variant of a shipped model, fed the first rows of its golden set."""
    manifest = read_manifest(manifest_file.read_text(), str(manifest_file))
    variant = manifest.variant(name)
    golden = read_golden((manifest_file.parent / "golden.npz").read_bytes(), manifest, "golden.npz")
    tolerance = manifest.golden.tolerance[variant.runtime]
    # the manifest's tolerance is for softmax's 0..1, these are the raw scores of about ±10, over eight rows only
    tolerance = replace(tolerance, agreement=1.0, mean_abs=20 * tolerance.mean_abs)
    inputs = {name: array[:ROWS] for name, array in golden.inputs.items()}
    return Case(manifest, variant, manifest_file.parent, inputs, tolerance)


def built(folder: Path, runtime: str, model: str, rows: int) -> Case:
    """Return a case of a model of `tests.simulators.models`, written for `runtime` and for the oracle."""
    manifest = models.write_variant(folder, getattr(models, model)(), runtime, rows=rows)
    if runtime == "litert":  # the graph of a TFLite file is not followed
        manifest = replace(manifest, rows=INDEPENDENT)
    if runtime != "reference":
        manifest = models.write_variant(folder, manifest, "reference")
    random = np.random.default_rng(3)
    inputs = {
        spec.name: random.normal(size=(ROWS, *spec.shape[1:])).astype(spec.datatype.dtype) for spec in manifest.inputs
    }
    return Case(manifest, manifest.variants[0], folder, inputs, Tolerance(1.0, 1e-5))


def _names() -> Iterator[str]:
    for file in MANIFESTS:
        for variant in read_manifest(file.read_text(), str(file)).variants:
            yield f"{file.parent.parent.name}/{file.parent.name}/{variant.name}"
    for runtime in FILES:
        yield from (f"built/{runtime}/{model}/{rows}" for model in ("adder", "dense") for rows in (-1, 1))
        yield f"isolated/{runtime}/dense/-1"


@pytest.fixture(params=list(_names()))
def case(request: pytest.FixtureRequest, tmp_path: Path) -> Case:
    """Return every shipped variant, and small models of every runtime with open and with fixed row counts."""
    parts = request.param.split("/")
    if parts[0] in {"built", "isolated"}:
        made = built(tmp_path, parts[1], parts[2], int(parts[3]))
        return replace(made, isolated=parts[0] == "isolated")
    return shipped(MODELS / parts[0] / parts[1] / "manifest.toml", parts[2])


@pytest.fixture(params=FILES)
def small(request: pytest.FixtureRequest, tmp_path: Path) -> Case:
    """Return a case of the dense model, for every runtime."""
    return built(tmp_path, request.param, "dense", -1)


@pytest.fixture(params=[*FILES, "isolated"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Session:
    """Return a session of the dense model, for every runtime, and in a worker process."""
    is_isolated = request.param == "isolated"
    return replace(built(tmp_path, "onnx" if is_isolated else request.param, "dense", -1), isolated=is_isolated).open()


@pytest.fixture(params=["usual", "direct"])
def rest_way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Select the path of inference requests over HTTP; every test that uses it runs once per path."""
    if request.param != "direct":
        monkeypatch.setattr(direct.RequestHead, "of", lambda text, _: direct.RequestHead(text))
    return str(request.param)


@pytest_asyncio.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Mosquitto]:
    """Yield a running mosquitto."""
    async with mosquitto(tmp_path) as running:
        yield running


@pytest_asyncio.fixture
async def client(broker: Mosquitto) -> AsyncIterator[Peer]:
    """Yield a client that receives all results, replies and errors."""
    async with peer(broker.port) as one:
        await one.subscribe("edge/gw/errors", "edge/gw/results/#", "replies/#")
        yield one


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nothing that is half-open give way: a busy machine takes longer than `HALF_OPEN_S` between two steps."""
    for module in ("http.connection", "grpc_v2.transport.connection", "grpc_v2.transport.timeouts"):
        monkeypatch.setattr(f"gateway.serving.frontends.{module}.HALF_OPEN_S", 3600.0)
