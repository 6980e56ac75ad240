"""Head of models that postprocess their boxes themselves: outputs for boxes, classes, scores and their number.

Sources: TensorFlow's Object Detection API (`detection_boxes`, `detection_classes`, `detection_scores`,
`num_detections`), and TFLite's operator `TFLite_Detection_PostProcess`, with outputs in this order. Exporters of
torchvision write the first three; their boxes are `xyxy` in pixels and their classes begin with 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from gateway.common.domain.document import Table
from gateway.common.domain.manifest import ROWS, ModelManifest
from gateway.common.domain.tensor import Tensors
from gateway.serving.tasks.candidates import BoxCandidates
from gateway.serving.tasks.detection_limits import DetectionLimits
from gateway.serving.tasks.row_arrays import row_array, row_shape, unfit
from gateway.serving.tasks.single_output_heads import class_numbers

ROLES = ("boxes", "classes", "scores", "count")
WORDS: Mapping[str, tuple[str, ...]] = {
    "count": ("num", "count"),
    "boxes": ("box", "location", "dets"),
    "classes": ("class", "label", "categor"),
    "scores": ("score", "conf"),
}
"""Parts of names by role; the first role that fits a name has it."""
TFLITE_NAMES: Mapping[str, str] = {
    f"TFLite_Detection_PostProcess{suffix}": role for role, suffix in zip(ROLES, ("", ":1", ":2", ":3"), strict=True)
}
FIRST_CLASS_LIMIT = 1000


@dataclass(frozen=True, slots=True)
class PostprocessedHead:
    """Head of boxes [n, 4], classes [n], scores [n] and, if `outputs` names it, their count.

    `outputs` are the names by role. `order` is `yxyx` (y1, x1, y2, x2) or `xyxy`. The first label has the number
    `first_class`.
    """

    outputs: Mapping[str, str]
    order: str
    first_class: int
    coordinates: str = "normalised"
    suppressed: bool = True

    def decode(self, outputs: Tensors, limits: DetectionLimits) -> BoxCandidates:
        """Return the candidates of one row. Raises RequestError UNSUPPORTED for outputs of another shape."""
        boxes, scores = row_array(outputs, self.outputs["boxes"], 2), row_array(outputs, self.outputs["scores"], 1)
        numbers = row_array(outputs, self.outputs["classes"], 1)
        if boxes.shape != (len(scores), 4) or len(numbers) != len(scores):
            raise unfit(self.outputs["boxes"], boxes.shape, f"[{len(scores)}, 4], as many as scores and classes")
        chosen = limits.choose(scores[: self._count(outputs, len(scores))])
        columns = [1, 0, 3, 2] if self.order == "yxyx" else [0, 1, 2, 3]
        classes = class_numbers(numbers[chosen]) - self.first_class
        return BoxCandidates(
            boxes[chosen][:, columns].astype(np.float64), scores[chosen], classes, np.empty((len(chosen), 0))
        )

    def _count(self, outputs: Tensors, most: int) -> int:
        if "count" not in self.outputs:
            return most
        count = float(row_array(outputs, self.outputs["count"], 0))
        return int(min(max(count, 0.0), most)) if np.isfinite(count) else 0


def roles_of(manifest: ModelManifest, given: Mapping[str, str]) -> dict[str, str]:
    """Return the names of outputs by role: those `given`, then those that their names and shapes tell.

    The Object Detection API has outputs before its own postprocessing as well, whose names begin with `raw`: they
    come last.
    """
    roles = dict(given)
    for spec in sorted(manifest.outputs, key=lambda each: each.name.startswith("raw")):
        role = TFLITE_NAMES.get(spec.name) or _role(spec.name, row_shape(spec, manifest, 2))
        if role and role not in roles and spec.name not in roles.values():
            roles[role] = spec.name
    return roles


def _role(name: str, shape: tuple[int, ...]) -> str:
    """Return the role that a name tells. Two dimensions, the last of size 4, tell boxes whatever the name."""
    if len(shape) == 2:
        return "boxes" if shape[1] in {4, ROWS} else ""
    found = next((role for role in WORDS if any(word in name.lower() for word in WORDS[role])), "")
    return "" if found == "boxes" else found


def postprocessed_head(manifest: ModelManifest, options: Table, names: Mapping[str, str]) -> PostprocessedHead:
    """Take the head's options. `names` are outputs by role that the options give. Raises ConfigurationError."""
    roles = roles_of(manifest, names)
    for role in ROLES[:3]:
        if role not in roles:
            known = ", ".join(spec.name for spec in manifest.outputs)
            options.refuse(role, f'no output is known for it; write {role} = "NAME" with one of {known}')
    return PostprocessedHead(
        roles,
        order=options.text("box_order", "yxyx", among=("yxyx", "xyxy")),
        first_class=options.integer("first_class", 0, low=0, high=FIRST_CLASS_LIMIT),
    )
