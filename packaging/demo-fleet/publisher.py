"""The people who hold keys: they begin a repository and publish releases of meter-reader, all by `edge-fleet`."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from children import ROOT, Children
from story import Story

OWNER, MODEL = "acme", "meter-reader"
PEOPLE = ("alice", "bob", "carol", OWNER)
ONLINE = ("online", "director")
PROGRAM = """#!/bin/sh
exec "{python}" -m gateway "$@"
"""


class Publisher:
    """Publisher of the demo. `folder` is what the controller serves from; the people's keys lie next to it."""

    def __init__(self, folder: Path, children: Children, story: Story) -> None:
        self.folder = folder / "fleet"
        self._people, self._models = folder / "people", folder / "models"
        self._children, self._story = children, story
        self._program = folder / "edge-gateway"
        self._program.write_text(PROGRAM.format(python=sys.executable))
        self._program.chmod(0o755)

    def begin(self) -> None:
        """Sign and publish keys, the first root, and the delegations to owners."""
        self.folder.mkdir()
        for name in PEOPLE:
            self._fleet("keys", "new", name, "--out", self._people, "--no-passphrase")
        for name in ONLINE:
            self._fleet("keys", "new", name, "--out", self.folder / "keys", "--no-passphrase")
        root, targets = [self._public(name) for name in PEOPLE[:3]], [self._public(PEOPLE[0])]
        online = ["--online", self.folder / "keys/online.pub", "--director", self.folder / "keys/director.pub"]
        self._here("repo", "init", "--root", *root, "--targets", *targets, *online)
        self._here("delegate", OWNER, "--key", self._public(OWNER))
        for name, role in ((PEOPLE[0], "root"), (PEOPLE[1], "root"), (PEOPLE[0], "targets")):
            self._sign(name, role)
        self._here("publish")

    def release(self, version: str, *, only: str = "") -> None:
        """Publish the model as this repository ships it, under another version; `only`: with this variant alone."""
        folder = self._models / MODEL / version
        shutil.copytree(ROOT / "models" / MODEL / "1", folder)
        manifest = folder / "manifest.toml"
        text = manifest.read_text().replace('version = "1"', f'version = "{version}"', 1)
        manifest.write_text(_alone(text, only) if only else text)
        self._here("model", "add", folder, "--owner", OWNER, "--edge-gateway", self._program)
        self._sign(OWNER, f"models-{OWNER}")
        self._here("publish")

    def _sign(self, name: str, role: str) -> None:
        draft = self.folder / "drafts" / f"{role}.json"
        self._fleet("sign", draft, "--key", self._people / f"{name}.pem", "--yes")

    def _here(self, *arguments: str | Path) -> None:
        self._fleet(*arguments, "--dir", self.folder)

    def _fleet(self, *arguments: str | Path) -> None:
        self._story.command("edge-fleet", *arguments)
        self._children.run("fleet", *arguments)

    def _public(self, name: str) -> Path:
        return self._people / f"{name}.pub"


def _alone(manifest: str, variant: str) -> str:
    head, *variants = manifest.split("[[variant]]\n")
    (kept,) = [text for text in variants if text.startswith(f'name = "{variant}"')]
    return f"{head}[[variant]]\n{kept}"
