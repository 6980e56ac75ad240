"""The configuration: defaults, every table by its settings, errors with file, table, key and line."""

import asyncio
import dataclasses
import os
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.common.domain.access import Address, Security
from gateway.common.domain.errors import ConfigurationError
from gateway.common.domain.rights import Grant, Rights, Scope
from gateway.common.domain.settings_layer import SettingsLayer
from gateway.common.store.text import TEXT_LIMIT_BYTES
from gateway.serving import config as configuration
from gateway.serving.assembly import matching_profile, releases, releases_of
from gateway.serving.cli.config import security_remarks
from gateway.serving.config import (
    SECTIONS,
    check_listeners,
    exposed_secrets,
    gateway_id,
    load_config,
    models_folders,
    open_listeners,
    own_models_folder,
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
        ("[[mqtt.route]]\nname = 'a'\ntopics = ['b']", "mqtt.route[0].model: must be the name of a model, not ''"),
        (ROUTE.replace("wrists", "a b"), "name: must be 1 to 64 letters"),
        (f"{ROUTE}colour = 1", "edge.toml:6: mqtt.route[0].colour: unknown key"),
        ("[mqtt]\nroute = {}", "mqtt.route: must be an array of tables"),
        ("a = [", "edge.toml: not valid TOML"),
        ("a = 1\nb = = 2", "edge.toml:2: not valid TOML"),
    ],
)
def test_errors_name_file_table_key_and_line(text, said):
    assert said in refused(text)


@pytest.mark.parametrize("table", ["limits", "gateway"])
def test_the_tables_that_have_a_setting_are_named(table):
    said = refused(f"[{table}]\nlisten = 1\n")
    assert "it is a setting of [control] or [grpc] or [http]" in said


def test_a_byte_order_mark_is_accepted(tmp_path):
    (tmp_path / "edge.toml").write_bytes(b"\xef\xbb\xbf[gateway]\r\nid = 'hall'\r\n")
    assert load_config(tmp_path / "edge.toml").gateway.id == "hall"


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
    with pytest.raises(ConfigurationError, match=r"cannot be read: .*; put a file there, or name another one \(EG-110"):
        load_config(tmp_path / name)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[tls]\ncert = 'a'\n", "edge.toml: tls: cert and key go together"),
        ("[tls]\nclient_ca = 'a'\n", "edge.toml:2: tls.client_ca: client_ca needs cert and key"),
        ("[auth]\ntokens_file = '/nowhere'\n", "edge.toml:2: auth.tokens_file: cannot be read"),
        ("[tls]\ncert = '/nowhere'\nkey = '/nowhere'\n", "edge.toml:2: tls.cert: cannot be read"),
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
    with pytest.raises(
        ConfigurationError, match=rf"^c\.toml:2: auth\.tokens_file: .*run: chmod go-w {tmp_path}/tokens$"
    ):
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


def test_the_default_models_are_those_of_the_state_folder_and_the_examples():
    mine, examples = models_folders(parse_config("", ""))
    assert mine == Path("/var/lib/edge-gateway/models")
    assert sorted(path.parent.parent.name for path in examples.glob("*/1/manifest.toml")) == [
        "activity",
        "meter-reader",
    ]
    assert models_folders(parse_config("[models]\nexamples = false\n", "")) == (mine,)
    assert models_folders(parse_config("[models]\ndir = '/srv/models'\nexamples = true\n", "")) == (
        Path("/srv/models"),
    )


def test_new_models_go_to_the_first_folder_if_there_is_one(tmp_path, monkeypatch):
    monkeypatch.setattr(configuration, "DEFAULT_MODELS", tmp_path / "models")
    with pytest.raises(ConfigurationError, match="models does not exist; name one with --models DIR"):
        own_models_folder(parse_config("", ""))
    (tmp_path / "models").mkdir()
    assert own_models_folder(parse_config("", "")) == tmp_path / "models"
    assert own_models_folder(parse_config("[models]\ndir = '/srv/models'\n", "")) == Path("/srv/models")


def served(config):
    return [(release.name, release.version, bool(release.problem)) for release in releases(config)]


