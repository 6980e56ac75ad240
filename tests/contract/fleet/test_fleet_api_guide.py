"""The commands of `fleet/controller/api/README.md`, as a reader copies them, against a running controller."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.simulators.controller import RunningController, controlling

GUIDE = (Path(__file__).parents[3] / "fleet/controller/api" / "README.md").read_text()


def _environment(running: RunningController) -> dict[str, str]:
    ca_file = str(running.ca_file)
    return {"EDGE_FLEET_URL": running.url, "EDGE_FLEET_CA": ca_file, "EDGE_FLEET_TOKEN": running.token()}


@pytest.mark.timeout(60)
def test_the_commands_print_what_the_guide_says(tmp_path: Path) -> None:
    script = "set -euo pipefail\n" + "\necho\n".join(re.findall(r"```sh\n(.*?)```", GUIDE, re.DOTALL))
    with controlling(tmp_path) as running:
        done = subprocess.run(
            ["/bin/bash", "-c", script.replace('"; }', '"; echo; }')],
            env={**os.environ, **_environment(running)},
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    answers = [json.loads(line) for line in done.stdout.splitlines() if line]
    first, again, made, labelled, late, position, begun, half, whole, drafts, publication, unknown, explained = answers
    assert (first["name"], first) == ("ci", again)
    assert (made["id"], labelled["tags"]) == ("camera-47", ["roof"])
    assert late["type"] == "/problems/precondition-failed"
    assert position == {"id": "0"}
    assert (begun["received_bytes"], half["received_bytes"], whole["complete"]) == (0, 1_000_000, True)
    assert (drafts["items"], publication["ready"]) == ([], [])
    assert (unknown["type"], explained["type"]) == ("/problems/not-found", "/problems/not-found")
