"""The configuration: defaults, every table by its settings, errors with file, table, key and line."""

import dataclasses
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.common.domain.access import Address, Security
from gateway.common.domain.errors import ConfigurationError
from gateway.common.domain.rights import Grant, Rights, Scope
from gateway.common.store.text import TEXT_LIMIT_BYTES
from gateway.serving.cli.config import security_remarks
from gateway.serving.config import (
    SECTIONS,
    check_listeners,
    exposed_secrets,
    gateway_id,
    load_config,
    models_folder,
    open_listeners,
    parse_config,
    read_security,
    state_folder,
)
from gateway.serving.frontends.mqtt.settings.route import MqttRoute

ROUTE = '[[mqtt.route]]\nname = "wrists"\ntopics = ["a/+"]\nmodel = "activity"\nhop_rows = 50\n'


def refused(text):
    with pytest.raises(ConfigurationError) as caught:
        parse_config(text, "edge.toml")
    return str(caught.value)


def test_the_defaults_listen_on_loopback_only():
    config = parse_config("", "")
    assert config.grpc_listen == (Address("127.0.0.1", 8001),)
    assert config.http_listen == (Address("127.0.0.1", 8000),)
    check_listeners(config, Security())


@pytest.mark.parametrize("table", SECTIONS)
def test_every_table_has_defaults_and_refuses_what_it_does_not_know(table):
    assert getattr(parse_config(f"[{table}]\n", ""), table) == SECTIONS[table]()
    assert refused(f"[{table}]\nno_such_key = 1\n") == (
        f"edge.toml:2: {table}.no_such_key: unknown key; remove it or correct its spelling (EG-101)"
    )


@pytest.mark.parametrize("table", SECTIONS)
def test_every_number_and_flag_can_be_set_and_must_be_one(table):
    for spec in dataclasses.fields(SECTIONS[table]()):
        if isinstance(spec.default, bool | int | float) and spec.default:
            value = str(spec.default).lower()
            assert getattr(getattr(parse_config(f"[{table}]\n{spec.name} = {value}\n", ""), table), spec.name)
            said = refused(f'[{table}]\n{spec.name} = "three"\n')
            assert said.startswith(f"edge.toml:2: {table}.{spec.name}: must be ")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[nobody]\nx = 1", "edge.toml:1: nobody: unknown key"),
        ("x = 1", "edge.toml:1: x: unknown key"),
        ("[models]\ncontrol = 1", "edge.toml:2: models.control: must be true or false, not 1"),
        ("[selection]\nobjective = 'speed'", "edge.toml:2: selection.objective: must be one of latency"),
        ("[shares]\nlocal_percent = 100", "edge.toml:2: shares.local_percent: must be between 0 and 99"),
        (
            "[shares]\ncaller_percent = 9\n[grpc]\nmax_receiving_bytes = 9",
            "toml:2: shares.caller_percent: 33 % of [grpc]",
        ),
        ("[http]\nmax_buffered_bytes = 99\n[shares]", "shares.caller_percent: 33 % of [http] max_buffered_bytes"),
        ("[limits]\nqueue_requests = -1", "edge.toml:2: limits.queue_requests: must be between 0"),
        ("[limits]\ndrain_s = nan", "edge.toml:2: limits.drain_s: must be between 0"),
        ("[grpc]\nlisten = '127.0.0.1:1'", "edge.toml:2: grpc.listen: must be an array of strings"),
        ("[grpc]\nlisten = ['127.0.0.1']", "edge.toml:2: grpc.listen: '127.0.0.1' is no address"),
        ("[http]\nlisten = ['unix:relative']", "edge.toml:2: http.listen: "),
        ("[log]\nlevel = 'loud'", "edge.toml:2: log.level: "),
        ("grpc = 3", "edge.toml:1: grpc: must be a table"),
        ("[[mqtt.route]]\nname = 'a'\ntopics = ['b']", "mqtt.route[0].model: missing; it must be a string"),
        (ROUTE.replace("wrists", "a b"), "name: must be 1 to 64 letters"),
        (f"{ROUTE}colour = 1", "edge.toml:6: mqtt.route[0].colour: unknown key"),
        ("[mqtt]\nroute = {}", "mqtt.route: must be an array of tables"),
        ("a = [", "edge.toml: not valid TOML"),
        ("a = 1\nb = = 2", "edge.toml:2: not valid TOML"),
    ],
)
def test_errors_name_file_table_key_and_line(text, said):
    assert said in refused(text)


