"""A publisher's life at a shell: key files, drafts that travel, releases that real programs checked, a file server."""

from __future__ import annotations

import hashlib
import json
import os
import pty
import re
import select
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulators.publisher import MODELS, PASSPHRASE, Publisher, publisher
from tests.simulators.stock_client import StockClient
from tests.simulators.triton_examples import write_external

__all__ = ["publisher"]
pytestmark = pytest.mark.timeout(180)
TARGET = "models/acme/meter-reader/1/release"


def test_what_is_published_is_whole(publisher: Publisher, tmp_path: Path) -> None:
    report = publisher.told("verify")
    assert report["ok"]
    assert report["files"] == 12
    root = (publisher.public / "metadata/1.root.json").read_bytes()
    release = json.loads(StockClient(tmp_path, publisher.public, root).download(TARGET))
    manifest = publisher.public / "blobs/sha256" / release["manifest"]["sha256"]
    assert manifest.read_bytes() == (MODELS / "meter-reader/1/manifest.toml").read_bytes()
    assert not any(file.is_file() for file in (publisher.folder / "staged").rglob("*"))


def test_nothing_secret_is_published(publisher: Publisher) -> None:
    for file in publisher.public.rglob("*"):
        if file.is_file():
            assert b"PRIVATE KEY" not in file.read_bytes()
            assert stat.S_IMODE(file.stat().st_mode) == 0o644
    assert all(stat.S_IMODE(file.stat().st_mode) == 0o600 for file in publisher.folder.rglob("*.pem"))


def test_a_model_that_fails_its_golden_set_is_not_added(publisher: Publisher, tmp_path: Path) -> None:
    folder = tmp_path / "activity" / "1"
    shutil.copytree(MODELS / "activity" / "1", folder)
    text = (folder / "manifest.toml").read_text()
    (folder / "manifest.toml").write_text(re.sub(r"mean_abs = [0-9.]+", "mean_abs = 0.0", text))
    add = ("model", "add", folder, "--owner", "acme", "--edge-gateway", publisher.gateway)
    done = publisher.run(*add, code=1)
    assert "models check has findings" in done.stderr
    assert "✗" in done.stdout
    assert "golden" in done.stdout
    assert not json.loads(publisher.run(*add, "--json", code=1).stdout)["ok"]
    assert publisher.told("status")["drafts"] == []


def test_a_model_whose_file_was_changed_is_not_added(publisher: Publisher, tmp_path: Path) -> None:
    folder = tmp_path / "activity" / "1"
    shutil.copytree(MODELS / "activity" / "1", folder)
    with (folder / "onnx-int8" / "model.onnx").open("ab") as file:
        file.write(b"x")
    done = publisher.run("model", "add", folder, "--owner", "acme", "--edge-gateway", publisher.gateway, code=1)
    assert "bytes, the manifest says" in done.stdout


def test_a_release_is_added_with_every_file_that_its_models_refer_to(publisher: Publisher, tmp_path: Path) -> None:
    folder = tmp_path / "large" / "1"
    model = write_external(folder / "any.onnx", 1.0)
    files = [_artifact(model)]
    text = """
        schema = 1
        name = "large"
        version = "1"
        input = [{name = "x", datatype = "FP32", shape = [-1, 64]}]
        output = [{name = "y", datatype = "FP32", shape = [-1, 64]}]
        [[variant]]
        name = "only"
        runtime = "onnx"
        precision = "fp32"
        artifacts = [%s]"""
    (folder / "manifest.toml").write_text(text % files[0])
    add = ("model", "add", folder, "--owner", "acme", "--edge-gateway", publisher.gateway)
    refused = json.loads(publisher.run(*add, "--json", code=1).stdout)["releases"][0]["problem"]
    line = _artifact(folder / "weights.bin")
    assert f"any.onnx refers to weights.bin, which is not among the artifacts; add {line}" in refused
    whole = text % f"{files[0]}, {line}"
    (folder / "manifest.toml").write_text(whole)
    refused = publisher.run(*add, code=2).stderr
    assert "devices would refuse variant only: it is exercised here, and what is signed must be proven" in refused
    assert 'add a golden set, or write require = "exercised"' in refused
    (folder / "manifest.toml").write_text(f'require = "exercised"\n{whole}')
    publisher.run(*add)
    digest = hashlib.sha256((folder / "weights.bin").read_bytes()).hexdigest()
    assert any(digest in file.name for file in (publisher.folder / "staged").rglob("*"))


def _artifact(file: Path) -> str:
    content = file.read_bytes()
    return f'{{path = "{file.name}", sha256 = "{hashlib.sha256(content).hexdigest()}", bytes = {len(content)}}}'


def test_a_draft_is_signed_where_nothing_else_is(publisher: Publisher, tmp_path: Path) -> None:
    """The key holder's machine has the draft and the key: no repository, no model."""
    publisher.run("renew", "models-acme")
    holder = Publisher(tmp_path / "holder")
    for name in ("acme.pem", "drafts/models-acme.json"):
        shutil.copy(publisher.folder / name, holder.folder)
    done = holder.run("sign", "models-acme.json", "--key", "acme.pem", "--yes")
    assert "models-acme, version 2, valid until" in done.stdout
    assert "complete: edge-fleet publish" in done.stdout
    publisher.run("publish", holder.folder / "models-acme.json")
    assert publisher.told("status")["drafts"] == []


def typed(publisher: Publisher, answers: dict[str, str], *arguments: str) -> tuple[int, str]:
    """Run a command at a terminal, where each answer is typed once its question stands there.

    Return exit code and all that was shown.
    """
    environment = {k: v for k, v in publisher.environment.items() if k != "EDGE_FLEET_PASSPHRASE"}
    controller, terminal = pty.openpty()
    command = [sys.executable, "-m", "fleet", *arguments]
    process = subprocess.Popen(
        command,
        cwd=publisher.folder,
        env=environment,
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        start_new_session=True,
    )
    os.close(terminal)
    shown, answered = "", 0
    while select.select([controller], [], [], 30)[0]:
        try:
            shown += os.read(controller, 65536).decode(errors="replace")
        except OSError:  # EIO: the other side is closed
            break
        for question, answer in answers.items():
            if shown.count(question) and question in shown[answered:]:
                answered = len(shown)
                os.write(controller, f"{answer}\n".encode())
    os.close(controller)
    return process.wait(30), shown


def test_passphrases_are_typed_twice_and_shown_never(publisher: Publisher) -> None:
    answers = {"new passphrase of ": PASSPHRASE, "the same again: ": PASSPHRASE}
    code, shown = typed(publisher, answers, "keys", "new", "typist")
    assert code == 0, shown
    assert PASSPHRASE not in shown
    code, shown = typed(publisher, {**answers, "the same again: ": "something else"}, "keys", "new", "other")
    assert code == 2
    assert "the two passphrases differ; nothing was made" in shown
    assert not (publisher.folder / "other.pem").exists()


def test_a_holder_reads_and_agrees_at_a_terminal(publisher: Publisher) -> None:
    publisher.run("renew", "targets")
    answers = {"passphrase of alice.pem: ": PASSPHRASE, "sign this? [y/N] ": "y"}
    code, shown = typed(publisher, answers, "sign", "drafts/targets.json", "--key", "alice.pem")
    assert code == 0, shown
    assert "nothing changes but the version and the time it is valid" in shown
    assert "signed drafts/targets.json: complete: edge-fleet publish" in shown
    publisher.run("publish")
