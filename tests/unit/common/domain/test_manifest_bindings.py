"""Shapes of a variant's own tensors in a manifest."""

import pytest

from gateway.common.domain.errors import ConfigurationError
from gateway.common.domain.manifest import Binding
from gateway.common.domain.manifest_toml import read_manifest

TEXT = """
schema = 1
name = "m"
version = "1"
[[input]]
name = "x"
datatype = "FP32"
shape = [-1, 3, 4]
[[output]]
name = "y"
datatype = "FP32"
shape = [-1, 3]
[[variant]]
name = "v"
runtime = "onnx"
precision = "fp32"
artifacts = [{path = "m.onnx", sha256 = "%s", bytes = 1}]
[variant.bind]
x = {name = "own", shape = %s}
"""


@pytest.mark.parametrize("shape", [[-1, 12], [-1, 4, 3], [-1, 1, 12, 1]])
def test_a_tensor_may_have_other_dimensions_in_a_variant(shape):
    manifest = read_manifest(TEXT % ("0" * 64, shape), "m.toml")
    assert manifest.variants[0].bind == {"x": Binding("own", shape=tuple(shape))}


@pytest.mark.parametrize("shape", [[-1, 11], [12], [12, -1], [-1, -1], [0, 12], [-1, 12, -1], []])
def test_other_numbers_of_elements_are_refused(shape):
    with pytest.raises(ConfigurationError, match=r"variant 'v' binds 'x' .* both need as many elements"):
        read_manifest(TEXT % ("0" * 64, shape), "m.toml")
