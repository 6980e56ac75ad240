"""Inputs of a request to a daemon, chosen by the model's configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gateway.common.domain.errors import RequestError
from gateway.serving.cli.remote import request_inputs

CONFIG: dict[str, Any] = {
    "input": [{"name": "size", "optional": True}, {"name": "image"}],
    "parameters": {"preprocess.image": {"string_value": "{}"}},
}


def test_images_are_for_the_input_that_declares_them(tmp_path: Path) -> None:
    file = tmp_path / "a.png"
    file.write_bytes(b"encoded")
    found = request_inputs([str(file)], "", CONFIG)
    assert {name: tensor.array.tolist() for name, tensor in found.items()} == {"image": [b"encoded"]}
    assert list(request_inputs([str(file)], "", {**CONFIG, "parameters": {}})) == ["size"]


def test_arrays_may_leave_out_inputs_with_a_default(tmp_path: Path) -> None:
    rows, file = np.zeros((2, 3), np.float32), str(tmp_path / "a.npz")
    np.savez(file, image=rows)
    assert list(request_inputs(None, file, CONFIG)) == ["image"]
    np.savez(file, **{"input.image": rows, "size": rows})
    assert set(request_inputs(None, file, CONFIG)) == {"image", "size"}
    np.savez(file, size=rows)
    with pytest.raises(RequestError, match="holds no array 'image'; it holds size"):
        request_inputs(None, file, CONFIG)
