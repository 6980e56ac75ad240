"""Folder of the installed versions: environments that never change, and two links that select among them.

    PREFIX/lib/edge-gateway/versions/<version>-<digest>/   a complete virtual environment
                            current                        link: the version that the units of gateway and agent run
                            confirmed                      link: the last confirmed version; the installer runs from it

Outside an update both links lead to the same environment.
"""

from __future__ import annotations

import os
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path

from gateway.common.files import durable

VERSIONS, CURRENT, CONFIRMED = "versions", "current", "confirmed"
FOLDER = Path("/var/lib/edge-software")
"""Folder of edge-software.service; the agent reads the record there."""


@dataclass(frozen=True, slots=True)
class VersionFolder:
    """Folder of the installed versions at its present path. In an assembled image the final path differs."""

    folder: Path

    @property
    def versions(self) -> Path:
        """Folder of the environments."""
        return self.folder / VERSIONS

    def environment(self, name: str) -> Path:
        """Return the path of the environment `name`, present or not."""
        return self.versions / name

    def leads_to(self, link: str) -> str:
        """Return the name of the environment that `link` leads to; "" if there is none."""
        try:
            target = Path(os.readlink(self.folder / link))  # noqa: PTH115  the link's text, even if its target is absent
        except OSError:
            return ""
        return target.name if target.parent == Path(VERSIONS) and self.environment(target.name).is_dir() else ""

    def point(self, link: str, name: str) -> None:
        """Point `link` to the environment `name`, atomically and durably. Raise OSError."""
        if not self.environment(name).is_dir():
            raise FileNotFoundError(2, "there is no such version", str(self.environment(name)))
        staged = durable.temporary(self.folder)
        staged.symlink_to(Path(VERSIONS) / name)
        staged.replace(self.folder / link)
        durable.sync_folder(self.folder)

    def stage(self) -> Path:
        """Return a new name for an environment to build. Remove interrupted builds. Raise OSError."""
        durable.make_folder(self.versions, mode=0o755)
        durable.sweep(self.versions)
        return durable.temporary(self.versions)

    def adopt(self, stage: Path, name: str) -> None:
        """Give the environment at `stage` its name after all its bytes are on the disk. Raise OSError."""
        os.sync()  # thousands of files: one call for all of them
        durable.remove_tree(self.environment(name))
        durable.rename(stage, self.environment(name))

    def keep(self, names: AbstractSet[str]) -> None:
        """Remove environments except `names` and the links' targets, and interrupted builds. Raise OSError."""
        kept = names | {self.leads_to(CURRENT), self.leads_to(CONFIRMED)}
        if not self.versions.is_dir():
            return
        durable.sweep(self.folder)
        durable.sweep(self.versions)
        for entry in list(self.versions.iterdir()):
            if entry.name not in kept:
                durable.remove_tree(entry)
