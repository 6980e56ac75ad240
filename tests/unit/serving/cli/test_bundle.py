"""Bundles of `doctor` have no secret of a configuration that is refused, and a failure leaves no file."""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import tarfile
from pathlib import Path
from typing import Any

import pytest

from gateway.cli import main
from gateway.common.domain.errors import ConfigurationError
from gateway.common.domain.redaction import WITHHELD
from gateway.serving.cli import bundle, doctor
from gateway.serving.cli.bundle import PARTS_LIMIT, Redaction, check_name, write_bundle
from gateway.serving.cli.checks import ExaminedDevice
from gateway.serving.config import load_config

SECRET = "Hunter2Horse"


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the file of the service, which is absent yet."""
    monkeypatch.setattr(bundle, "DEFAULT_FILE", tmp_path / "edge.toml")
    monkeypatch.setattr(bundle, "command_output", lambda *_: f"log of {SECRET}")
    return tmp_path / "edge.toml"


def device(**given: Any) -> ExaminedDevice:
    absent = dict.fromkeys(("models", "url", "ca", "cert", "key", "token_file", "config"))
    return ExaminedDevice(argparse.Namespace(offline=True, state="/nowhere", **absent), **given)


@pytest.mark.parametrize(
    "text",
    [
        f"url = 'mqtt://u:pa/{SECRET}@host'",
        f"url = 'mqtt://u:{SECRET}@a@host'",
        f"url = 'mqtt://{SECRET}:1883'",
        f"url = '{SECRET}:1883'",
        f"url = 'mqtt://[{SECRET}]'",
        f"[[mqtt.broker]]\nurl = 'mqtt://{SECRET}'",
        f"username = '{SECRET}'",
        f"password_file = '{SECRET}'",
        f"passwort = '{SECRET}'",
        f"pass = ['{SECRET}']",
        f"[auth]\ntokens_file = '{SECRET}'",
    ],
)
def test_words_of_a_refused_configuration_are_withheld_in_any_case(config: Path, text: str) -> None:
    config.write_text(f"[mqtt]\nnonsense = 1\n{text}\n")
    with pytest.raises(ConfigurationError):
        load_config(config)
    redacted = Redaction(device())
    assert redacted.unknown == ""
    held = f"{redacted(f'to {SECRET}: {SECRET.lower()}x')!r}{redacted({SECRET: [SECRET.upper()]})!r}"
    assert SECRET.lower() not in held.lower()


def test_the_configuration_of_the_service_counts_besides_the_named_one(config: Path, tmp_path: Path) -> None:
    (tmp_path / "named.toml").write_text("")
    (tmp_path / "conf.d").mkdir()
    (tmp_path / "conf.d/site.toml").write_text(f"[mqtt]\nusername = '{SECRET}'\n")
    here = device()
    here.arguments.config = str(tmp_path / "named.toml")
    assert Redaction(here)(SECRET).decode() == WITHHELD
    assert not config.exists()


def test_short_names_are_withheld_where_they_stand_alone(config: Path) -> None:
    config.write_text("[mqtt]\nurl = 'mqtt://pi:1883'\nusername = 'gw'\n")
    redacted = Redaction(device(config=load_config(config)))
    assert redacted("mqtt://pi:1883 refused gw; pipe gws").decode() == (
        f"mqtt://{WITHHELD}:1883 refused {WITHHELD}; pipe gws"
    )


def test_words_of_files_that_are_not_utf_8_are_withheld(config: Path, tmp_path: Path) -> None:
    (tmp_path / "tokens").write_bytes(f"# f\xfcr camera {SECRET}\n".encode("latin-1"))
    (tmp_path / "password").write_bytes(b"xy\n")
    config.write_text(f"[auth]\ntokens_file = '{tmp_path}/tokens'\n[mqtt]\npassword_file = '{tmp_path}/password'\n")
    redacted = Redaction(device())
    assert redacted.unknown == ""
    assert redacted(f"{SECRET} xy # of xyz").decode() == f"{WITHHELD} {WITHHELD} # of xyz"


@pytest.mark.parametrize("kind", ["no TOML", "folder", "FIFO", "large file", "FIFO as configuration"])
def test_logs_are_left_out_if_their_secrets_cannot_be_recognised(
    config: Path, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config.write_text("[mqtt\n" if kind == "no TOML" else f"[auth]\ntokens_file = '{tmp_path}/tokens'\n")
    if kind == "folder":
        (tmp_path / "tokens").mkdir()
    elif kind == "FIFO":
        os.mkfifo(tmp_path / "tokens")
    elif kind == "large file":
        (tmp_path / "tokens").write_bytes(b"x" * (2**20 + 1))
    elif kind == "FIFO as configuration":
        config.unlink()
        os.mkfifo(config)
    written = write_bundle("report.tar.gz", device(), {})
    logs = {title: remark for title, _, remark in written if title.endswith((".log", ".txt"))}
    assert len(logs) == 4
    assert all("left out: secrets in it cannot be recognised: " in remark for remark in logs.values())
    with tarfile.open("report.tar.gz") as archive:
        assert not {name for name in archive.getnames() if name.endswith((".log", ".txt"))}


@pytest.mark.usefixtures("config")
def test_a_failure_names_the_file_and_leaves_none(tmp_path: Path) -> None:
    name = str(tmp_path / "report.tar.gz")

    def interrupted() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_bundle(name, device(), {"a": interrupted})
    assert not Path(name).exists()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (10, before[1]))
        with pytest.raises(ConfigurationError, match=re.escape(f"{name}: --bundle: cannot be written: File too large")):
            write_bundle(name, device(), {"a": lambda: "x"})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not Path(name).exists()
    write_bundle(name, device(), {})
    assert Path(name).is_file()


@pytest.mark.usefixtures("config")
def test_files_beyond_the_limit_are_counted(tmp_path: Path) -> None:
    name = str(tmp_path / "report.tar.gz")
    written = write_bundle(name, device(), {f"{number}.txt": lambda: "x" for number in range(PARTS_LIMIT)})
    with tarfile.open(name) as archive:
        assert len(archive.getnames()) == PARTS_LIMIT
        assert {one.size for one in archive} == {1}
    title, _, remark = written[-1]
    assert (title, remark) == ("6 more", f"left out: a bundle has at most {PARTS_LIMIT} files")


@pytest.mark.usefixtures("config")
def test_after_sudo_the_bundle_belongs_to_the_caller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    user, name = os.geteuid() or 12_345, tmp_path / "report.tar.gz"
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setenv("SUDO_UID", str(user))
    monkeypatch.setenv("SUDO_GID", str(os.getegid()))
    write_bundle(str(name), device(), {})
    assert (name.stat().st_uid, name.stat().st_mode & 0o777) == (user, 0o600)


def test_a_name_that_cannot_be_written_is_refused_before_the_checks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def carry_out(*_: Any, **__: Any) -> None:
        raise AssertionError

    monkeypatch.setattr(doctor.Examination, "carry_out", carry_out)
    assert main(["doctor", "--bundle", str(tmp_path / "absent/report.tar.gz")]) == 2
    assert f"{tmp_path}/absent is no folder; name a file in another folder" in capsys.readouterr().err
    with pytest.raises(ConfigurationError, match=r"ends in \.tar\.gz"):
        check_name(str(tmp_path / "report.zip"))


@pytest.mark.usefixtures("config")
def test_a_bundle_for_programs_is_reported_as_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(doctor, "LADDER", ())
    name = str(tmp_path / "report.tar.gz")
    assert main(["doctor", "--json", "--bundle", name]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["findings"], document["bundle"]["file"]) == ([], name)
    (first, *_) = document["bundle"]["files"]
    assert first["file"] == "doctor.json"
    assert first["bytes"] > 0
