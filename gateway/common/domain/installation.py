"""How this program was installed, and with it the command that adds a part: the remedy where a package is missing."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

DISTRIBUTION = "edge-inference-gateway"
PACKAGED = frozenset({"/usr/lib/edge-gateway", "/usr/lib/edge-fleet"})
"""Environments of the Debian packages."""
VENDORS = "/usr/local/lib/edge-gateway/site-packages"
"""Folder that the packages' Python reads before its own: builds of runtimes by the makers of a device."""
PACKAGES: Mapping[str, str] = MappingProxyType(
    {
        "": "edge-gateway",
        "onnx": "edge-gateway",
        "pull": "edge-gateway",
        "openvino": "edge-gateway-openvino",
        "litert": "edge-gateway-litert",
        "llamacpp": "edge-gateway-llamacpp",
        "camera": "edge-gateway-camera",
        "workshop": "edge-gateway-workshop",
        "agent": "edge-agent",
        "fleet": "edge-fleet",
    }
)
"""Debian package of each extra of the distribution. None has CUDA: its libraries are the vendor's."""
PARTS = os.environ.get("EDGE_GATEWAY_IMAGE", "")
"""Packages in the container image that this runs in, as packaging/image.py was given them; "": in none."""


@dataclass(frozen=True, slots=True)
class Installation:
    """Environment (`sys.prefix`), the command of pip for it, and the folder that holds the package `gateway`.

    `parts`: the packages of the container image, if it is in one.
    """

    prefix: str
    pip: str
    source: Path
    parts: str = ""

    @property
    def is_packaged(self) -> bool:
        """Return whether Debian packages own it."""
        return self.prefix in PACKAGED

    def adding(self, extra: str) -> str:
        """Return the command that adds an extra of the distribution; "": the distribution itself."""
        if self.parts and extra in PACKAGES:
            return f"in a checkout: make image PARTS='{self.parts} {PACKAGES[extra]}'"
        if self.is_packaged and extra in PACKAGES:
            return f"sudo apt-get install {PACKAGES[extra]}"
        if self.is_packaged:
            return f"install the gateway by make install instead of packages, with {extra} (packaging/README.md)"
        is_checkout = (self.source / "pyproject.toml").is_file()
        place = f"--editable '{self.source}" if is_checkout else f"'{DISTRIBUTION}"
        return f"{self.pip} install {place}[{extra}]'" if extra else f"{self.pip} install {place}'"

    def replacing(self, old: str, extra: str) -> str:
        """Return the commands that put an extra in place of other distributions."""
        if self.is_packaged:
            return self.adding(extra)
        return f"{self.pip} uninstall {old}, then {self.adding(extra)}"

    def preferring(self, wheel: str, old: str) -> str:
        """Return the command that puts a wheel file in place of a distribution."""
        if self.parts:
            return f"python3 -m zipfile -e {wheel} FOLDER, then mount FOLDER at {VENDORS} in the container"
        if self.is_packaged:
            return f"sudo python3 -m zipfile -e {wheel} {VENDORS}, then restart the gateway"
        return f"{self.pip} uninstall {old}, then {self.pip} install {wheel}"


def _pip() -> str:
    """Return pip for the environment of this process. Those of uv, of `make install`, packages and images have none."""
    if PARTS:
        return "change the image (packaging/CONTAINER.md): pip"
    sudo = "" if os.access(sys.prefix, os.W_OK) else "sudo "
    own = importlib.util.find_spec("pip") is not None
    return f"{sudo}{sys.executable} -m pip" if own else f"{sudo}python3 -m pip --python {sys.prefix}"


HERE = Installation(sys.prefix, _pip(), Path(__file__).parents[3], PARTS)
"""The installation that runs this."""
