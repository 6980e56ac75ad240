"""`edge-fleet` verb by verb: what it prints, its exit codes, wrong input in one line that says what to do."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from fleet.cli import main
from fleet.cli.parser import VERBS
from fleet.publisher.workspace import Workspace
from tests.simulators.fleet_repository import FleetRepository

MODELS = Path(__file__).parents[3] / "models"
PROFILE = Path(__file__).parents[3] / "device_profiles" / "generic-x86.toml"
READER = "models/acme/reader/1/release"
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("EDGE_FLEET_PASSPHRASE", "correct horse battery")


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Run:
    """Exit code, standard output, standard error."""

    def call(*arguments: str | Path) -> tuple[int, str, str]:
        try:
            code = main(list(map(str, arguments)))
        except SystemExit as ended:
            code = int(ended.code or 0)
        return code, *capfd.readouterr()

    return call


@pytest.fixture
def told(run: Run) -> Callable[..., Any]:
    """Return a function that runs a command, which must end with 0, and returns its JSON."""

    def call(*arguments: str | Path) -> Any:
        code, out, err = run(*arguments, "--json")
        assert code == 0, err
        return json.loads(out)

    return call


@pytest.fixture
def repository(tmp_path: Path) -> FleetRepository:
    """Return a repository published in this folder, with every key in `keys`."""
    made = FleetRepository(tmp_path)
    made.add_release("reader", "1")
    made.keep_keys()
    return made


@pytest.fixture(scope="module")
def settled(tmp_path_factory: pytest.TempPathFactory) -> FleetRepository:
    """Return a repository like `repository`, for tests that leave it unchanged."""
    made = FleetRepository(tmp_path_factory.mktemp("settled"))
    made.add_release("reader", "1")
    made.keep_keys()
    return made


def key_files(repository: FleetRepository, role: str) -> list[str]:
    return [f"keys/{signer.public_key.keyid}.pem" for signer in repository.keys[role]]


def sign(run: Run, repository: FleetRepository, role: str, by: str | None = None) -> None:
    keys = [text for file in key_files(repository, by or role) for text in ("--key", file)]
    code, _, err = run("sign", f"drafts/{role}.json", "--yes", *keys)
    assert code == 0, err


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.name)
def test_every_verb_has_help_with_examples(run: Run, verb: Any) -> None:
    code, out, _ = run(verb.name, "--help")
    assert code == 0
    assert f"  edge-fleet {verb.name}" in out
    assert "exit codes: 0 fine" in out


def test_a_repository_from_nothing(run: Run, told: Callable[..., Any]) -> None:
    for name in ("ann", "ben", "cleo"):
        assert run("keys", "new", name)[0] == 0
    told("keys", "new", "online", "--out", "keys", "--no-passphrase")
    assert [key["name"] for key in told("keys", "show")["keys"]] == ["ann", "ben", "cleo"]
    init = ("--root", "ann.pub", "ben.pub", "cleo.pub", "--targets", "ann.pub", "--online", "keys/online.pub")
    assert [draft["missing"] for draft in told("repo", "init", *init)["drafts"]] == [2, 1]
    code, _, err = run("publish")
    assert (code, "the draft of root waits: it lacks 2 signatures" in err) == (2, True)
    assert told("sign", "drafts/root.json", "--key", "ann.pem", "--yes")["signed"][0]["missing"] == 1
    assert told("sign", "drafts/root.json", "drafts/targets.json", "--key", "ann.pem", "--key", "ben.pem", "--yes")
    assert told("publish")["published"] == {"root": 1, "targets": 1}
    assert told("verify")["ok"]


def test_signatures_of_two_machines_join(run: Run, told: Callable[..., Any], repository: FleetRepository) -> None:
    told("renew", "root")
    copies = [Path(f"copy-{number}.json") for number in range(2)]
    for copy, key in zip(copies, key_files(repository, "root"), strict=False):
        copy.write_bytes(Path("drafts/root.json").read_bytes())
        assert told("sign", copy, "--key", key, "--yes")["signed"][0]["missing"] == 1
    assert told("publish", *copies)["published"] == {"root": 2}


def test_what_waits_is_said_and_hinders_nothing(
    run: Run, told: Callable[..., Any], repository: FleetRepository
) -> None:
    told("renew", "models-acme")
    code, out, _ = run("publish")
    assert code == 0
    assert "the draft of models-acme waits: it lacks 1 signature: edge-fleet sign drafts/models-acme.json" in out
    assert [draft["missing"] for draft in told("status")["drafts"]] == [1]


def test_profiles_and_policies_are_published(run: Run, told: Callable[..., Any], repository: FleetRepository) -> None:
    told("profile", "add", PROFILE)
    Path("hours.json").write_text('{"schema": 1}')
    told("policy", "add", "hours.json")
    for role in ("profiles", "policy"):
        sign(run, repository, role)
    assert told("publish")["published"] == {"policy": 1, "profiles": 1}
    files = ("--file", "profiles/generic-x86.toml", "--file", "policy/hours.json")
    assert told("assign", "camera-7", "reader=acme/reader/1", *files)["assigned"][0]["slots"] == {"reader": READER}
    assert told("verify")["files"] == 5


def test_assignments_grow_and_are_renewed(told: Callable[..., Any], repository: FleetRepository) -> None:
    assert told("assign", "camera-7", "reader=acme/reader/1")["assigned"][0]["version"] == 1
    assert told("assign", "camera-8", "--nothing")["assigned"][0]["slots"] == {}
    renewed = told("assign", "all", "--renew")["assigned"]
    assert [(entry["device"], entry["version"]) for entry in renewed] == [("camera-7", 2), ("camera-8", 2)]
    assert renewed[0]["slots"] == {"reader": READER}
    assert told("verify")["ok"]


def test_a_slot_that_is_assigned_no_more_is_ordered_to_be_emptied(
    told: Callable[..., Any], repository: FleetRepository
) -> None:
    def removed() -> Any:
        return json.loads((repository.public / "assignments" / "c.json").read_text())["signed"].get("removed")

    repository.add_release("door", "1")
    told("assign", "c", "reader=acme/reader/1", "door=acme/door/1")
    assert removed() is None
    told("assign", "c", "reader=acme/reader/1")
    told("assign", "c", "--renew")
    assert removed() == ["door"]
    told("assign", "c", "--nothing")
    assert removed() == ["door", "reader"]
    told("assign", "c", "door=acme/door/1")
    assert removed() == ["reader"]


def test_a_release_is_withdrawn_and_then_ordered_to_stop(
    run: Run, told: Callable[..., Any], repository: FleetRepository
) -> None:
    for more, signed in (((), "offer"), (("--remove",), "remove")):
        told("model", "withdraw", "acme/reader/1", *more)
        sign(run, repository, "models-acme")
        told("publish")
        target = repository.published.target(READER)
        assert target
        assert target.custom == {"floor": "1", "withdrawn": signed}
    assert told("status")["releases"] == [{"target": READER, "floor": "1", "barred": "its owner withdrew it"}]
    code, _, err = run("model", "withdraw", "acme/reader/1")
    assert (code, "is withdrawn already" in err) == (2, True)


def test_of_two_owners_both_sign_where_nobody_says_otherwise(run: Run, told: Callable[..., Any]) -> None:
    for name in ("ann", "ben", "online"):
        assert run("keys", "new", name, "--no-passphrase")[0] == 0
    told("repo", "init", "--root", "ann.pub", "ben.pub", "--targets", "ann.pub", "ben.pub", "--online", "online.pub")
    told("delegate", "acme", "--key", "ann.pub", "ben.pub")
    said = run("sign", "drafts/targets.json", "--key", "ann.pem", "--yes")[1]
    assert "signed drafts/targets.json: 1 more signature needed" in said
    assert "models-acme, for models/acme/*/*/*: 2 of ann (" in said


def test_a_device_is_given_root_and_addresses(told: Callable[..., Any], repository: FleetRepository) -> None:
    repository.rotate("root")
    told("bootstrap", "camera-7", "--out", "c7", "--url", "https://fleet.example.org/")
    assert Path("c7/root.json").read_bytes() == repository.root_bytes(2)
    assert json.loads(Path("c7/device.json").read_text()) == {
        "schema": 1,
        "device": "camera-7",
        "repository": "https://fleet.example.org",
        "assignment": "https://fleet.example.org/assignments/camera-7.json",
    }


def test_the_settings_of_the_folder_count(told: Callable[..., Any], repository: FleetRepository) -> None:
    Path("fleet.toml").write_text('url = "http://mirror.local"\ntimestamp_expiry_d = 14\nassignment_expiry_h = 48.0\n')
    assert told("bootstrap", "camera-7", "--out", "c7")["repository"] == "http://mirror.local"
    told("publish")
    told("assign", "camera-7", "--nothing")
    left = {expiry["what"]: round(expiry["days_left"]) for expiry in told("verify")["expiries"]}
    assert (left["timestamp"], left["assignments/camera-7"]) == (14, 2)


def test_keys_are_rotated_by_old_and_new(run: Run, told: Callable[..., Any], repository: FleetRepository) -> None:
    for name in ("x", "y", "online-2"):
        run("keys", "new", name, "--out", "keys", "--no-passphrase")
    drafts = told("rotate", "root", "--key", "keys/x.pub", "keys/y.pub")["drafts"]
    assert [(quorum["threshold"], quorum["keys"][:1]) for quorum in drafts[0]["quorums"]] == [
        (2, ["root-0"]),
        (2, ["x"]),
    ]
    sign(run, repository, "root")
    run("sign", "drafts/root.json", "--key", "keys/x.pem", "--key", "keys/y.pem", "--yes")
    assert told("publish")["published"] == {"root": 2}
    told("rotate", "timestamp", "--key", "keys/online-2.pub")
    run("sign", "drafts/root.json", "--key", "keys/x.pem", "--key", "keys/y.pem", "--yes")
    assert told("publish")["published"] == {"root": 3}
    assert told("verify")["ok"]
    assert repository.published.timestamp.signatures.keys() >= set(
        repository.published.root.signed.roles["timestamp"].keyids
    )


def test_status_says_who_signs_and_how_long_it_holds(run: Run, repository: FleetRepository) -> None:
    run("assign", "camera-7", "reader=acme/reader/1")
    code, out, _ = run("status")
    assert code == 0
    assert re.search(r"root +│ 2 of root-0, root-1, root-2 +│ 1 +│ \d{4}-\d\d-\d\d \d\d:\d\d │ 365\.0 d", out)
    assert re.search(r"acme +│ reader +│ 1 +│ 1", out)
    assert re.search(r"camera-7 +│ reader=reader 1 +│ 1 ", out)


def test_findings_are_told_and_end_with_1(run: Run, repository: FleetRepository) -> None:
    next((repository.public / "blobs/sha256").iterdir()).write_bytes(b"x")
    code, out, _ = run("verify")
    assert code == 1
    assert "copy it here from another mirror or a backup" in out
    code, out, _ = run("verify", "--json")
    assert (code, json.loads(out)["ok"]) == (1, False)


def test_without_a_terminal_nothing_is_signed_unseen(
    run: Run, repository: FleetRepository, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("renew", "models-acme")
    (key,) = key_files(repository, "models-acme")
    monkeypatch.setattr("sys.stdin.isatty", lambda: False, raising=False)
    before = Path("drafts/models-acme.json").read_bytes()
    code, _, err = run("sign", "drafts/models-acme.json", "--key", key)
    assert (code, "--yes signs without asking" in err) == (2, True)
    code, _, err = run("sign", "drafts/models-acme.json", "--key", key, "--json")
    assert (code, "--json does not show drafts in words" in err) == (2, True)
    assert Path("drafts/models-acme.json").read_bytes() == before


@pytest.mark.parametrize("answer", ["y", "YES", "", "no"])
def test_the_holder_decides(
    run: Run, repository: FleetRepository, monkeypatch: pytest.MonkeyPatch, answer: str
) -> None:
    agreed = answer.lower().startswith("y")
    run("renew", "models-acme")
    (key,) = key_files(repository, "models-acme")
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", lambda _: answer)
    assert run("sign", "drafts/models-acme.json", "--key", key)[0] == (0 if agreed else 1)
    assert Workspace(Path()).drafts()["models-acme"].missing == (0 if agreed else 1)


def test_signing_again_changes_nothing(run: Run, repository: FleetRepository) -> None:
    run("renew", "models-acme")
    sign(run, repository, "models-acme")
    before = Path("drafts/models-acme.json").read_bytes()
    code, out, _ = run("sign", "drafts/models-acme.json", "--yes", "--key", *key_files(repository, "models-acme"))
    assert (code, "these keys had signed drafts/models-acme.json: complete" in out) == (0, True)
    assert Path("drafts/models-acme.json").read_bytes() == before


def test_drafts_of_others_are_passed_over(run: Run, repository: FleetRepository) -> None:
    run("renew", "models-acme", "targets")
    before = Path("drafts/targets.json").read_bytes()
    drafts = ("drafts/models-acme.json", "drafts/targets.json")
    code, out, _ = run("sign", *drafts, "--yes", "--key", *key_files(repository, "models-acme"))
    assert (code, "skipped drafts/targets.json: none of these keys may sign targets" in out) == (0, True)
    assert Workspace(Path()).drafts()["models-acme"].missing == 0
    assert Path("drafts/targets.json").read_bytes() == before
    code, _, err = run("sign", drafts[1], "--yes", "--key", *key_files(repository, "models-acme"))
    assert (code, "none of these keys may sign targets" in err) == (2, True)


def test_two_at_once_do_not_disturb_each_other(run: Run, repository: FleetRepository) -> None:
    with repository.workspace.locked():
        code, _, err = run("publish")
    assert (code, "another edge-fleet is working in this folder" in err) == (3, True)
    assert run("publish")[0] == 0


WRONG: list[tuple[str, str]] = [
    ("keys new", "keys new needs one NAME"),
    ("keys show nothere.pub", "nothere.pub: cannot be read: No such file or directory"),
    ("keys new x --hsm nonsense", "is no token's key"),
    ("sign nothere.json --key x.pem --yes", "nothere.json: cannot be read"),
    ("delegate a/b --key {pub}", "'a/b' is not an owner's name"),
    ("delegate new --key {pub} {pub}", "is named twice"),
    ("delegate new --key {pub} --threshold 0", "must be a whole number above 0"),
    ("delegate new --key {pem}", "is a secret key; name its public part"),
    ("rotate nothing --key {pub}", "there is no role 'nothing'"),
    ("renew snapshot", "snapshot is signed again whenever edge-fleet publish runs"),
    ("model add nothere --owner acme", "nothere: holds no manifest.toml"),
    ("model add {models}/activity/1 --owner nobody", "edge-fleet delegate adds an owner's"),
    ("model add {models}/activity/1 --owner acme --floor 2", "version 1 is below the floor 2"),
    ("profile add nothere.toml", "nothere.toml: cannot be read"),
    ("profile add {pub}", "must be called NAME.toml"),
    ("policy add {models}/../pyproject.toml", "must be called NAME.json"),
    ("publish {pub}", "is no draft that can be read"),
    ("publish --key nothere.pem", "nothere.pem: cannot be read"),
    ("assign camera-7", "no release is named for camera-7; to make it retire all that it has, use --nothing"),
    ("assign camera-7 reader", "'reader' is not SLOT=OWNER/MODEL/VERSION"),
    ("assign camera-7 reader=acme/reader/2", "'models/acme/reader/2/release' is not published"),
    ("assign camera-7 r=acme/reader/1 r=acme/reader/1", "the slot r is named twice"),
    ("assign camera-7 r=acme/reader/1 s=acme/reader/1", "is assigned to two slots"),
    ("assign ../x r=acme/reader/1", "'../x' is not a device's id"),
    ("assign all r=acme/reader/1", "'all' is not a device's id"),
    ("assign x --renew", "nothing is assigned to 'x' yet"),
    ("assign x r=acme/reader/1 --renew", "name neither slots nor files with it"),
    ("model withdraw acme/reader", "'acme/reader' is not OWNER/MODEL/VERSION"),
    ("model withdraw @settings/berlin/1", "'@settings/berlin/1' is not OWNER/MODEL/VERSION"),
    ("settings withdraw acme/reader/1", "'acme/reader/1' is not @settings/NAME/VERSION"),
    ("settings withdraw berlin/1", "'berlin/1' is not @settings/NAME/VERSION"),
    ("software withdraw @settings/berlin/1", "'@settings/berlin/1' is not @software/NAME/VERSION"),
    ("software withdraw @software/edge-gateway/1 @software/edge-gateway/2", "name one release to withdraw"),
    ("settings withdraw @settings/berlin/1", "is not published; edge-fleet status lists what is"),
    ("delegate --key {pub}", "name an OWNER of models, or one of --software, --settings"),
    ("delegate --software --settings --key {pub}", "name an OWNER of models, or one of --software, --settings"),
    ("assign x @settings=acme/reader/1", "@settings holds settings, other slots hold models"),
    ("model withdraw acme/reader/9", "is not published; edge-fleet status lists what is"),
    ("model add nothere", "a release needs its owner; name it with --owner"),
    ("bootstrap x --out y", "'' is not an address; name where public is served"),
    ("bootstrap ../x --out y --url http://h", "'../x' is not a device's id"),
    ("verify nothere", "nothere: is not a folder"),
    ("repo init --root {pub} {pub} {pub} --targets {pub} --online {pub}", "there is a repository here already"),
    ("status --dir elsewhere", "elsewhere: holds no repository"),
    ("publish --dir elsewhere", "begin with edge-fleet repo init"),
    ("assign x --nothing --dir elsewhere", "edge-fleet publish comes first"),
    ("verify --dir ''", "must not be empty"),
    ("nonsense", "there is no 'nonsense'"),
]


@pytest.mark.parametrize(("line", "said"), WRONG, ids=[line for line, _ in WRONG])
def test_wrong_input_is_said_in_one_line(
    run: Run, settled: FleetRepository, monkeypatch: pytest.MonkeyPatch, line: str, said: str
) -> None:
    monkeypatch.chdir(settled.workspace.folder)
    (pem,) = key_files(settled, "models-acme")
    filled = line.format(pub=pem.replace(".pem", ".pub"), pem=pem, models=MODELS)
    before = settled.published
    code, out, err = run(*("" if word == "''" else word for word in filled.split()))
    assert (code, out) == (2, "")
    assert said in err
    assert err.count("\n") == 1
    assert err.startswith("edge-fleet")
    assert (settled.published, settled.workspace.drafts()) == (before, {})


def test_what_checks_models_must_be_there(run: Run, repository: FleetRepository, tmp_path: Path) -> None:
    add = ("model", "add", MODELS / "activity" / "1", "--owner", "acme", "--edge-gateway")
    code, _, err = run(*add, tmp_path / "nothere")
    assert (code, "name the program with --edge-gateway PATH" in err) == (3, True)
    code, _, err = run(*add, "/bin/true")
    assert (code, "did not answer: nothing" in err) == (3, True)


def test_what_this_machine_could_not_try_is_named(run: Run, repository: FleetRepository, tmp_path: Path) -> None:
    variants = [{"name": "int8", "tried": True, "reason": ""}, {"name": "npu", "tried": False, "reason": "no NPU"}]
    checked = {"ok": True, "releases": [{"name": "activity", "version": "1", "problem": "", "variants": variants}]}
    program = tmp_path / "checks"
    program.write_text(f"#!/bin/sh\necho '{json.dumps(checked)}'\n")
    program.chmod(0o700)
    code, _, err = run("model", "add", MODELS / "activity" / "1", "--owner", "acme", "--edge-gateway", program)
    assert (code, err) == (0, "not tried here: npu: no NPU\n")


@pytest.fixture
def checked(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that makes a stand-in for `edge-gateway config check --fleet-settings FILE --json`.

    The stand-in notes how it was called.
    """

    def program(ok: bool = True, findings: tuple[str, ...] = (), remarks: tuple[str, ...] = ()) -> Path:
        file, verdict = tmp_path / "checks", {"ok": ok, "findings": findings, "remarks": remarks}
        file.write_text(f"#!/bin/sh\necho \"$@\" >called\necho '{json.dumps(verdict)}'\nexit {0 if ok else 1}\n")
        file.chmod(0o700)
        return file

    return program


