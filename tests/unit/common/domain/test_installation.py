"""The command that adds a part is the one of the installation that says it."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from gateway.common.domain.installation import HERE, PACKAGES, VENDORS, Installation

CHECKOUT = Path(__file__).parents[4]
SITE = Path("/x/lib/python3.11/site-packages")
WHEEL = Installation("/x", "/x/bin/python -m pip", SITE)
PACKAGED = Installation("/usr/lib/edge-gateway", "unused", SITE)
IMAGE = Installation("/usr/lib/edge-gateway", "unused", SITE, "edge-gateway edge-gateway-litert")
INSTEAD = "instead of packages, with onnx-cuda (packaging/README.md)"


@pytest.mark.parametrize(
    ("place", "extra", "command"),
    [
        (WHEEL, "camera", "/x/bin/python -m pip install 'edge-inference-gateway[camera]'"),
        (WHEEL, "", "/x/bin/python -m pip install 'edge-inference-gateway'"),
        (PACKAGED, "camera", "sudo apt-get install edge-gateway-camera"),
        (PACKAGED, "onnx-cuda", f"install the gateway by make install {INSTEAD}"),
        (IMAGE, "camera", "in a checkout: make image PARTS='edge-gateway edge-gateway-litert edge-gateway-camera'"),
        (IMAGE, "onnx-cuda", f"install the gateway by make install {INSTEAD}"),
        (HERE, "camera", f"{sys.executable} -m pip install --editable '{CHECKOUT}[camera]'"),
    ],
)
def test_a_part_is_added(place: Installation, extra: str, command: str) -> None:
    assert place.adding(extra) == command


def test_every_package_that_a_command_names_is_built() -> None:
    control = (CHECKOUT / "packaging/debian/control").read_text()
    assert set(PACKAGES.values()) == set(re.findall(r"(?m)^Package: (.*)$", control))


def test_a_part_takes_the_place_of_another() -> None:
    said = "/x/bin/python -m pip uninstall old, then /x/bin/python -m pip install 'edge-inference-gateway[onnx]'"
    assert WHEEL.replacing("old", "onnx") == said
    assert PACKAGED.replacing("onnxruntime", "onnx") == "sudo apt-get install edge-gateway"


def test_a_wheel_takes_the_place_of_a_distribution() -> None:
    pip = "/x/bin/python -m pip"
    assert WHEEL.preferring("W.whl", "old") == f"{pip} uninstall old, then {pip} install W.whl"
    assert PACKAGED.preferring("W.whl", "old").startswith(f"sudo python3 -m zipfile -e W.whl {VENDORS}")
    assert IMAGE.preferring("W.whl", "old").startswith("python3 -m zipfile -e W.whl FOLDER, then mount FOLDER")
