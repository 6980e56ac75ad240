"""Installation by `make install`: whole, movable, compiled, and naming no folder that it was built in."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from gateway import __version__
from tests.simulators.fleet_repository import FleetRepository
from tests.system.installation import AGENT as EDGE_AGENT
from tests.system.installation import (
    AGENT_CONFIGURATION,
    AGENT_UNIT,
    CONFIGURATION,
    HOME,
    REPOSITORY,
    SOFTWARE,
    SOFTWARE_CONFIGURATION,
    SOFTWARE_SOCKET,
    SOFTWARE_UNIT,
    UNIT,
    VENV,
    clean_environment,
    files,
    installed,
    run,
)
from tests.system.installation import COMMAND as EDGE_GATEWAY

pytestmark = pytest.mark.timeout(300)

UNCHECKED_HASH = 0b01  # PEP 552: flags behind the magic number


def _packages() -> Path:
    return next((installed() / VENV / "lib").glob("python3*")) / "site-packages"


def test_what_lands_where() -> None:
    assert files(installed()) == {
        "etc/edge-gateway/edge-agent.toml",
        "etc/edge-gateway/edge-gateway.toml",
        "etc/edge-gateway/edge-software.toml",
        "usr/local/bin/edge-agent",
        "usr/local/bin/edge-gateway",
        "usr/local/bin/edge-software",
        "usr/local/lib/systemd/system/edge-agent.service",
        "usr/local/lib/systemd/system/edge-gateway.service",
        "usr/local/lib/systemd/system/edge-software.service",
        "usr/local/lib/systemd/system/edge-software.socket",
        "usr/local/lib/sysusers.d/edge-gateway.conf",
        "usr/local/lib/tmpfiles.d/edge-gateway.conf",
        "usr/local/lib/udev/rules.d/40-edge-gateway.rules",
        "usr/local/share/doc/edge-gateway/README.md",
        "usr/local/share/edge-gateway/device_profiles",
        "usr/local/share/edge-gateway/edge-agent.toml",
        "usr/local/share/edge-gateway/edge-gateway-reference.toml",
        "usr/local/share/edge-gateway/edge-gateway.toml",
        "usr/local/share/edge-gateway/edge-software.toml",
        "usr/local/share/edge-gateway/models",
        "usr/local/share/edge-gateway/models.md",
        *(
            f"usr/local/share/{place}".format(name)
            for name in ("edge-agent", "edge-gateway", "edge-software")
            for place in (
                "bash-completion/completions/{}",
                "fish/vendor_completions.d/{}.fish",
                "man/man1/{}.1",
                "zsh/site-functions/_{}",
            )
        ),
    }


@pytest.mark.parametrize("command", [EDGE_GATEWAY, EDGE_AGENT, SOFTWARE])
def test_the_command_works_where_it_was_moved_to(command: Path, tmp_path: Path) -> None:
    done = run(installed() / command, "--version", env=clean_environment(), cwd=tmp_path)
    assert done.stdout.startswith(f"{command.name} ")


@pytest.mark.parametrize("command", [EDGE_GATEWAY, EDGE_AGENT, SOFTWARE])
def test_the_working_directory_is_not_searched_for_modules(command: Path, tmp_path: Path) -> None:
    (tmp_path / "gateway.py").write_text("raise SystemExit('not this one')\n")
    done = run(installed() / command, "--version", env=clean_environment(), cwd=tmp_path)
    assert done.stdout.startswith(f"{command.name} ")


def test_the_agent_s_default_is_the_store_of_its_unit(tmp_path: Path) -> None:
    done = run(installed() / EDGE_AGENT, "status", env=clean_environment(), check=False)
    assert (done.returncode, done.stderr.count("/var/lib/edge-agent: holds no device")) == (2, 1)
    for name, folder in (("STATE_DIRECTORY", tmp_path), ("XDG_STATE_HOME", tmp_path / "edge-agent")):
        done = run(installed() / EDGE_AGENT, "status", env=clean_environment(**{name: str(tmp_path)}), check=False)
        assert f"{folder}: holds no device" in done.stderr


def test_the_agent_verifies_with_what_is_installed(tmp_path: Path) -> None:
    """Libraries for signatures are installed, and they are enough."""
    repository, source = FleetRepository(tmp_path / "fleet"), tmp_path / "given"
    repository.assign("door-1", {})
    source.mkdir()
    url = repository.public.as_uri()
    told = {"schema": 1, "device": "door-1", "repository": url, "assignment": f"{url}/assignments/door-1.json"}
    (source / "device.json").write_text(json.dumps(told))
    (source / "root.json").write_bytes(repository.root_bytes(1))
    state = ("--state", tmp_path / "store")
    run(installed() / EDGE_AGENT, "bootstrap", source, *state, env=clean_environment())
    done = run(installed() / EDGE_AGENT, "sync", "--json", *state, env=clean_environment())
    assert json.loads(done.stdout)["assignment"]["version"] == 1


def test_it_probes_by_its_own_profiles(tmp_path: Path) -> None:
    done = run(installed() / EDGE_GATEWAY, "probe", "--json", env=clean_environment(), cwd=tmp_path)
    profiles = installed() / "usr/local/share/edge-gateway/device_profiles"
    assert (profiles / f"{json.loads(done.stdout)['profile']}.toml").is_file()


@pytest.mark.parametrize("model", ["meter-reader", "activity"])
def test_it_infers_with_its_own_models(model: str, tmp_path: Path) -> None:
    golden = installed() / "usr/local/share/edge-gateway/models" / model / "1" / "golden.npz"
    environment = clean_environment(XDG_STATE_HOME=str(tmp_path))
    done = run(installed() / EDGE_GATEWAY, "infer", model, "--npz", golden, "--output", "json", env=environment)
    assert json.loads(done.stdout)["model_name"] == model


@pytest.mark.parametrize("model", ["meter-reader", "activity"])
def test_no_runtime_collects_anything_at_home(model: str, tmp_path: Path) -> None:
    """ONNX Runtime would keep a device id and events to report under ~/.cache."""
    environment = clean_environment(HOME=str(tmp_path / "home"))
    options = ("--json", "--state", tmp_path / "state")
    done = run(installed() / EDGE_GATEWAY, "explain", model, *options, env=environment)
    assert {variant["runtime"] for variant in json.loads(done.stdout)["variants"]} >= {"onnx", "openvino", "litert"}
    assert not (tmp_path / "home").exists()


def test_every_module_is_compiled_under_its_final_path() -> None:
    sources = list(_packages().rglob("*.py"))
    assert len(sources) > 1000
    for package in ("gateway", "numpy", "tuf", "cryptography", "onnxruntime", "litestar", "google"):
        missing = [source for source in (_packages() / package).rglob("*.py") if not _byte_code(source).is_file()]
        assert not missing
    compiled = _byte_code(_packages() / "gateway/serving/daemon.py").read_bytes()
    assert int.from_bytes(compiled[4:8], "little") == UNCHECKED_HASH
    assert (
        f"/usr/local/lib/edge-gateway/versions/{(installed() / VENV).resolve().name}/lib/python3".encode() in compiled
    )


def test_both_links_lead_to_the_one_version_that_is_there() -> None:
    (version,) = (installed() / HOME / "versions").iterdir()
    assert re.fullmatch(rf"{re.escape(__version__)}-[0-9a-f]{{8}}", version.name)
    for link in ("current", "confirmed"):
        assert (installed() / HOME / link).readlink() == Path("versions") / version.name
    assert (installed() / EDGE_GATEWAY).readlink() == Path("../lib/edge-gateway/current/bin/edge-gateway")
    assert (installed() / SOFTWARE).readlink() == Path("../lib/edge-gateway/confirmed/bin/edge-software")


def test_nothing_names_the_folders_it_was_built_in() -> None:
    traces = (b"/assembled/", b"/versions/.tmp-", b"edge-gateway-build.", str(REPOSITORY).encode())
    programs, metadata = (installed() / VENV / "bin").iterdir(), _packages().glob("*.dist-info/*")
    texts = [
        *(path for path in (*programs, *metadata) if path.is_file() and not path.name.startswith("python")),
        installed() / VENV / "pyvenv.cfg",
        *(_packages() / "gateway").rglob("*.pyc"),
    ]
    assert len(texts) > 100
    assert [str(path) for path in texts for trace in traces if trace in path.read_bytes()] == []


def test_openvino_comes_without_what_reports_its_use() -> None:
    distributions = {path.name.partition("-")[0] for path in _packages().glob("*.dist-info")}
    assert {"openvino", "onnxruntime", "ai_edge_litert", "edge_inference_gateway"} <= distributions
    assert "openvino_telemetry" not in distributions


def test_only_our_programs_and_python_are_there_to_run() -> None:
    names = {path.name for path in (installed() / VENV / "bin").iterdir()}
    assert {name for name in names if not name.startswith("python")} == {"edge-gateway", "edge-agent", "edge-software"}


def test_any_user_may_read_and_only_root_may_write() -> None:
    wrong = [
        str(path)
        for path in (installed() / EDGE_GATEWAY, *installed().rglob("*"))
        if not path.is_symlink() and (path.stat().st_mode & 0o022 or not path.stat().st_mode & 0o004)
    ]
    assert wrong == []


def test_the_interpreter_is_one_that_the_service_can_see() -> None:
    assert not str((installed() / VENV / "bin" / "python3").resolve()).startswith(("/root/", "/home/"))


def test_configuration_and_unit_are_the_ones_of_the_source() -> None:
    for configuration in (CONFIGURATION, AGENT_CONFIGURATION, SOFTWARE_CONFIGURATION):
        shipped = REPOSITORY / "packaging" / configuration.name
        assert (installed() / configuration).read_text() == shipped.read_text()
    for unit in (UNIT, AGENT_UNIT, SOFTWARE_UNIT, SOFTWARE_SOCKET):
        assert (installed() / unit).read_text() == (REPOSITORY / "systemd" / unit.name).read_text()


def _byte_code(source: Path) -> Path:
    found = list((source.parent / "__pycache__").glob(f"{source.stem}.cpython-3*.pyc"))
    return found[0] if found else source.with_suffix(".missing")
