"""Digests of what a copy of this device's storage does not carry: numbers of the board, addresses of its adapters."""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from pathlib import Path

BOARD_SERIAL = "sys/firmware/devicetree/base/serial-number"
PRODUCT_UUID, UUID_VARIABLE = "sys/class/dmi/id/product_uuid", "PRODUCT_UUID"
"""Sources of the UUID. Only root may read the file; the service's unit sets the variable."""
PLACEHOLDER = "03000200-0400-0500-0006-000700080009"
"""UUID of boards whose maker set none. Others repeat one or two characters."""
PLACEHOLDER_CHARACTERS = 2
ADAPTERS_LIMIT = 8
DIGEST_CHARACTERS = 16


def hardware(root: Path = Path("/")) -> dict[str, list[str]]:
    """Return digests by fact, `serial`, `uuid` and `macs`, without the facts that are unknown.

    Left out: placeholders, addresses that software set or drew, and USB adapters, which may move to another device.
    """
    uuid = os.environ.get(UUID_VARIABLE) or _text(root / PRODUCT_UUID)
    facts = {"serial": [_text(root / BOARD_SERIAL)], "uuid": [uuid.lower()]}
    facts["macs"] = sorted(map(_permanent, (root / "sys/class/net").glob("*/device")))[-ADAPTERS_LIMIT:]
    known = {name: [text for text in texts if _is_known(text)] for name, texts in facts.items()}
    return {name: list(map(_digest, texts)) for name, texts in known.items() if texts}


def _permanent(device: Path) -> str:
    """Return the address that the maker gave an Ethernet adapter, or ""."""
    adapter = device.parent
    fixed = (_text(adapter / "type"), _text(adapter / "addr_assign_type")) == ("1", "0")
    return _text(adapter / "address") if fixed and "/usb" not in os.path.realpath(device) else ""


def _is_known(text: str) -> bool:
    return text != PLACEHOLDER and len(set(text) - set("-:")) > PLACEHOLDER_CHARACTERS


def _text(file: Path) -> str:
    with suppress(OSError):
        return file.read_bytes().decode("ascii", "replace").strip("\0 \n")
    return ""


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:DIGEST_CHARACTERS]
