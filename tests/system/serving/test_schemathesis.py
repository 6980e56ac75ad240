"""The OpenAPI document compared with the gateway by an independent tool: what it says is so."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.simulators.daemon import QUIET, SHORT_TRIALS, Daemon, running

PROGRAM = Path(sys.executable).with_name("schemathesis")
SECRET, CAMERA = "a-token-that-may-do-everything", "a-token-that-may-ask-models"
TOOL = f"""
checks.not_a_server_error.expected-statuses = {json.dumps(["2xx", "3xx", "4xx", "501", "503"])}
checks.positive_data_acceptance.enabled = false
"""
"""501: an extension that is not offered, 503: a model that is not ready; 500 is a finding. No schema says which models
there are and which tensors they take."""


@pytest.fixture(scope="module", params=["all offered", "nothing offered"])
def gateway(request, tmp_path_factory) -> Iterator[Daemon]:
    """Yield a gateway that offers what it can, and one as it is installed."""
    folder = tmp_path_factory.mktemp("gateway")
    (folder / "tokens").write_text(f"me {SECRET}\ncamera {CAMERA} scopes=infer\n")
    (folder / "tokens").chmod(0o600)
    config = f'{QUIET}{SHORT_TRIALS}[auth]\ntokens_file = "{folder}/tokens"\n'
    if request.param == "all offered":
        config += "[shared_memory]\nallowed = true\nover_tcp = true\n[models]\ncontrol = true\n"
    with running(folder, config=config, grpc=["off"]) as daemon:
        yield daemon


@pytest.mark.timeout(300)
@pytest.mark.parametrize("token", [SECRET, pytest.param(CAMERA, marks=pytest.mark.long)])
def test_every_answer_is_documented(gateway, tmp_path, token) -> None:
    names = {"model": ["meter-reader", "activity"], "version": ["1"], "region": ["frames"]}
    lines = [TOOL]
    for name, values in names.items():
        lines += [f"[dictionaries.{name}]", f"values = {json.dumps(values)}"]
        lines += [f'[parameters."path.{name}"]', f'dictionary = "{name}"', "probability = 0.5"]
    (tmp_path / "schemathesis.toml").write_text("\n".join(lines))
    given = ("--seed", "7", "--no-color", "--suppress-health-check", "all", "--max-examples", "5")
    url, header = f"http://{gateway.http}/schema/openapi.json", f"Authorization: Bearer {token}"
    done = subprocess.run(
        [PROGRAM, "run", url, "--header", header, *given],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-8000:]
