"""Session of a package that keeps what its own code fed to it and what it answered."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tests.world.entry import Array, Tensors


class RecordedSession:
    """ONNX Runtime session in the place of a package's own one."""

    def __init__(self, session: Any) -> None:
        self._session = session
        self.feeds: Tensors = {}
        self.outputs: Tensors = {}

    def run(self, names: Sequence[str] | None, feeds: dict[str, Any], *options: Any) -> list[Array]:
        """Run the session, and keep inputs and outputs by their names."""
        names = list(names or (each.name for each in self._session.get_outputs()))
        answers: list[Array] = self._session.run(names, feeds, *options)
        kinds = {each.name: each.type for each in self._session.get_inputs()}
        dtypes = {"tensor(float)": np.float32, "tensor(int32)": np.int32, "tensor(int64)": np.int64}
        self.feeds = {name: np.array(value, dtypes[kinds[name]]) for name, value in feeds.items()}
        self.outputs = dict(zip(names, answers, strict=True))
        return answers

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)
