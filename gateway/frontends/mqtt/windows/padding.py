"""Rows that make a short window as long as its model takes. Pure functions.

The place of the rows follows from their value, so that no step arises between them and the samples: `first` repeats the
first sample before it, `last` the last one after it. Zeros come first, as where models are trained on padded sequences
(Keras, `pad_sequences`): the newest samples stay in the last rows, which recurrent models remember best.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gateway.frontends.mqtt.windows.samples import Rows


@dataclass(frozen=True, slots=True)
class Padding:
    """Padding to `size_rows` rows. `pad`: zero, first or last."""

    size_rows: int
    pad: str

    def apply(self, rows: Rows) -> Rows:
        """Return `rows` [n, channels] with the missing ones; `rows` itself if none is."""
        count = self.size_rows - len(rows)
        if not count:
            return rows
        before, after = (0, count) if self.pad == "last" else (count, 0)
        return np.pad(rows, ((before, after), (0, 0)), mode="constant" if self.pad == "zero" else "edge")
