"""The OpenAPI document compared with the controller by an independent tool: what it says is so."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from fleet.controller.access import Role
from fleet.publisher.signing import renew
from tests.simulators.controller import RunningController, controlling
from tests.simulators.operator import until
from tests.simulators.rolled_fleet import SLOT, document
from tests.simulators.uploading import OWNER_ROLE

SHORT = ("--phases", "coverage", "--seed", "7")
"""What each schema allows at its bounds and just beyond them. `make test-long` adds generated requests."""
LONG = ("--max-examples", "150", "--seed", "7")
SEQUENCES = ("--phases", "stateful", "--max-examples", "50", "--seed", "7")
GROUPS = (
    "rollouts",
    "devices",
    "drafts|blobs|publication|releases",
    "enrol|tokens|self",
    "alerts|audit|changes|events",
)
"""Operations whose sequences are tried together with the list of devices, by their paths. Of all 73 at once the tool
tries few."""
PROGRAM = Path(sys.executable).with_name("schemathesis")
SPARE = 300
"""Tokens before the one that asks: who tries every route must not come upon its own number, and be locked out."""
DEVICES = ("camera-1", "camera-2")
NO_SCHEMA_SAYS = {
    "POST /v1/enrol": "what a certificate request is",
    "POST /v1/self/certificate": "what a certificate request is",
    "POST /v1/self/telemetry": "what a line of it is",
    "POST /v1/blobs": "how large a file of a release may be",
    "POST /v1/drafts/{role}/signatures": "that each key is named once",
    "POST /v1/rollouts": "which releases there are, and the language of queries",
    "GET /v1/alerts": "the language of queries",
    "GET /v1/changes": "the language of queries",
    "GET /v1/devices": "the language of queries",
    "GET /v1/events": "the language of queries",
    "GET /v1/telemetry/{stream}/newest": "the language of queries",
    "POST /v1/devices/tags": "the language of queries, and that devices are named once",
    "POST /v1/rollouts/archive": "what a time is",
    "POST /v1/rollouts/preview": "which releases there are, and the language of queries",
    "PUT /v1/rollouts/{rollout}": "which releases there are, and the language of queries",
}
"""Routes that may refuse what their schema allows. On all others that is a finding (`positive_data_acceptance`)."""
ACCEPTED = ("2xx", "3xx", "401", "403", "404", "405", "409", "412", "422", "429", "5xx")
"""Answers to what the schema allows: the tool's own list, 412 and 422. No schema says which state is current (If-Match)
or which keys were used for another request (Idempotency-Key). A name that an answer left empty is 405 in a path."""
HOOKS = """
import itertools, random, re, schemathesis
schemathesis.serializer.alias("application/x-ndjson", "text/plain")
schemathesis.deserializer("text/event-stream")(lambda context, response: response.text)
@schemathesis.hook
def before_call(context, case, kwargs):
    if case.path == "/v1/changes":
        case.query["follow"] = "false"  # else it has no end
@schemathesis.hook
def after_call(context, case, response):
    with open("called", "a") as log:
        log.write(f"{case.method} {case.path}\\n")
"""
LINKS = """
@schemathesis.hook
def before_load_schema(context, schema):
    # All follows the list of devices, with names of existing things, and what names one thing follows what named it.
    named = {(path, verb): {*re.findall("{(.*?)}", path)} for path, item in schema["paths"].items() for verb in item}
    for first, then in itertools.product(named, repeat=2):
        if then == ("/v1/devices", "get"):
            continue
        if first == ("/v1/devices", "get"):
            names = {name: random.choice(KNOWN.get(name, ["1"])) for name in named[then]}
        elif named[then] and named[then] <= named[first]:
            names = {name: f"$request.path.{name}" for name in named[then]}
        else:
            continue
        answers, wanted = schema["paths"][first[0]][first[1]]["responses"], schema["paths"][then[0]][then[1]]
        links = answers[next(iter(answers))].setdefault("links", {})
        links[wanted["operationId"]] = {"operationId": wanted["operationId"], "parameters": names}
