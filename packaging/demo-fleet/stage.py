"""All that takes part in the demo, and how it is waited for."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from children import Children
from controller import Controller
from device import Device
from story import Story

LOOK_S, DEADLINE_S = 0.2, 240.0


class Stage:
    """Interface of the demo's parts to its controller, devices and story."""

    def __init__(self, controller: Controller, children: Children, story: Story, devices: Sequence[Device]) -> None:
        self.story, self.devices = story, tuple(devices)
        self._controller, self._children = controller, children

    def ask(self, method: str, path: str, **parts: Any) -> Any:
        """Ask the controller's API as an operator."""
        return self._controller.ask(method, path, **parts)

    def command(self, *arguments: str) -> str:
        """Return what `edge-fleet …` prints."""
        return self._controller.command(*arguments)

    def until(self, done: Callable[[], bool], problem: str) -> None:
        """Look until it is done. Ends the demo with `problem` where that takes too long."""
        deadline_s = time.monotonic() + DEADLINE_S
        while not done():
            self._children.check()
            if time.monotonic() > deadline_s:
                raise SystemExit(f"{problem} after {DEADLINE_S:g} s")
            time.sleep(LOOK_S)