@pytest.fixture
def fleet_settings(run: Run, told: Callable[..., Any], repository: FleetRepository) -> None:
    """Make a role `settings` with two keys of its own, and a file `site.toml`."""
    for name in ("sam", "sue"):
        assert run("keys", "new", name)[0] == 0
    assert [draft["role"] for draft in told("delegate", "--settings", "--key", "sam.pub", "sue.pub")["drafts"]] == [
        "targets"
    ]
    sign(run, repository, "targets")
    told("publish")
    Path("site.toml").write_text("[mqtt]\nkeepalive_s = 10\n")


def signed_settings(run: Run, *keys: str) -> str:
    code, out, err = run("sign", "drafts/settings.json", *(f"--key={key}.pem" for key in keys), "--yes")
    assert code == 0, err
    return out


@pytest.mark.usefixtures("fleet_settings")
def test_settings_are_checked_signed_by_two_published_assigned_and_withdrawn(
    run: Run, told: Callable[..., Any], checked: Callable[..., Path], repository: FleetRepository
) -> None:
    add = ("settings", "add", "site.toml", "--name", "berlin", "--edge-gateway", checked(remarks=("a remark",)))
    code, _, err = run(*add)
    assert (code, err) == (0, "edge-fleet: warning: a remark\n")
    assert Path("called").read_text() == "config check --fleet-settings site.toml --json\n"
    said = signed_settings(run, "sam")
    assert "adds settings/berlin/1/release: berlin 1, floor 1, released " in said
    assert "1 more signature needed" in said
    signed_settings(run, "sue")
    assert told("publish")["published"] == {"settings": 1}
    Path("site.toml").write_text("[mqtt]\nkeepalive_s = 20\nurl = 'mqtt://broker'\n")
    assert told(*add)["warnings"] == ["a remark"]
    said = signed_settings(run, "sam", "sue")
    assert "    -keepalive_s = 10\n    +keepalive_s = 20\n" in said
    assert "    mqtt.url: DEVICES REFUSE THESE SETTINGS unless" in said
    told("publish")
    path = "settings/berlin/2/release"
    assigned = told("assign", "camera-7", "@settings=@settings/berlin/2", "reader=acme/reader/1")["assigned"][0]
    assert assigned["slots"] == {"@settings": path, "reader": READER}
    assert told("verify")["ok"]
    told("settings", "withdraw", "@settings/berlin/2")
    signed_settings(run, "sam", "sue")
    told("publish")
    barred = {one["target"]: one["barred"] for one in told("status")["releases"]}
    assert barred == {READER: "", "settings/berlin/1/release": "", path: "its owner withdrew it"}
    code, out, _ = run("status")
    assert re.search(r"@settings +│ berlin +│ 2 +│ 1 +│ its owner withdrew it", out)
    assert re.search(r"camera-7 +│ @settings=berlin 2, reader=reader 1 ", out)


