"""Folder of the installed versions: environments that never change, and two links that say which of them count.

    PREFIX/lib/edge-gateway/versions/<version>-<digest>/   a whole virtual environment
                            current                        link: what the units of gateway and agent run
                            confirmed                      link: the last version that proved itself; the installer's

Outside an update both links lead to the same environment.
"""

from __future__ import annotations

import os
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path

from gateway.store import durable

VERSIONS, CURRENT, CONFIRMED = "versions", "current", "confirmed"


@dataclass(frozen=True, slots=True)
class Home:
    """The folder as it is found now; an image that is assembled elsewhere has another final path."""

    folder: Path

    @property
    def versions(self) -> Path:
        """Return the folder of the environments."""
        return self.folder / VERSIONS

    def environment(self, name: str) -> Path:
        """Return where the environment `name` lies, or would."""
        return self.versions / name

    def leads_to(self, link: str) -> str:
        """Return the name of the environment that `link` leads to; "" where there is none."""
        try:
            target = Path(os.readlink(self.folder / link))  # noqa: PTH115  what it says, whether that is there or not
        except OSError:
            return ""
        return target.name if target.parent == Path(VERSIONS) and self.environment(target.name).is_dir() else ""

    def point(self, link: str, name: str) -> None:
        """Let `link` lead to the environment `name`, at once and durably. Raises OSError."""
        if not self.environment(name).is_dir():
            raise FileNotFoundError(2, "there is no such version", str(self.environment(name)))
        staged = durable.temporary(self.folder)
        staged.symlink_to(Path(VERSIONS) / name)
        staged.replace(self.folder / link)
        durable.sync_folder(self.folder)

    def stage(self) -> Path:
        """Return a new name for an environment that is being built; a killed one is swept away. Raises OSError."""
        durable.make_folder(self.versions, mode=0o755)
        durable.sweep(self.versions)
        return durable.temporary(self.versions)

    def adopt(self, stage: Path, name: str) -> None:
        """Give the environment at `stage` its name once every byte of it is on the disk. Raises OSError."""
        os.sync()  # thousands of files: one call for all of them
        durable.remove_tree(self.environment(name))
        durable.rename(stage, self.environment(name))

    def keep(self, names: AbstractSet[str]) -> None:
        """Remove every environment but `names`, those that the links lead to, and killed builds. Raises OSError."""
        kept = names | {self.leads_to(CURRENT), self.leads_to(CONFIRMED)}
        if not self.versions.is_dir():
            return
        durable.sweep(self.folder)
        durable.sweep(self.versions)
        for entry in list(self.versions.iterdir()):
            if entry.name not in kept:
                durable.remove_tree(entry)
