"""`edge-fleet bootstrap`: files that a device is given once, by hand: the root to trust, its name, the addresses."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from fleet.cli.common import workspace
from fleet.disk import write_durably
from fleet.publisher.repository import assignment_file, metadata_file, root_versions
from fleet.publisher.roles import ROOT
from gateway.common.domain.errors import ConfigurationError
from gateway.common.domain.manifest_toml import NAME_PATTERN
from gateway.common.terminal.tables import print_json

SCHEMA = 1
SCHEMES = ("https://", "http://")


def command(arguments: argparse.Namespace) -> int:
    """Write root.json and device.json."""
    work, out, device = workspace(arguments), Path(arguments.out), arguments.device
    if not NAME_PATTERN.fullmatch(device):
        raise ConfigurationError(f"{device!r:.150} is not a device's id; use letters, digits, '.', '_' and '-'")
    url = (arguments.url or work.settings.url).rstrip("/")
    if not url.startswith(SCHEMES):
        raise ConfigurationError(
            f"{url!r:.200} is not an address; name where public is served with --url https://… or url in fleet.toml"
        )
    versions = root_versions(work.public)
    if not versions:
        raise ConfigurationError("holds no root; edge-fleet publish comes first", file=str(work.public))
    document = {"schema": SCHEMA, "device": device, "repository": url, "assignment": f"{url}/{assignment_file(device)}"}
    write_durably(out / "root.json", (work.public / metadata_file(ROOT, versions[-1])).read_bytes())
    write_durably(out / "device.json", (json.dumps(document, indent=1) + "\n").encode())
    if arguments.json:
        print_json({**document, "root": versions[-1], "out": str(out)})
    else:
        print(f"{out}: root {versions[-1]} and the addresses of {device}; on the device: edge-agent bootstrap {out}")
    return 0