@pytest.mark.usefixtures("fleet_settings")
def test_settings_that_do_not_pass_their_check_are_not_added(
    run: Run, checked: Callable[..., Path], repository: FleetRepository
) -> None:
    program = checked(ok=False, findings=("mqtt.keepalive_s: must be between 1 and 65535",))
    code, out, err = run("settings", "add", "site.toml", "--name", "berlin", "--edge-gateway", program)
    assert (code, out) == (1, "")
    assert "edge-fleet: site.toml: mqtt.keepalive_s: must be between 1 and 65535\n" in err
    assert "edge-fleet: not added: edge-gateway config check --fleet-settings has findings\n" in err
    assert (repository.workspace.drafts(), any(repository.workspace.staged.rglob("*.release"))) == ({}, False)


@pytest.mark.usefixtures("fleet_settings")
@pytest.mark.parametrize(
    ("text", "options", "said"),
    [
        ("[fleet]\nsettings = true\n", ("--name", "berlin"), "site.toml: fleet: never comes from a fleet"),
        ("[mqtt", ("--name", "berlin"), "site.toml: not valid TOML"),
        ("\xff", ("--name", "berlin"), "site.toml: is not UTF-8 text"),
        ("", (), "settings need a name"),
        ("", ("--name", "a/b"), "--name 'a/b': letters"),
        ("", ("--name", "berlin", "--version", "v 1"), "--version 'v 1': letters"),
        ("", ("--name", "berlin", "--version", "1", "--floor", "2"), "version 1 is below the floor 2"),
    ],
)
def test_what_can_be_no_settings_is_said_in_one_line(
    run: Run, repository: FleetRepository, text: str, options: tuple[str, ...], said: str
) -> None:
    Path("site.toml").write_text(text, encoding="latin-1")
    code, out, err = run("settings", "add", "site.toml", *options, "--edge-gateway", "/bin/false")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert said in err
    assert not repository.workspace.drafts()


