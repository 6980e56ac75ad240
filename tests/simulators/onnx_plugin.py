"""The plugin `onnxruntime-ep-openvino`, installed apart by `make test`, for processes under test."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

PLACE = Path(sys.prefix) / "plugins"
MODULE, PROVIDER = "onnxruntime_ep_openvino", "OpenVINOExecutionProvider"
ON_ANY_PROCESSOR = '''
"""The plugin offers processors of Intel only, although its engine runs on others: let ONNX Runtime report one."""
import ctypes
import pathlib

def get_library_path():
    import onnxruntime

    device = next(each.device for each in onnxruntime.get_ep_devices() if each.ep_name == "CPUExecutionProvider")
    kind_and_vendor = (ctypes.c_uint32 * 2).from_address(ctypes.c_void_p.from_address(id(device) + 16).value)
    assert kind_and_vendor[1] == device.vendor_id
    kind_and_vendor[1] = 0x8086
    return str(next(pathlib.Path(PLACE, MODULE).glob("libonnxruntime_providers_openvino_plugin.so")))
'''
FAULTS: Mapping[str, str] = {
    "no library": "get_library_path = lambda: __file__",
    "crash": "import os, signal\nget_library_path = lambda: os.kill(os.getpid(), signal.SIGSEGV)",
}


def environ(folder: Path, fault: str = "", version: str = "") -> dict[str, str]:
    """Return an environment in which the plugin is installed: with a fault, or with another version of its package."""
    assert (PLACE / MODULE).is_dir(), f"{MODULE} is not installed; run: make .venv/.plugins"
    front = folder / "plugin"
    (front / MODULE).mkdir(parents=True, exist_ok=True)
    names = f"PLACE, MODULE = {str(PLACE)!r}, {MODULE!r}\n"
    (front / MODULE / "__init__.py").write_text(FAULTS[fault] if fault else names + ON_ANY_PROCESSOR)
    if version:
        (information,) = PLACE.glob(f"{MODULE}-*.dist-info")
        was = information.name.removesuffix(".dist-info").rpartition("-")[2]
        other = front / f"{MODULE}-{version}.dist-info"  # an installed version is the one in this name (decision 0096)
        shutil.copytree(information, other)
        metadata = other / "METADATA"
        metadata.write_text(metadata.read_text().replace(f"\nVersion: {was}\n", f"\nVersion: {version}\n", 1))
    return {"PYTHONPATH": f"{front}:{PLACE}"}