def test_routes_are_built():
    (route,) = parse_config(ROUTE, "").mqtt.route
    assert route == MqttRoute("wrists", ("a/+",), "activity", hop_rows=50)


def test_off_means_no_listener():
    assert parse_config("[grpc]\nlisten = ['off']\n[http]\nlisten = []\n", "").grpc_listen == ()


@given(text=st.text(max_size=200))
def test_no_text_makes_it_stumble(text):
    try:
        said = parse_config(text, "edge.toml").file
    except ConfigurationError as error:
        said = str(error)
    assert said.startswith("edge.toml")


@pytest.mark.parametrize("content", [b"\xff\xfe", b"#" * (TEXT_LIMIT_BYTES + 1)], ids=["not-utf8", "too-large"])
def test_files_that_cannot_be_read(tmp_path, content):
    file = tmp_path / "edge.toml"
    file.write_bytes(content)
    with pytest.raises(ConfigurationError, match=f"^{file}: "):
        load_config(file)


@pytest.mark.parametrize("name", ["", "absent"])
def test_a_file_that_is_none(tmp_path, name):
    with pytest.raises(ConfigurationError, match="cannot be read"):
        load_config(tmp_path / name)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[tls]\ncert = 'a'\n", "edge.toml: tls: cert and key go together"),
        ("[tls]\nclient_ca = 'a'\n", "edge.toml: tls: client_ca needs cert and key"),
        ("[auth]\ntokens_file = '/nowhere'\n", "edge.toml: auth.tokens_file: cannot be read"),
        ("[tls]\ncert = '/nowhere'\nkey = '/nowhere'\n", "edge.toml: tls.cert: cannot be read"),
    ],
)
def test_security_that_cannot_be_read(text, said):
    with pytest.raises(ConfigurationError) as caught:
        read_security(parse_config(text, "edge.toml"))
    assert said in str(caught.value)


def test_tokens_are_read(tmp_path):
    (tmp_path / "tokens").write_text("bench secret  # a comment\n")
    security = read_security(parse_config(f"[auth]\ntokens_file = '{tmp_path}/tokens'\n", ""))
    assert security.tokens.caller("Bearer secret").name == "bench"


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_secrets_that_others_may_write_are_refused(tmp_path, mode):
    (tmp_path / "tokens").write_text("bench secret\n")
    (tmp_path / "tokens").chmod(mode)
    config = parse_config(f"[auth]\ntokens_file = '{tmp_path}/tokens'\n", "c.toml")
    with pytest.raises(ConfigurationError, match=rf"^c\.toml: auth\.tokens_file: .*run: chmod go-w {tmp_path}/tokens$"):
        read_security(config)


@pytest.mark.parametrize(("mode", "warned"), [(0o600, False), (0o640, False), (0o644, True), (0o444, True)])
def test_secrets_that_others_may_read_are_warned_of(tmp_path, mode, warned):
    (tmp_path / "tokens").write_text("bench secret\n")
    (tmp_path / "tokens").chmod(mode)
    config = parse_config(f"[auth]\ntokens_file = '{tmp_path}/tokens'\n", "")
    security = read_security(config)
    assert ("auth.tokens_file" in exposed_secrets(config)) is warned
    assert any("chmod o-r" in remark for remark in security_remarks(config, security)) is warned


def test_managed_secrets_are_neither_refused_nor_warned_of(tmp_path, monkeypatch):
    monkeypatch.setattr("gateway.common.files.credentials.RUN_SECRETS", tmp_path)
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    (tmp_path / "tokens").write_text("bench secret\n")
    (tmp_path / "tokens").chmod(0o666)
    for name in ("credential:tokens", f"{tmp_path}/tokens"):
        config = parse_config(f"[auth]\ntokens_file = '{name}'\n", "")
        assert read_security(config).tokens.caller("Bearer secret").name == "bench"
        assert not exposed_secrets(config)


