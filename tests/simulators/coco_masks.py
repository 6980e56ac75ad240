"""Decoding of masks by COCO's own code."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from pycocotools import mask as coco

from gateway.common.domain.tensor import Array


def decoded_mask(mask: Mapping[str, Any]) -> Array:
    """Return a mask `{"size", "counts"}` as flags [height, width]."""
    with warnings.catch_warnings():  # pycocotools 2.0.11 lacks an argument that numpy 2 passes
        warnings.filterwarnings("ignore", "__array__ implementation", DeprecationWarning)
        return coco.decode(coco.frPyObjects(dict(mask), *mask["size"])).astype(bool)
