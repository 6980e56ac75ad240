"""EXIF orientation of a picture: how a viewer turns the stored pixels. Source: Exif 2.32 (CIPA DC-008), tag 0x0112."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from PIL import Image

STORED = 1
"""Orientation of pixels that are stored as a viewer shows them."""
_TAG, _SHORT = 0x0112, 3
_PREFIX = b"Exif\0\0"
_BYTE_ORDERS = {b"II*\0": "<", b"MM\0*": ">"}
_TURNS: Mapping[int, tuple[str, bool, bool]] = {
    2: ("FLIP_LEFT_RIGHT", True, False),
    3: ("ROTATE_180", True, True),
    4: ("FLIP_TOP_BOTTOM", False, True),
    5: ("TRANSPOSE", False, False),
    6: ("ROTATE_270", True, False),
    7: ("TRANSVERSE", True, True),
    8: ("ROTATE_90", False, True),
}
"""Pillow's name of the turn, and whether the upright picture's left and top are an end of the stored pixels."""


def orientation_of(image: Image.Image) -> int:
    """Return the orientation (1 to 8) of an opened picture. Without EXIF data, or with damaged data, it is STORED."""
    return read_orientation(image.info.get("exif") or b"")


def read_orientation(exif: bytes) -> int:
    """Return the orientation in the first directory of EXIF data. The directory of a thumbnail is not read."""
    tiff = exif.removeprefix(_PREFIX)
    with suppress(KeyError, struct.error):
        order = _BYTE_ORDERS[tiff[:4]]
        (start,) = struct.unpack_from(f"{order}I", tiff, 4)
        (count,) = struct.unpack_from(f"{order}H", tiff, start)
        for place in range(start + 2, start + 2 + 12 * count, 12):
            tag, kind, _, value = struct.unpack_from(f"{order}HHIH", tiff, place)
            if tag == _TAG:
                return value if kind == _SHORT and value in _TURNS else STORED
    return STORED


def upright(image: Image.Image, orientation: int) -> Image.Image:
    """Return the picture as a viewer shows it."""
    from PIL import Image

    return image if orientation == STORED else image.transpose(Image.Transpose[_TURNS[orientation][0]])


def upright_size(size: tuple[int, int], orientation: int) -> tuple[int, int]:
    """Return a size (width, height) after the turn; it is its own inverse."""
    return size[::-1] if orientation >= 5 else size


def mirrored(orientation: int) -> tuple[bool, bool]:
    """Return whether the upright picture's left and top are an end of the stored pixels."""
    return _TURNS[orientation][1:] if orientation != STORED else (False, False)