@pytest.mark.parametrize("listen", ["0.0.0.0:1", "[::]:1", "192.168.1.2:1", "gateway.lan:1"])
@pytest.mark.parametrize("table", ["grpc", "http"])
def test_open_listeners_need_security(listen, table):
    config = parse_config(f"[{table}]\nlisten = ['{listen}']\n", "")
    with pytest.raises(ConfigurationError, match=r"\[auth\] tokens_file, or \[tls\] client_ca"):
        check_listeners(config, Security())
    with pytest.raises(ConfigurationError, match="identify the gateway, not its callers"):
        check_listeners(config, Security(certificate=b"c", key=b"k"))
    check_listeners(config, Security(certificate=b"c", key=b"k", client_ca=b"a"))


GRANT = "[[auth.grant]]\ncaller = '{}'\nscopes = ['infer']\n"


def test_grants_are_read():
    text = GRANT.format("uid:1000") + "models = ['cam-*']\n" + GRANT.format("anonymous")
    security = read_security(parse_config(text, ""))
    assert security.grants == (
        Grant("uid:1000", Rights(frozenset({Scope.INFER}), ("cam-*",))),
        Grant("anonymous", Rights(frozenset({Scope.INFER}))),
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (GRANT.format("ann"), "caller: 'ann' names no caller; write cert:NAME"),
        (GRANT.format("loopback").replace("infer", "root"), "scopes: must name some of infer, models"),
        (GRANT.format("loopback") + "models = ['']\n", "models: must be at most 64 patterns"),
        (GRANT.format("loopback") + "model = 'x'\n", "model: unknown key"),
        ("[[auth.grant]]\nscopes = ['infer']\n", "caller: missing"),
        ("[[auth.grant]]\ncaller = 'loopback'\n", "scopes: missing"),
        ("[http]\nhosts = ['a:80']\n", "http.hosts: must be names without a port"),
        ("[http]\ncors_origins = ['*']\n", "http.cors_origins: must be origins"),
    ],
)
def test_rights_that_are_none(text, said):
    assert said in refused(text)


def test_open_listeners_are_named_where_that_is_wanted():
    config = parse_config("[grpc]\nlisten = ['0.0.0.0:1']\n[auth]\nanonymous = true\n", "")
    check_listeners(config, Security())
    assert [str(address) for address in open_listeners(config, Security())] == ["0.0.0.0:1"]
    assert open_listeners(config, Security(b"c", b"k", b"a")) == []


@pytest.mark.parametrize(
    ("named", "environ", "expected"),
    [
        ("/a", {"STATE_DIRECTORY": "/b"}, "/a"),
        (None, {"STATE_DIRECTORY": "/b:/c", "XDG_STATE_HOME": "/d"}, "/b"),
        (None, {"XDG_STATE_HOME": "/d"}, "/d/edge-gateway"),
        (None, {}, str(Path("~/.local/state/edge-gateway").expanduser())),
    ],
)
def test_where_the_state_is_kept(named, environ, expected):
    assert state_folder(named, environ) == Path(expected)


def test_the_id_is_the_configured_one_or_stable_and_not_the_machine_s():
    assert gateway_id(parse_config("[gateway]\nid = 'cellar'\n", "")) == "cellar"
    derived = gateway_id(parse_config("", ""))
    assert derived == gateway_id(parse_config("", ""))
    machine = Path("/etc/machine-id")
    assert not (machine.is_file() and machine.read_text().strip() and derived in machine.read_text())


def test_the_shipped_models_are_the_default():
    assert sorted(
        path.parent.parent.name for path in models_folder(parse_config("", "")).glob("*/1/manifest.toml")
    ) == [
        "activity",
        "meter-reader",
    ]


def test_a_gateway_that_nobody_could_ask_is_refused() -> None:
    """Every way in is off: that is a mistake, not a configuration."""
    config = parse_config('[grpc]\nlisten = ["off"]\n[http]\nlisten = ["off"]\n', "c.toml")
    with pytest.raises(ConfigurationError, match=r"c\.toml: gRPC and HTTP are off and no broker is named"):
        check_listeners(config, read_security(config))


def test_tokens_may_be_a_credential_of_the_unit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = parse_config('[auth]\ntokens_file = "credential:tokens"\n', "c.toml")
    monkeypatch.delenv("CREDENTIALS_DIRECTORY", raising=False)
    with pytest.raises(ConfigurationError, match=r"^c\.toml: auth\.tokens_file: .*LoadCredential=tokens:"):
        read_security(config)
    (tmp_path / "tokens").write_text(f"camera {'x' * 40}\n")
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    assert read_security(config).tokens is not None
