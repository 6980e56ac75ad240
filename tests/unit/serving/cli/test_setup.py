"""Verb `setup`: what options write, what is refused, and that a refused answer leaves nothing behind."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tomllib
from hypothesis import given
from hypothesis import strategies as st

from gateway.cli import main
from gateway.common.domain.access import read_tokens, token_digest
from gateway.common.domain.errors import ConfigurationError
from gateway.serving.cli.service_user import UnitAccount, caller
from gateway.serving.cli.setup import memory_limits, toml_text
from gateway.serving.config import LEAST_MEMORY_MIB, load_config

GIB = 1024
Run = Callable[..., dict[str, Any]]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "edge-gateway.toml").touch()
    return tmp_path


@pytest.fixture
def run(folder: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """Return a function that runs `setup --yes --json` with options and returns its report."""

    def run(*options: str, code: int = 0) -> dict[str, Any]:
        done = main(["setup", "--yes", "--json", "--config", str(folder / "edge-gateway.toml"), *options])
        said = capsys.readouterr()
        assert done == code, said.err
        return json.loads(said.out) if code == 0 else {"error": said.err}

    return run


def written(folder: Path) -> dict[str, Any]:
    return tomllib.loads((folder / "conf.d" / "50-setup.toml").read_text())


def left(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_without_options_the_defaults_stay(folder: Path, run: Run) -> None:
    report = run()
    assert written(folder) == {}
    assert [entry["file"] for entry in report["files"]] == [f"{folder}/conf.d/50-setup.toml"]
    assert (folder / "conf.d" / "50-setup.toml").stat().st_mode & 0o777 == 0o644
    assert left(folder) == {"edge-gateway.toml", "conf.d/50-setup.toml"}


def test_the_network_needs_a_token_which_is_made_once(folder: Path, run: Run) -> None:
    report = run("--listen", "network")
    assert written(folder) == {
        "http": {"listen": ["0.0.0.0:8000"]},
        "auth": {"tokens_file": f"{folder}/tokens", "grant": [{"caller": "loopback", "scopes": ["admin"]}]},
    }
    tokens = read_tokens((folder / "tokens").read_text(), "tokens")
    assert list(tokens.by_digest) == [token_digest(report["token"])]
    assert (folder / "tokens").stat().st_mode & 0o777 == 0o640
    assert len(report["risks"]) == 1
    kept = (folder / "tokens").read_text()
    assert run("--listen", "network")["token"] is None
    assert (folder / "tokens").read_text() == kept
    assert run("--listen", "device")["risks"] == []
    assert written(folder) == {}


def test_what_was_answered_stays_where_an_option_is_not_given(folder: Path, run: Run) -> None:
    (folder / "mine").mkdir()
    run("--mqtt", "mqtt://127.0.0.1:1", "--mqtt-username", "me", "--no-check", "--models", str(folder / "mine"))
    run("--listen", "network")
    found = written(folder)
    assert found["mqtt"] == {"url": "mqtt://127.0.0.1:1", "username": "me"}
    assert found["models"] == {"dir": str(folder / "mine")}
    run("--mqtt", "off", "--models", "/var/lib/edge-gateway/models", "--examples", "no", "--listen", "device")
    assert written(folder) == {"models": {"examples": False}}
    run("--examples", "yes")
    assert written(folder) == {}


def test_values_of_other_files_are_not_repeated_and_can_be_overridden(folder: Path, run: Run) -> None:
    (folder / "edge-gateway.toml").write_text(
        "[mqtt]\nurl = 'mqtt://127.0.0.1:1'\nusername = 'me'\n[models]\nexamples = false\n"
    )
    run()
    assert written(folder) == {}
    run("--mqtt", "off", "--examples", "yes")
    assert written(folder) == {"mqtt": {"url": ""}, "models": {"examples": True}}
    assert load_config(folder / "edge-gateway.toml").mqtt.url == ""


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--models", "/nowhere/at/all"), "models.dir: /nowhere/at/all is no folder; create it"),
        (("--models", "relative"), "name the folder by its absolute path"),
        (("--mqtt", "http://127.0.0.1"), "mqtt.url: "),
        (("--mqtt", "mqtt://me:word@127.0.0.1", "--no-check"), "mqtt.url: "),
        (("--mqtt", "mqtt://127.0.0.1:1"), "the broker at mqtt://127.0.0.1:1 cannot be used"),
        (("--mqtt", "mqtt://127.0.0.1:1", "--mqtt-password-file", "/nowhere", "--no-check"), "/nowhere is no file"),
        (("--mqtt", "mqtt://127.0.0.1:1", "--mqtt-password-file", "word", "--no-check"), "by its absolute path"),
        (("--mqtt", "mqtt://127.0.0.1:1", "--mqtt-password-file", "/etc/passwd", "--no-check"), "username: "),
        (("--mqtt-username", "me"), "--mqtt-username and --mqtt-password-file need a broker"),
        (("--mqtt", "off", "--mqtt-password-file", "/etc/passwd"), "need a broker"),
        (("--models", "/etc", "--examples", "no"), "the examples serve only next to /var/lib/edge-gateway/models"),
    ],
)
def test_a_wrong_option_leaves_nothing_behind(folder: Path, run: Run, options: tuple[str, ...], said: str) -> None:
    error = run("--listen", "network", *options, code=2)["error"]
    assert "nothing is written: " in error
    assert said in error
    assert "word@" not in error
    assert left(folder) == {"edge-gateway.toml"}


def test_a_later_file_that_overrides_the_answer_is_named(folder: Path, run: Run) -> None:
    (folder / "conf.d").mkdir()
    (folder / "conf.d" / "10-early.toml").write_text("[models]\nexamples = true\n")
    (folder / "conf.d" / "90-late.toml").write_text("[http]\nlisten = ['127.0.0.1:9000']\n")
    assert run("--examples", "no")["written"]
    error = run("--listen", "network", code=2)["error"]
    assert "conf.d/90-late.toml:2: http.listen: overrides the answer" in error


def test_a_camera_is_added_with_its_password_in_a_file_of_its_own(folder: Path, run: Run) -> None:
    words = ("--camera", "rtsp://me:w%40rd@10.0.0.7/h264", "--camera-model", "street", "--no-check")
    assert "w@rd" not in json.dumps(run(*words, "--dry-run"))
    assert left(folder) == {"edge-gateway.toml"}
    report = run(*words)
    secret = folder / "camera-camera"
    assert "w@rd" not in json.dumps(report)
    assert (secret.read_text(), secret.stat().st_mode & 0o777) == ("me:w@rd\n", 0o640)
    door = {"name": "camera", "url": "rtsp://10.0.0.7/h264", "model": "street", "credential": str(secret)}
    assert written(folder) == {"camera": [door]}
    yard = {"name": "yard", "url": "/dev/video0", "model": "plates"}
    run("--camera", "/dev/video0", "--camera-name", "yard", "--camera-model", "plates", "--no-check")
    assert written(folder) == {"camera": [door, yard]}
    run("--examples", "no")  # other answers leave cameras as they are
    run("--camera", "rtsp://10.0.0.9/h264", "--camera-name", "camera", "--no-check")
    moved = {**door, "url": "rtsp://10.0.0.9/h264"}
    assert written(folder) == {"models": {"examples": False}, "camera": [moved, yard]}
    run("--camera", "off")
    assert written(folder) == {"models": {"examples": False}}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--camera", "ftp://10.0.0.7/x"), "is no camera"),
        (("--camera", "rtsp://127.0.0.1:1/x"), "does not accept connections at port 1"),
        (("--camera", "rtsp://camera.invalid/x"), "camera.invalid is not found"),
        (("--camera", "/dev/video-nosuch"), "is not there"),
        (("--camera", "rtsp://10.0.0.7/x", "--camera-name", "a b"), "must be 1 to 64 letters"),
    ],
)
def test_a_camera_that_cannot_be_reached_is_not_written(
    folder: Path, run: Run, options: tuple[str, ...], said: str
) -> None:
    assert said in run(*options, "--camera-model", "street", code=2)["error"]
    assert left(folder) == {"edge-gateway.toml"}


@pytest.mark.parametrize(
    ("url", "login"),
    [
        ("rtsp://192.0.2.1:554/user=a@b&x=1", ""),
        ("http://192.0.2.1/mjpeg?mail=a@b", ""),
        ("rtsp://me:p%40ss%2F@192.0.2.1:554/user=a@b&x=1", "me:p@ss/\n"),
        ("rtsp://me:a:b@192.0.2.1:554/user=a@b&x=1", "me:a:b\n"),
    ],
)
def test_only_what_stands_before_the_host_is_a_login(folder: Path, run: Run, url: str, login: str) -> None:
    run("--camera", url, "--camera-model", "street", "--no-check")
    (camera,) = written(folder)["camera"]
    secret = folder / "camera-camera"
    assert camera["url"] == (f"rtsp://{url.split('@', 1)[1]}" if login else url)
    assert (secret.read_text() if secret.exists() else "") == login


def test_a_user_without_a_password_has_an_empty_one_and_it_is_said(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--camera", "rtsp://admin@192.0.2.1/h264", "--camera-model", "street", "--no-check")
    assert main(["setup", "--yes", "--config", str(folder / "edge-gateway.toml"), *words]) == 0
    assert "a user without a password" in capsys.readouterr().err
    assert (folder / "camera-camera").read_text() == "admin:\n"


@pytest.mark.parametrize(
    "login", ["me:a%0Ab", "m%0Ae:ab", "me:a%00", "me:a%C2%85b", "me:ab%20", ":ab", "m%3Ae:ab", "me:%ff"]
)
def test_a_login_that_the_file_cannot_hold_is_refused(folder: Path, run: Run, login: str) -> None:
    error = run("--camera", f"rtsp://{login}@192.0.2.1/h264", "--camera-model", "street", "--no-check", code=2)["error"]
    assert "the url" in error
    assert login not in error
    assert left(folder) == {"edge-gateway.toml"}


@pytest.mark.parametrize("place", ["h264?user=admin&password=w0rd", "user=admin_password=w0rd_channel=1"])
def test_settings_with_a_password_in_a_url_are_not_for_every_user(folder: Path, run: Run, place: str) -> None:
    run("--camera", f"rtsp://192.0.2.1/{place}", "--camera-model", "street", "--no-check")
    assert (folder / "conf.d" / "50-setup.toml").stat().st_mode & 0o777 == 0o640
    run("--camera", "rtsp://192.0.2.1/h264", "--camera-model", "street", "--no-check")
    assert (folder / "conf.d" / "50-setup.toml").stat().st_mode & 0o777 == 0o644


def test_cameras_of_another_file_are_not_replaced(folder: Path, run: Run) -> None:
    (folder / "edge-gateway.toml").write_text('[[camera]]\nname = "door"\nurl = "/dev/video0"\nmodel = "m"\n')
    assert "another file has a [[camera]]" in run("--camera", "rtsp://10.0.0.7/x", code=2)["error"]
    run()
    assert written(folder) == {}


def test_a_wrong_configuration_is_named_before_anything_is_asked(folder: Path, run: Run) -> None:
    (folder / "edge-gateway.toml").write_text("[http]\nlissen = []\n")
    assert "edge-gateway.toml:2: http.lissen: unknown key" in run(code=2)["error"]
    assert left(folder) == {"edge-gateway.toml"}


def test_earlier_answers_stay_if_a_later_file_overrides_one(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "conf.d").mkdir()
    (folder / "conf.d" / "50-setup.toml").write_text(
        "[mqtt]\nurl = 'mqtt://a'\nusername = 'me'\n[models]\nexamples = true\n"
    )
    (folder / "conf.d" / "90-late.toml").write_text("[mqtt]\nurl = 'mqtt://b'\n")
    assert main(["setup", "--yes", "--config", str(folder / "edge-gateway.toml"), "--examples", "no"]) == 0
    assert written(folder) == {"mqtt": {"username": "me"}, "models": {"examples": False}}
    assert "conf.d/90-late.toml overrides the earlier answer mqtt.url, which is left out" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[http]\nno_such = 1\n", ":2: http.no_such: unknown key"),
        ("x = 1\n", ":1: x: unknown key"),
        ("http = 1\n", ":1: http: must be a table"),
        ("[[mqtt]]\nurl = 'mqtt://a'\n", ": mqtt: must be a table"),
        ("[mqtt]\nurl = 2031-05-09\n", ":2: mqtt.url: must be a string"),
    ],
)
def test_answers_that_were_edited_by_hand_and_are_wrong_are_named_and_stay(
    folder: Path, run: Run, text: str, said: str
) -> None:
    (folder / "conf.d").mkdir()
    (folder / "conf.d" / "50-setup.toml").write_text(text)
    assert f"50-setup.toml{said}" in run("--examples", "no", code=2)["error"]
    assert (folder / "conf.d" / "50-setup.toml").read_text() == text


def test_a_dry_run_shows_the_files_and_writes_none(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["setup", "--yes", "--dry-run", "--examples", "no", "--config", str(folder / "edge-gateway.toml")]
    assert main(words) == 0
    assert f"==== {folder}/conf.d/50-setup.toml, mode 0644" in (said := capsys.readouterr().out)
    assert "[models]\nexamples = false\n" in said
    assert left(folder) == {"edge-gateway.toml"}


def test_without_a_terminal_it_needs_yes(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["setup", "--config", str(folder / "edge-gateway.toml")]) == 2
    assert "use --yes with options" in capsys.readouterr().err


def test_a_folder_of_root_names_the_command(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda _path, _mode: False)  # root may write everywhere
    monkeypatch.setattr("sys.argv", ["edge-gateway", "setup", "--yes", "--mqtt", "a b"])
    assert main(["setup", "--yes", "--config", str(folder / "edge-gateway.toml")]) == 2
    assert "belongs to root; run: sudo edge-gateway setup --yes --mqtt 'a b'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("memory", "budget", "high", "most"),
    [
        (512, 0, 266, 320),
        (1 * GIB, 0, 640, 768),
        (2 * GIB, 0, 1493, 1792),
        (2 * GIB, 1 * GIB, 1493, 1792),
        (2 * GIB, 1600, 1792, 1792),
        (4 * GIB, 1 * GIB, 3072, 3686),
        (64 * GIB, 0, 49152, 58982),
    ],
)
def test_the_limits_of_memory_leave_room_for_the_system_and_the_largest_model(
    memory: int, budget: int, high: int, most: int
) -> None:
    mib = 1024 * 1024
    assert memory_limits(memory * mib, budget * mib) == (high, most)
    assert most * 5 // 6 >= LEAST_MEMORY_MIB, "else the gateway has less than the least [gateway] memory_mib"


TEXT = st.text(st.characters(exclude_categories=["Cs"]))


@given(
    st.dictionaries(
        st.sampled_from("ab"), st.dictionaries(st.sampled_from("xyz"), TEXT | st.booleans() | st.lists(TEXT))
    )
)
def test_what_is_written_is_read_back(values: dict[str, dict[str, Any]]) -> None:
    assert tomllib.loads(toml_text(values)) == {table: keys for table, keys in values.items() if keys}


@pytest.fixture
def unit(monkeypatch: pytest.MonkeyPatch) -> UnitAccount:
    """Return a unit of this user, that is installed."""
    unit = UnitAccount(str(os.geteuid()), str(os.getegid()))
    monkeypatch.setattr("gateway.serving.cli.setup.service_account", lambda _user: (caller(), unit))
    return unit


@pytest.mark.usefixtures("unit")
def test_the_installed_configuration_is_known_by_any_of_its_names(
    folder: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder.parent / "link").symlink_to(folder)
    monkeypatch.setattr("gateway.serving.cli.setup.DEFAULT_FILE", folder.parent / "link" / "edge-gateway.toml")
    assert run("--dry-run")["files"][-1]["file"].endswith("/50-memory.conf")


@pytest.mark.usefixtures("unit")
def test_the_service_can_read_tokens_of_every_configuration(
    folder: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups = []
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(shutil, "chown", lambda _file, group: groups.append(group))
    run("--listen", "network")
    assert groups == [caller().group]


@pytest.mark.usefixtures("unit")
def test_the_token_is_shown_although_the_restart_fails(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_words: str) -> None:
        raise ConfigurationError("the settings are written, but systemctl failed")

    main_file = folder / "edge-gateway.toml"
    monkeypatch.setattr("gateway.serving.cli.setup.DEFAULT_FILE", main_file)
    monkeypatch.setattr("gateway.serving.cli.setup.DROP_IN", folder / "50-memory.conf")
    monkeypatch.setattr("gateway.serving.cli.setup._systemctl", fail)
    monkeypatch.setattr("gateway.serving.cli.setup.is_booted", lambda: True)
    words = ["setup", "--yes", "--json", "--listen", "network", "--restart", "--config", str(main_file)]
    assert main(words) == 2
    said = capsys.readouterr()
    tokens = read_tokens((folder / "tokens").read_text(), "tokens")
    assert token_digest(json.loads(said.out)["token"]) in tokens.by_digest
    assert (json.loads(said.out)["restarted"], "systemctl failed" in said.err) == (False, True)


def test_a_gateway_that_is_open_on_purpose_stays_as_it_is(folder: Path, run: Run) -> None:
    (folder / "edge-gateway.toml").write_text("[http]\nlisten = ['0.0.0.0:9000']\n[auth]\nanonymous = true\n")
    assert any("anyone on the network may send requests" in risk for risk in run("--examples", "no")["risks"])
    assert written(folder) == {"models": {"examples": False}}
    assert left(folder) == {"edge-gateway.toml", "conf.d/50-setup.toml"}


def test_tokens_stay_where_another_file_permits_anonymous_callers_later(folder: Path, run: Run) -> None:
    run("--listen", "network")
    (folder / "edge-gateway.toml").write_text("[auth]\nanonymous = true\n")
    run("--examples", "no")
    assert written(folder)["auth"]["tokens_file"] == f"{folder}/tokens"


@pytest.mark.parametrize(
    ("listen", "network"),
    [
        (["127.0.0.1:9000"], ["0.0.0.0:9000"]),
        (["unix:/run/h.sock", "[::1]:9000", "127.0.0.1:9000"], ["unix:/run/h.sock", "0.0.0.0:9000"]),
        (["unix:/run/h.sock"], ["unix:/run/h.sock", "0.0.0.0:8000"]),
        (["off"], ["0.0.0.0:8000"]),
    ],
)
def test_the_ports_of_the_other_files_stay(folder: Path, run: Run, listen: list[str], network: list[str]) -> None:
    (folder / "edge-gateway.toml").write_text(f"[http]\nlisten = {listen}\n")
    run("--listen", "network")
    assert written(folder)["http"] == {"listen": network}
    run("--listen", "device")
    assert all(address.private for address in load_config(folder / "edge-gateway.toml").http_listen)


def test_a_user_name_in_a_file_stays_with_its_password(folder: Path, run: Run) -> None:
    text = "[mqtt]\nurl = 'mqtt://a'\nusername_file = '/etc/passwd'\npassword_file = '/etc/passwd'\n"
    (folder / "edge-gateway.toml").write_text(text)
    run("--examples", "no")
    assert written(folder) == {"models": {"examples": False}}


def test_an_earlier_answer_that_is_wrong_now_can_be_replaced(folder: Path, run: Run) -> None:
    for name in ("one", "two"):
        (folder / name).mkdir()
    run("--models", str(folder / "one"))
    (folder / "one").rmdir()
    assert f"{folder}/one is no folder" in run("--listen", "network", code=2)["error"]
    run("--listen", "network", "--models", str(folder / "two"))
    assert written(folder)["models"] == {"dir": str(folder / "two")}


def test_only_the_installed_service_is_restarted(folder: Path, run: Run) -> None:
    assert "the service of this configuration is not installed here" in run("--restart", code=2)["error"]
    assert left(folder) == {"edge-gateway.toml"}


def test_what_is_written_names_files_by_absolute_paths(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    assert main(["setup", "--yes", "--listen", "network", "--config", "edge-gateway.toml"]) == 0
    assert written(folder)["auth"]["tokens_file"] == f"{folder}/tokens"