def test_a_model_of_the_default_folder_precedes_the_example_of_its_name(tmp_path, monkeypatch):
    mine, config = tmp_path / "models", parse_config("", "")
    monkeypatch.setattr(configuration, "DEFAULT_MODELS", mine)
    examples = [("activity", "1", False), ("meter-reader", "1", False)]
    assert served(config) == examples, "an absent folder is no error"
    mine.mkdir()
    (mine / "README.md").write_text("put models here")
    assert served(config) == examples, "neither is an empty one, and its README is no model"
    shutil.copytree(models_folders(config)[1] / "meter-reader", mine / "meter-reader")
    (mine / "meter-reader" / "1").rename(mine / "meter-reader" / "7")
    manifest = mine / "meter-reader" / "7" / "manifest.toml"
    manifest.write_text(manifest.read_text().replace('version = "1"', 'version = "7"', 1))
    shutil.copytree(mine / "meter-reader", mine / "zoo")
    manifest = mine / "zoo" / "7" / "manifest.toml"
    manifest.write_text(manifest.read_text().replace('name = "meter-reader"', 'name = "zoo"', 1))
    assert served(config) == [("activity", "1", False), ("meter-reader", "7", False), ("zoo", "7", False)]
    assert [release.version for release in releases_of(config, "meter-reader")] == ["7"]
    assert [release.version for release in releases_of(config, "activity")] == ["1"]
    assert served(parse_config("[models]\nexamples = false", "")) == [("meter-reader", "7", False), ("zoo", "7", False)]
    (mine / "meter-reader" / "7" / "manifest.toml").write_text("x")
    assert ("meter-reader", "7", True) in served(config), "a refused model hides the example, so that it is noticed"
    with pytest.raises(ConfigurationError, match="the model directory does not exist"):
        served(parse_config(f"[models]\ndir = '{tmp_path}/absent'", ""))


def test_a_gateway_that_nobody_could_ask_is_refused() -> None:
    """Every way in is off: that is a mistake, not a configuration."""
    config = parse_config('[grpc]\nlisten = ["off"]\n[http]\nlisten = ["off"]\n', "c.toml")
    with pytest.raises(ConfigurationError, match=r"c\.toml: gRPC and HTTP are off and no broker is named"):
        check_listeners(config, read_security(config))


def test_tokens_may_be_a_credential_of_the_unit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = parse_config('[auth]\ntokens_file = "credential:tokens"\n', "c.toml")
    monkeypatch.delenv("CREDENTIALS_DIRECTORY", raising=False)
    with pytest.raises(ConfigurationError, match=r"^c\.toml:2: auth\.tokens_file: .*LoadCredential=tokens:"):
        read_security(config)
    (tmp_path / "tokens").write_text(f"camera {'x' * 40}\n")
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    assert read_security(config).tokens is not None


# ---- several files ---------------------------------------------------------------------------------------------------


@pytest.fixture
def files(tmp_path):
    """Return a function that writes files by name, and the main one."""

    def write(**texts):
        (tmp_path / "conf.d").mkdir(exist_ok=True)
        (tmp_path / "edge.toml").touch()
        for name, text in texts.items():
            file = tmp_path / "edge.toml" if name == "main" else tmp_path / "conf.d" / f"{name}.toml"
            file.write_text(text)
        return tmp_path / "edge.toml"

    return write


def test_files_of_conf_d_override_the_main_file_by_name_and_the_fleet_overrides_them(files):
    main = files(
        main="[limits]\ndrain_s = 1\nmax_batch_rows = 1\n[http]\nlisten = ['127.0.0.1:1', '127.0.0.1:2']\n",
        b="[limits]\nmax_batch_rows = 3\nqueue_requests = 3\n",
        a="[limits]\nmax_batch_rows = 2\nrun_limit_s = 2\n[http]\nlisten = ['127.0.0.1:3']\n",
    )
    layer = SettingsLayer("@settings/plant/1", "[limits]\nqueue_requests = 4\n")
    config = load_config(main, layer)
    limits = config.limits
    assert (limits.drain_s, limits.run_limit_s, limits.max_batch_rows, limits.queue_requests) == (1, 2, 3, 4)
    assert config.http_listen == (Address("127.0.0.1", 3),)
    assert [Path(source.file).name for source in config.sources] == ["edge.toml", "a.toml", "b.toml", "1"]
    assert load_config(main) == load_config(main)


def test_other_files_in_conf_d_are_no_settings(files, tmp_path):
    main, folder = files(a="[log]\nlevel = 'debug'\n"), tmp_path / "conf.d"
    for name in ("a.toml.dpkg-old", ".b.toml.swp", ".hidden.toml", "README", "c.TOML", "~d.toml~"):
        (folder / name).write_text("no settings")
    (folder / "folder").mkdir()
    assert [Path(source.file).name for source in load_config(main).sources] == ["edge.toml", "a.toml"]
    (folder / "link.toml").symlink_to(folder / "a.toml")
    assert len(load_config(main).sources) == 3