def test_a_policy_permits_settings(run: Run, told: Callable[..., Any], repository: FleetRepository) -> None:
    Path("hours.json").write_text('{"schema": 1, "settings": ["mqtt.url", "grpc"]}')
    told("policy", "add", "hours.json")
    Path("hours.json").write_text('{"schema": 1, "settings": ["fleet.settings"]}')
    code, _, err = run("policy", "add", "hours.json")
    assert (code, "hours.json: settings: [fleet] never comes from a fleet" in err) == (2, True)


def test_a_policy_that_no_device_could_read_is_not_drafted(run: Run, repository: FleetRepository) -> None:
    Path("odd.json").write_text('{"schema": 1, "share_percent": 10}')
    code, _, err = run("policy", "add", "odd.json")
    assert (code, "odd.json: share_percent: unknown key" in err) == (2, True)
    assert not repository.workspace.drafts()


def test_a_policy_that_frees_what_waits_warns_of_it(
    run: Run, told: Callable[..., Any], repository: FleetRepository
) -> None:
    begun, ends = (f"{datetime.now(UTC) + hours * timedelta(hours=1):%Y-%m-%dT%H:%M:%SZ}" for hours in (-5, 5))
    hours = {"schema": 1, "share_percent_per_hour": 10, "blackouts": [{"start": begun, "end": ends}]}
    Path("hours.json").write_text(json.dumps(hours))
    assert told("policy", "add", "hours.json")["warnings"] == []
    sign(run, repository, "policy")
    told("publish")
    assert run("policy", "add", "hours.json")[2] == ""
    Path("hours.json").write_text(json.dumps(hours | {"blackouts": []}))
    (warning,) = told("policy", "add", "hours.json")["warnings"]
    assert f"the blackout {begun} to {ends} has begun, and this policy no longer lists it" in warning
    assert run("policy", "add", "hours.json")[2] == f"edge-fleet: warning: {warning}\n"
    (published,) = Path("public/targets/policy").iterdir()
    published.unlink()
    (warning,) = told("policy", "add", "hours.json")["warnings"]
    assert f"it is not known which blackouts this one leaves out: {published}" in warning


@pytest.mark.parametrize(("text", "said"), [("timestamp_expiry_d = 30", "at most 14, not"), ("x = 1", "unknown key")])
def test_wrong_settings_are_said(run: Run, text: str, said: str) -> None:
    Path("fleet.toml").write_text(text)
    code, _, err = run("status")
    assert (code, said in err, err.startswith("edge-fleet: fleet.toml:1: ")) == (2, True, True)
