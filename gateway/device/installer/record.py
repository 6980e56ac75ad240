"""Files of the installer: root of trust, record of the last update, floor of versions. Root writes, all may read.

The record outlives the installer's version: agents and installers of earlier and later versions read it.
"""

from __future__ import annotations

from pathlib import Path

from gateway.common.domain.manifest_toml import NAME_PATTERN
from gateway.common.files import durable
from gateway.common.store.errors import DamagedError, store_errors
from gateway.common.store.roots import read_bounded
from gateway.device.domain.software_update import RECORD_LIMIT_BYTES, SoftwareUpdate, read_record, record_bytes

RECORD_FILE, ROOT_FILE, FLOOR_FILE = "update.json", "root.json", "floor"
MODE, FOLDER_MODE = 0o644, 0o755
FLOOR_LIMIT_BYTES = 256


class InstallRecords:
    """Reader and only writer of these files. Every method raises StoreError."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def update(self) -> SoftwareUpdate | None:
        """Return the record of the last update, or None before the first. Raise DamagedError."""
        file = self.folder / RECORD_FILE
        if not file.exists():
            return None
        try:
            return read_record(read_bounded(file, RECORD_LIMIT_BYTES))
        except ValueError as error:
            problem = f"cannot be read: {error}; remove it as root, then systemctl restart edge-software"
            raise DamagedError(problem, file=file) from None

    def keep_update(self, update: SoftwareUpdate) -> None:
        """Replace the record, atomically and durably."""
        self._write(RECORD_FILE, record_bytes(update))

    def root(self, limit_bytes: int) -> bytes | None:
        """Return the pinned root of trust, or None if there is none."""
        file = self.folder / ROOT_FILE
        return read_bounded(file, limit_bytes) if file.exists() else None

    def keep_root(self, content: bytes) -> None:
        """Replace the pinned root by a verified one."""
        self._write(ROOT_FILE, content)

    def floor(self) -> str:
        """Return the oldest version that may be installed ("": any)."""
        file = self.folder / FLOOR_FILE
        if not file.exists():
            return ""
        found = read_bounded(file, FLOOR_LIMIT_BYTES).decode("utf-8", "replace").strip()
        if not NAME_PATTERN.fullmatch(found):
            raise DamagedError(f"holds {found!r:.80}, not a version; write the oldest allowed one as root", file=file)
        return found

    def keep_floor(self, version: str) -> None:
        """Replace the floor."""
        self._write(FLOOR_FILE, f"{version}\n".encode())

    def sweep(self) -> None:
        """Remove files of killed writers."""
        with store_errors(self.folder):
            durable.sweep(self.folder)

    def _write(self, name: str, content: bytes) -> None:
        with store_errors(self.folder / name):
            durable.make_folder(self.folder, FOLDER_MODE)
            durable.write_file(self.folder / name, content, MODE)