@pytest.mark.parametrize("kind", ["folder", "link", "pipe"])
def test_what_is_no_regular_file_is_refused(files, tmp_path, kind):
    main, place = files(), tmp_path / "conf.d" / "50.toml"
    {"folder": place.mkdir, "link": lambda: place.symlink_to("absent"), "pipe": lambda: os.mkfifo(place)}[kind]()
    with pytest.raises(ConfigurationError, match=r"50\.toml: is no regular file; remove it"):
        load_config(main)


def test_a_user_who_may_not_read_a_file_gets_a_remedy_that_helps(tmp_path, monkeypatch):
    def denied(*_arguments):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", denied)
    with pytest.raises(ConfigurationError, match=r"use sudo, or if it holds no secret: sudo chmod a\+r .*/edge\.toml"):
        load_config(tmp_path / "edge.toml")


def test_conf_d_that_is_no_folder_is_refused_and_an_absent_one_is_not(tmp_path):
    (tmp_path / "edge.toml").touch()
    assert len(load_config(tmp_path / "edge.toml").sources) == 1
    (tmp_path / "conf.d").touch()
    with pytest.raises(
        ConfigurationError, match=r"conf\.d: cannot be read: Not a directory; move it away; conf.d is a folder"
    ):
        load_config(tmp_path / "edge.toml")


@pytest.mark.parametrize("absent", [False, True])
def test_conf_d_counts_without_a_main_file(files, tmp_path, monkeypatch, absent):
    main = files(a="[log]\nlevel = 'debug'\n")
    if absent:
        main.unlink()
    monkeypatch.setattr(configuration, "DEFAULT_FILE", main)
    assert load_config(None).log.level == "debug"


@pytest.mark.parametrize(
    ("main", "more", "said"),
    [
        ("[log]\nlevel = 'info'\n", "[log]\n\nlevel = 'loud'\n", "a.toml:3: log.level: 'loud' is unknown"),
        ("[log]\nlevel = 'loud'\n", "[log]\nformat = 'json'\n", "edge.toml:2: log.level: 'loud' is unknown"),
        ("[tls]\ncert = 'x'\n", "[tls]\nkey = '/nowhere'\ncert = '/nowhere'\n", "a.toml:3: tls.cert: cannot be read"),
        ("", "[[mqtt.route]]\nname = 1\n", "a.toml:2: mqtt.route[0].name: must be a string"),
        (ROUTE, "[[mqtt.route]]\nname = 'x'\n", "a.toml: mqtt.route[0].topics: missing; name topic"),
        ("[grpc]\nx", "", "edge.toml: not valid TOML"),
        ("", "[grpc]\n[http]\n[grpc]\n", "written twice, in lines 1 and 3; join them, or move one to a file in conf.d"),
        ("", "[nobody]\n", "a.toml:1: nobody: unknown key"),
        ("", "[gateway]\nprofile = 'none'\n", None),
    ],
)
def test_an_error_names_the_file_and_line_in_which_the_value_stands(files, main, more, said):
    file = files(main=main, a=more)
    if said is None:
        with pytest.raises(ConfigurationError, match=r"a\.toml:2: gateway.profile: no device profile is called 'none'"):
            asyncio.run(matching_profile(load_config(file)))
        return
    with pytest.raises(ConfigurationError) as caught:
        read_security(load_config(file))
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[grpc]\nlissen = []", 'edge.toml:2: grpc.lissen: unknown key; did you mean "listen"?'),
        ("[grpc]\nmax_conections = 1", '; did you mean "max_connections"?'),
        ("[gprc]\nlisten = []", 'edge.toml:1: gprc: unknown key; did you mean "grpc"?'),
        ("[http]\nmax_message_bytes = 1", "http.max_message_bytes: unknown key; it is a setting of [grpc]"),
        ("queue_requests = 1", "edge.toml:1: queue_requests: unknown key; it is a setting of [limits]"),
        (f"{ROUTE}topic = 'a'", 'unknown key; did you mean "topics"?'),
        ("[log]\nzzzzzz = 1", "unknown key; remove it or correct its spelling"),
    ],
)
def test_a_misspelt_setting_names_the_one_that_is_meant(text, said):
    assert said in refused(text)


def test_an_open_listener_names_the_file_that_sets_it(files):
    config = load_config(files(main="[http]\nlisten = []\n", a="[http]\nlisten = ['0.0.0.0:8000']\n"))
    with pytest.raises(ConfigurationError, match=r"conf\.d/a\.toml:2: http\.listen: listening on"):
        check_listeners(config, Security())
    by_command = dataclasses.replace(config, http_listen=(Address("0.0.0.0", 8001),))
    with pytest.raises(ConfigurationError, match=r"^listening on 0\.0\.0\.0:8001 would"):
        check_listeners(by_command, Security())