"""


@pytest.fixture(scope="module")
def controller(tmp_path_factory) -> Iterator[RunningController]:
    """Yield a controller with devices and a release."""
    with controlling(tmp_path_factory.mktemp("controller")) as running:
        for number in range(SPARE):
            running.token(name=f"spare {number}")
        for name in DEVICES:
            running.enrolled(name, tags=["pilot"])
        running.repository.add_release(SLOT, "2")
        with running.client() as admin:
            until(lambda: admin.get("/v1/releases").json()["items"], "the release is not read")
        work = running.repository.workspace
        work.save([renew(running.repository.drafting(), OWNER_ROLE)])
        yield running


def _rollouts(controller: RunningController) -> list[str]:
    """Make a rollout that is a draft, one that is approved, and one that runs; return their ids."""
    with controller.client() as admin:
        made = [admin.post("/v1/rollouts", json=document()).json() for _ in range(3)]
        for one in made[1:]:
            admin.post(f"/v1/rollouts/{one['id']}/approve", json={"spec": one["spec_digest"]})
        assert admin.post(f"/v1/rollouts/{made[2]['id']}/start").json()["state"] == "running"
    return [one["id"] for one in made]


def _begun(controller: RunningController) -> str:
    """Announce a file that is not uploaded; return its digest."""
    content = b"a file of a release"
    digest = hashlib.sha256(content).hexdigest()
    with controller.client() as admin:
        assert admin.post("/v1/blobs", json={"digest": digest, "size_bytes": len(content)}).is_success
    return digest


def _known(controller: RunningController) -> dict[str, Sequence[str]]:
    """Return names of existing things, by the parameter of paths."""
    known = {"device": DEVICES, "rollout": _rollouts(controller), "owner": ["acme"], "model": [SLOT], "version": ["2"]}
    known |= {"slot": [SLOT], "kind": ["conflict"], "role": [OWNER_ROLE], "digest": [_begun(controller)]}
    return known


def _settings(known: Mapping[str, Sequence[str]]) -> str:
    """Return settings in which half of the names in paths are those of existing things."""
    lines = ['hooks = "hooks.py"', f"checks.positive_data_acceptance.expected-statuses = {json.dumps(ACCEPTED)}"]
    for name, values in known.items():
        lines += [f"[dictionaries.{name}]", f"values = {json.dumps(values)}"]
        lines += [f'[parameters."path.{name}"]', f'dictionary = "{name}"', "probability = 0.5"]
    for route in NO_SCHEMA_SAYS:
        lines += ["[[operations]]", f'include-name = "{route}"', "checks.positive_data_acceptance.enabled = false"]
    return "\n".join(lines)


def _run(controller: RunningController, folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    known = _known(controller)
    (folder / "hooks.py").write_text(f"{HOOKS}KNOWN = {known}\n{LINKS}")
    (folder / "schemathesis.toml").write_text(_settings(known))
    given = ("--tls-verify", controller.ca_file, "--no-color", "--suppress-health-check", "all")
    return subprocess.run(
        [PROGRAM, "run", f"{controller.url}/schema/openapi.json", *given, *options],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=1500,
        check=False,
    )


@pytest.mark.long
@pytest.mark.timeout(600)
def test_an_operators_requests(controller, tmp_path) -> None:
    done = _run(controller, tmp_path, *SHORT, "--header", f"Authorization: Bearer {controller.token()}")
    assert done.returncode == 0, done.stdout[-8000:]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("name", "paths"), [("camera-8", "/v1/(self|enrol)"), pytest.param("camera-9", "/", marks=pytest.mark.long)]
)
def test_a_devices_requests(controller, tmp_path, name, paths) -> None:
    """By default on its own routes only: test_fleet_api_walk.py asks all others with its certificate."""
    file = controller.enrolled(name).write(tmp_path)
    kept = ("--exclude-checks", "ignored_auth", "--include-path-regex", paths)  # no header takes a certificate away
    done = _run(controller, tmp_path, *SHORT, "--request-cert", str(file), *kept)
    assert done.returncode == 0, done.stdout[-8000:]


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("role", list(Role))
def test_many_more(controller, tmp_path, role) -> None:
    done = _run(controller, tmp_path, *LONG, "--header", f"Authorization: Bearer {controller.token(role)}")
    assert done.returncode == 0, done.stdout[-8000:]


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_sequences_of_requests(controller, tmp_path) -> None:
    """Operations follow others, with the names that they had. Printed is what no sequence reached."""
    bearer = ("--header", f"Authorization: Bearer {controller.token()}")
    for group in (*GROUPS, "telemetry|health|metrics|problems"):
        done = _run(controller, tmp_path, *SEQUENCES, "--include-path-regex", f"/({group})|^/v1/devices$", *bearer)
        assert done.returncode == 0, done.stdout[-8000:]
        print(group, re.findall("[0-9]+ covered|[0-9]+ generated", done.stdout))
    called = set((tmp_path / "called").read_text().splitlines())
    with controller.client() as admin:
        paths = admin.get("/schema/openapi.json").json()["paths"]
    print("not reached:", {f"{verb.upper()} {path}" for path, item in paths.items() for verb in item} - called)
