"""Openings of pipelines with Python code: code that starts slowly must not hold up the loads after it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine
from typing import Any

from gateway.common.domain.errors import VariantError
from gateway.common.domain.release import Release
from gateway.serving.engine.target import ModelTarget

WAIT_S = 3.0
"""Time that a change waits for an opening, which goes on after it. Most starts take less than a second."""


class Openings:
    """Openings by release. `open_pipeline` raises VariantError, ConfigurationError.

    A change waits `wait_s` for one (None: until it ends). `ended` is called when one has ended that nothing waits for.
    """

    def __init__(
        self,
        open_pipeline: Callable[[Release], Coroutine[Any, Any, ModelTarget]],
        wait_s: float | None,
        ended: Callable[[Release], None],
    ) -> None:
        self._open, self._wait_s, self._ended = open_pipeline, wait_s, ended
        self._tasks = list[tuple[Release, asyncio.Task[ModelTarget]]]()

    async def opened(self, release: Release) -> ModelTarget:
        """Return the target of a release. Raises as `open_pipeline`; VariantError, transient, while it is opened."""
        opening = next((task for other, task in self._tasks if other == release), None)
        if opening is None:
            opening = asyncio.create_task(self._open(release), name=f"opening of {release.name}")
            self._tasks.append((release, opening))
        if not (await asyncio.wait({opening}, timeout=self._wait_s))[0]:
            opening.add_done_callback(lambda _: self._ended(release))
            raise VariantError(
                "it is still being opened: its Python code starts, or its golden set runs", transient=True
            )
        self._tasks.remove((release, opening))
        target = opening.result()
        if not target.fits:
            await target.close(0.0)
            raise VariantError("a model was replaced while its Python code started", transient=True)
        return target

    def has(self, release: Release) -> bool:
        """Return True if a release is being opened."""
        return any(other == release for other, _ in self._tasks)

    async def keep(self, releases: Collection[Release]) -> None:
        """End the openings of other releases."""
        ended = [each for each in self._tasks if each[0] not in releases]
        self._tasks = [each for each in self._tasks if each not in ended]
        for _, opening in ended:
            opening.cancel()
            await asyncio.wait({opening})
            if not opening.cancelled() and opening.exception() is None:
                await opening.result().close(0.0)
