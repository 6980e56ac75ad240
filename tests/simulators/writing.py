"""A rig that serves the language model of `writer`."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from gateway.common.domain.profile import Budget as ProfileBudget
from gateway.common.domain.tensor import Tensors
from gateway.serving.engine.settings import ResidencySettings
from tests.simulators import writer
from tests.simulators.engine_rig import PASSED, Rig, limits_with, variant
from tests.simulators.writer import WriterSession


async def writing(
    runs: int = 1,
    runtime: writer.WriterRuntime | None = None,
    *,
    variants: tuple[str, ...] = ("writer",),
    witness: Tensors | None = None,
    residency: ResidencySettings | None = None,
    **limits: Any,
) -> Rig:
    """Return a rig whose model writes a word each time its gate lets it."""
    rig = Rig(
        limits_with(**limits), runs=runs, budget=ProfileBudget(threads=1), runtime=runtime or writer.WriterRuntime(),
        witness=witness, residency=residency or ResidencySettings(),
    )  # fmt: skip
    rig.trials = dict.fromkeys(variants, replace(PASSED, joining=None, runs=runs))
    await rig.serve(replace(writer.MODEL, variants=tuple(map(variant, variants))))
    for session in sessions(rig):
        session.gate.clear()
    return rig


def sessions(rig: Rig) -> list[WriterSession]:
    first: Any = rig.runtime.sessions[0]
    return [first, *first.peers]


async def until(condition: Any) -> None:
    while not condition():
        await asyncio.sleep(0.001)
