"""Record of an installation: folders it made, and every file with its digest."""

from __future__ import annotations

import contextlib
import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path

from layout import RECORD, Layout

from gateway.common.files import durable


@dataclass(slots=True)
class Record:
    """Record of an installation, kept next to the versions. Paths are final paths; a link's digest is empty."""

    files: dict[str, str] = field(default_factory=dict)
    folders: list[str] = field(default_factory=list)

    @classmethod
    def read(cls, layout: Layout) -> Record:
        """Return what is there now; empty where nothing is."""
        try:
            written = json.loads((layout.home.folder / RECORD).read_text())
        except FileNotFoundError:
            return cls()
        return cls(written["files"], written["folders"])

    def write(self, layout: Layout) -> None:
        """Replace the record, whole and durable."""
        text = json.dumps({"files": self.files, "folders": self.folders}, indent=1)
        durable.write_file(layout.home.folder / RECORD, f"{text}\n".encode(), mode=0o644)

    def make_folders(self, layout: Layout) -> None:
        """Make what is missing, and remember it."""
        layout.real(Path("/")).mkdir(parents=True, exist_ok=True)
        for folder in layout.folders:
            if not layout.real(folder).is_dir():
                layout.real(folder).mkdir(mode=0o755)
                self.folders.append(str(folder))

    def remove_folders(self, layout: Layout) -> None:
        """Remove the folders made by us that nothing else uses."""
        for folder in sorted(self.folders, reverse=True):
            with contextlib.suppress(OSError):
                layout.real(Path(folder)).rmdir()


def digest(file: Path) -> str:
    """Return the file's sha256, in hex."""
    found = hashlib.sha256()
    with file.open("rb") as opened:  # images are large
        while block := opened.read(1 << 18):
            found.update(block)
    return found.hexdigest()
