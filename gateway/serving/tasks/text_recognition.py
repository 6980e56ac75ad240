"""Text recognition: scores of characters along a line of text to the text (OCR).

Kind: `text-recognition`.

Formula: greedy decoding of connectionist temporal classification (Graves et al. 2006, "best path decoding"). The best
class of each step is taken; a class that repeats the step before is removed; then blanks are removed. The score is the
mean of the kept steps' maxima: of a run of equal classes, its first step. A text of no characters has the score 0. A
row with NaN has no text.

Expected of the model: one output [steps, classes] in each row, with one class per character and one for the blank.
Dimensions of size 1 do not matter, so the form [steps, 1, classes] of a model without rows (`batch = false`) is fine.

- PP-OCR (rapidocr, PaddleOCR): probabilities [rows, steps, classes]; the blank is first, and a space follows the
  dictionary: `blank = "first"`, `space = true`, the dictionary's lines as the manifest's labels.
- ddddocr: logits [steps, 1, classes], although its files declare [1, steps]: the manifest says `shape = [-1, 1, 8210]`
  and `batch = false`. Its character list begins with the blank, which is no label here: `blank = "first"`,
  `activation = "softmax"`.
- Keras' `ctc_decode`: `blank = "last"`.

| option | type, default | meaning |
| --- | --- | --- |
| `output` | text | output with the scores; required if the model has several float outputs |
| `charset` | text | the characters in the order of the classes, without the blank; absent: the manifest's labels |
| `space` | flag, false | one more class after the characters: the space |
| `blank` | `first`, `last`; `first` | place of the blank among the classes |
| `activation` | `none`, `softmax`; `none` | function that makes probabilities of the output |

Document: `{"text", "score"}`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from gateway.common.domain.document import Table
from gateway.common.domain.errors import Fault, RequestError
from gateway.common.domain.manifest import ROWS, ModelManifest, TensorSpec
from gateway.common.domain.tensor import Array, Datatype, Tensors
from gateway.serving.domain.decimals import decimals
from gateway.serving.domain.postprocess import softmax
from gateway.serving.tasks.frame import Frame
from gateway.serving.tasks.row_outputs import FLOATS, finite, read_output, to_fp32


@dataclass(frozen=True, slots=True)
class TextResult:
    """Text of one line, and its score. None: the model's scores are NaN."""

    text: str | None
    score: float

    def document(self) -> dict[str, Any]:
        """Return text and score, null if there is none."""
        return {"text": self.text, "score": finite(decimals(self.tensors()["score"])[0])}

    def tensors(self) -> dict[str, Array]:
        """Return the arrays `text` [1] (BYTES, empty if there is none) and `score` [1]."""
        text = np.array([(self.text or "").encode()], object)
        return {"text": text, "score": to_fp32(np.array([self.score]))}


class TextRecognition:
    """Task of recognisers of text lines. Raises ConfigurationError if output and characters do not fit each other."""

    results = (TensorSpec("text", Datatype.BYTES, (1,)), TensorSpec("score", Datatype.FP32, (1,)))
    """Text of a line, and its score."""

    def __init__(self, manifest: ModelManifest, options: Table) -> None:
        self._output = read_output(manifest, options, among=FLOATS)
        characters = tuple(options.text("charset")) if "charset" in options else manifest.labels
        if not characters:
            options.refuse("charset", "missing; name the characters here or as the manifest's labels")
        self._characters = (*characters, " ") if options.flag("space", False) else characters
        self._blank = 0 if options.text("blank", "first", among=("first", "last")) == "first" else len(self._characters)
        self._has_logits = options.text("activation", "none", among=("none", "softmax")) == "softmax"
        options.finish()
        classes = self._output.sizes[-1] if self._output.sizes else 1
        if len(self._output.sizes) > 2:
            options.refuse("output", f"'{self._output.name}' has more axes in one row than steps and classes")
        if classes not in {ROWS, len(self._characters) + 1}:
            problem = f"output '{self._output.name}' has {classes} classes, but there are {len(self._characters)}"
            options.refuse("charset", f"{problem} characters and the blank")

    def interpret(self, outputs: Tensors, frame: Frame | None) -> TextResult:
        """Return the text of one row. `frame` is not used: a text has no place in the image of its line."""
        scores = self._scores(self._output.values(outputs))
        if np.isnan(scores).any():
            return TextResult(None, math.nan)
        classes, maxima = decode_ctc(scores, self._blank)
        places = classes - (classes > self._blank)
        text = "".join([self._characters[place] for place in places.tolist()])
        return TextResult(text, float(maxima.mean()) if len(maxima) else 0.0)

    def _scores(self, values: Array) -> Array:
        """Return the scores [steps, classes] as FP64."""
        classes = len(self._characters) + 1
        if values.shape[-1] != classes or not values.size:
            problem = f"output '{self._output.name}' of the model has shape {list(values.shape)} in one row"
            raise RequestError(Fault.UNSUPPORTED, f"{problem}, not the form [steps, {classes}]")
        scores = values.astype(np.float64).reshape(-1, classes)
        with np.errstate(invalid="ignore"):  # infinite scores: the row has no text
            return softmax(scores) if self._has_logits else scores


def decode_ctc(scores: Array, blank: int) -> tuple[Array, Array]:
    """Return the classes [k] of the best path through scores [steps, classes], and their scores [k]."""
    best = scores.argmax(axis=1)
    kept = best != blank
    kept[1:] &= best[1:] != best[:-1]
    return best[kept], scores.max(axis=1)[kept]
