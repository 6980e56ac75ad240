"""Wheels of this program with other versions: a modified real one, and a minimal one."""

from __future__ import annotations

import base64
import ensurepip
import hashlib
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

DISTRIBUTION = "edge_inference_gateway"
METADATA = "Metadata-Version: 2.1\nName: edge-inference-gateway\nVersion: {version}\n"
WHEEL = "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
PROGRAM = 'import sys\n\nprint("{program}", "{version}" if sys.argv[1:] == ["--version"] else sys.argv[1:])\n'
MODULES = {"edge-gateway": "gateway", "edge-agent": "gateway/device/agent", "edge-software": "gateway/device/installer"}


def pip_wheel() -> Path:
    """Return the wheel of pip that is bundled with Python."""
    (found,) = (Path(ensurepip.__file__).parent / "_bundled").glob("pip-*.whl")
    return found


def small_wheel(
    folder: Path, version: str, files: Mapping[str, str] | None = None, requires: Sequence[str] = ()
) -> Path:
    """Write a wheel whose programs print their version. `files` replace its own."""
    contents = {"gateway/__init__.py": f'__version__ = "{version}"\n'}
    for program, package in MODULES.items():
        contents.setdefault(f"{package}/__init__.py", "")
        contents[f"{package}/__main__.py"] = PROGRAM.format(program=program, version=version)
    named = contents | dict(files or {})
    return _write(folder, version, {name: text.encode() for name, text in named.items()}, requires)


def changed_wheel(folder: Path, real: Path, version: str, files: Mapping[str, str] | None = None) -> Path:
    """Write the real wheel with another version; `files` are added or replaced."""
    with zipfile.ZipFile(real) as archive:
        contents = {name: archive.read(name) for name in archive.namelist() if ".dist-info/" not in name}
    before = real.name.split("-")[1]
    text = contents["gateway/__init__.py"].decode()
    contents["gateway/__init__.py"] = text.replace(f'__version__ = "{before}"', f'__version__ = "{version}"').encode()
    return _write(folder, version, contents | {name: text.encode() for name, text in (files or {}).items()})


def _write(folder: Path, version: str, contents: Mapping[str, bytes], requires: Sequence[str] = ()) -> Path:
    metadata = METADATA.format(version=version) + "".join(f"Requires-Dist: {one}\n" for one in requires)
    information = f"{DISTRIBUTION}-{version}.dist-info"
    every = {
        **contents,
        f"{information}/METADATA": metadata.encode(),
        f"{information}/WHEEL": WHEEL.encode(),
    }
    record = "".join(f"{name},sha256={_digest(content)},{len(content)}\n" for name, content in every.items())
    folder.mkdir(parents=True, exist_ok=True)
    wheel = folder / f"{DISTRIBUTION}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in every.items():
            archive.writestr(name, content)
        archive.writestr(f"{information}/RECORD", f"{record}{information}/RECORD,,\n")
    return wheel


def _digest(content: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
