"""Configuration: a TOML file, and those of `conf.d` next to it over it, by name.

Each table is read into the frozen dataclass that the owning package declares. Unknown keys are errors. The commented
sample `packaging/edge-gateway-reference.toml` has every setting; a test loads it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import platform
import re
import shlex
import typing
from collections import Counter
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, ClassVar

from gateway.common.domain.access import (
    Address,
    FailureBounds,
    Security,
    check_exposure,
    is_open,
    read_address,
    read_tokens,
)
from gateway.common.domain.document import Source, Table, overlaid, parse_toml, refusal
from gateway.common.domain.errors import ConfigurationError
from gateway.common.domain.rights import Grant, check_identity, read_rights
from gateway.common.domain.settings import only_tables, read_settings, sections
from gateway.common.domain.settings_layer import SettingsLayer, merged
from gateway.common.files.credentials import is_exposed, read_secret, secret_path
from gateway.common.log_settings import LogSettings
from gateway.common.store.settings import LibrarySettings, StateSettings
from gateway.common.store.text import read_text
from gateway.serving.committed.settings import SignedReleaseSettings
from gateway.serving.engine.settings import EngineSettings, FailoverSettings, ResidencySettings, SelectionSettings
from gateway.serving.frontends.cameras.settings import CameraSettings, check_cameras
from gateway.serving.frontends.control.settings import ControlServerSettings
from gateway.serving.frontends.grpc_v2.settings import GrpcSettings
from gateway.serving.frontends.mqtt.settings.broker import MqttSettings, blamed_on, brokers
from gateway.serving.frontends.rest_v2.settings import RestSettings
from gateway.serving.frontends.settings import SERVER_NAME, SharedMemorySettings, ShareSettings
from gateway.serving.hardware.settings import HardwareSettings
from gateway.serving.pipelines.settings import PipelineSettings
from gateway.serving.runtimes.settings import IsolationSettings, TrialSettings

DEFAULT_FILE = Path("/etc/edge-gateway/edge-gateway.toml")
"""Default path, read if it exists and no other is named."""
DEFAULT_PROFILES = Path("/etc/edge-gateway/device_profiles")
"""Folder of this site's device profiles if no other is named."""
DEFAULT_MODELS = Path("/var/lib/edge-gateway/models")
"""Model directory if no other is named; the examples are served too then. It may be absent."""
DEFAULT_GRPC = ("127.0.0.1:8001",)
DEFAULT_HTTP = ("127.0.0.1:8000",)
GATEWAY_ID = re.compile(r"[A-Za-z0-9._-]{0,64}")
SECRETS = (("auth", "tokens_file"), ("tls", "key"))
"""Settings that name a file of secrets."""
MACHINE_ID = Path("/etc/machine-id")


LEAST_MEMORY_MIB = 256
"""Least `[gateway] memory_mib`: a start with the two shipped models takes 113 MiB (`make demo`)."""


@dataclass(frozen=True, slots=True)
class GatewaySettings:
    """`[gateway]`: name, data and identity of this device."""

    id: str = ""  # names the device in MQTT topics; "" derives it from /etc/machine-id
    profile: str = ""  # serve by this device profile; "" matches one
    memory_mib: int = 0  # MiB of data that the process may allocate; 0: 3/4 of the device's, 5/6 of its control group's
    profiles_dir: str = ""  # folder of device profiles of this site; "": /etc/edge-gateway/device_profiles if it exists
    server_name: ClassVar[str] = SERVER_NAME  # names the server to callers, in the server metadata of gRPC and HTTP

    def __post_init__(self) -> None:
        """Refuse an id that is no level of an MQTT topic. Raises ConfigurationError (table gateway)."""
        if not GATEWAY_ID.fullmatch(self.id):
            raise ConfigurationError(
                f"must be up to 64 letters, digits, '.', '_' or '-', not {self.id!r:.80}", table="gateway", key="id"
            )
        if 0 < self.memory_mib < LEAST_MEMORY_MIB:
            raise ConfigurationError(
                f"must be 0 or at least {LEAST_MEMORY_MIB}, not {self.memory_mib}: the gateway itself needs about 100",
                table="gateway",
                key="memory_mib",
            )


@dataclass(frozen=True, slots=True)
class ModelsSettings:
    """`[models]`: the models to serve."""

    dir: str = ""  # the model directory; "": /var/lib/edge-gateway/models, and the examples
    examples: bool = True  # whether the models that come with the gateway serve too while dir is not set
    control: bool = False  # whether RepositoryModelLoad and Unload may change what is served


@dataclass(frozen=True, slots=True)
class GrantSettings:
    """`[[auth.grant]]`: rights of callers that are identified without a token."""

    caller: str  # cert:NAME (or a pattern of names), uid:NUMBER, gid:NUMBER, loopback or anonymous
    scopes: tuple[str, ...]  # infer, models, memory, metrics, cameras, admin
    models: tuple[str, ...] = ()  # patterns of the models' names; (): every model

    def __post_init__(self) -> None:
        """Refuse unknown callers and scopes. Raises ConfigurationError (table auth.grant)."""
        try:
            check_identity(self.caller)
            read_rights(self.scopes, self.models)
        except ConfigurationError as error:
            raise ConfigurationError(error.problem, table="auth.grant", key=error.key) from None


@dataclass(frozen=True, slots=True)
class AuthSettings:
    """`[auth]`: callers of gRPC and HTTP, and their rights."""

    tokens_file: str | None = None  # one token a line: `NAME TOKEN [scopes=…] [models=…] [expires=…]`
    anonymous: bool = False  # whether callers beyond this device may call without token and certificate
    grant: tuple[GrantSettings, ...] = ()  # rights of callers without a token; the first that covers one counts
    failure_burst: ClassVar[int] = 10  # failed authentications of one address at once; then 429, RESOURCE_EXHAUSTED
    failures_per_s: ClassVar[float] = 1.0  # ... and on average
    failure_addresses: ClassVar[int] = 1024  # addresses whose failures are remembered (IPv6: /64)

    @property
    def grants(self) -> tuple[Grant, ...]:
        """Return the grants as rights."""
        return tuple(Grant(each.caller, read_rights(each.scopes, each.models)) for each in self.grant)


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """`[tls]`: encryption of gRPC and HTTP on TCP."""

    cert: str | None = None  # PEM file: the server's certificate chain
    key: str | None = None  # PEM file: its private key
    client_ca: str | None = None  # PEM file: callers must show a certificate of this authority


@dataclass(frozen=True, slots=True)
class Config:
    """All settings of a daemon. `file` is the main file ("": the defaults), `sources` has all: the last one counts."""

    file: str = ""
    sources: tuple[Source, ...] = field(default=(), compare=False)
    grpc_listen: tuple[Address, ...] = ()
    http_listen: tuple[Address, ...] = ()
    gateway: GatewaySettings = field(default_factory=GatewaySettings)
    models: ModelsSettings = field(default_factory=ModelsSettings)
    fleet: SignedReleaseSettings = field(default_factory=SignedReleaseSettings)
    control: ControlServerSettings = field(default_factory=ControlServerSettings)
    selection: SelectionSettings = field(default_factory=SelectionSettings)
    failover: FailoverSettings = field(default_factory=FailoverSettings)
    grpc: GrpcSettings = field(default_factory=GrpcSettings)
    http: RestSettings = field(default_factory=RestSettings)
    shared_memory: SharedMemorySettings = field(default_factory=SharedMemorySettings)
    shares: ShareSettings = field(default_factory=ShareSettings)
    mqtt: MqttSettings = field(default_factory=MqttSettings)
    auth: AuthSettings = field(default_factory=AuthSettings)
    tls: TlsSettings = field(default_factory=TlsSettings)
    limits: EngineSettings = field(default_factory=EngineSettings)
    trial: TrialSettings = field(default_factory=TrialSettings)
    isolation: IsolationSettings = field(default_factory=IsolationSettings)
    pipelines: PipelineSettings = field(default_factory=PipelineSettings)
    residency: ResidencySettings = field(default_factory=ResidencySettings)
    hardware: HardwareSettings = field(default_factory=HardwareSettings)
    library: LibrarySettings = field(default_factory=LibrarySettings)
    state: StateSettings = field(default_factory=StateSettings)
    log: LogSettings = field(default_factory=LogSettings)
    camera: tuple[CameraSettings, ...] = ()

    def error(self, problem: str, table: str = "", key: str = "") -> ConfigurationError:
        """Return the refusal of a setting, with the file and line that set it."""
        return refusal(self.sources, problem, table, key)


SECTIONS = sections(Config)
"""Settings dataclass by the name of its table."""


def load_config(path: Path | None, layer: SettingsLayer | None = None) -> Config:
    """Read `path`, or the default file if it exists, and the files of `conf.d` next to it; `layer` overrides them.

    Raises ConfigurationError.
    """
    sources = read_sources(path)
    main = str(path or DEFAULT_FILE)
    return merge_config(sources, layer, file=main if sources and sources[0].file == main else "")


def read_sources(path: Path | None) -> list[Source]:
    """Read `path`, or the default file if it exists, and the files of `conf.d` next to it. ConfigurationError."""
    main = path or DEFAULT_FILE
    files = [main] if path or main.is_file() else []
    return [read_source(read_text(file), str(file)) for file in (*files, *more_files(main))]


def more_files(main: Path) -> list[Path]:
    """Return the files of `conf.d` next to the main file, by name; hidden ones are left out.

    Raises ConfigurationError for a folder that cannot be read, and for what is no regular file.
    """
    folder = main.with_name("conf.d")
    try:
        names = sorted(file.name for file in folder.iterdir() if fnmatchcase(file.name, "[!.]*.toml"))
    except FileNotFoundError:
        return []
    except OSError as error:
        denied = isinstance(error, PermissionError)
        remedy = f"use sudo, or: sudo chmod a+rx {folder}" if denied else "move it away; conf.d is a folder"
        raise ConfigurationError(f"cannot be read: {error.strerror}; {remedy}", file=str(folder)) from error
    files = [folder / name for name in names]
    for file in files:
        if not os.path.isfile(file) and os.access(folder, os.X_OK):  # noqa: PTH113  False for any name
            raise ConfigurationError("is no regular file; remove it, or rename it to end otherwise", file=str(file))
    return files


def parse_config(text: str, file: str, layer: SettingsLayer | None = None) -> Config:
    """Build a Config from one TOML text. Raises as `merge_config` does."""
    return merge_config([read_source(text, file)], layer, file=file)


def merge_config(sources: typing.Sequence[Source], layer: SettingsLayer | None = None, *, file: str) -> Config:
    """Build a Config from files, the later over the earlier, and from settings of the fleet. `file`: the main one.

    Settings of the fleet are left out if the files say `[fleet] settings = false`. Raises ConfigurationError naming
    file, table, key and line.
    """
    values: dict[str, Any] = {}
    for source in sources:
        values = overlaid(values, source.values)
    config = _built(values, sources, file)
    if layer is None or not config.fleet.settings:
        return config
    return _built(merged(values, layer.source.values), [*sources, layer.source], file)


def read_source(text: str, file: str) -> Source:
    """Return a file of settings from its text. Raises ConfigurationError."""
    return Source(file, text, parse_toml(text, file, remedy="join them, or move one to a file in conf.d"))


def _built(values: typing.Mapping[str, Any], sources: typing.Sequence[Source], file: str) -> Config:
    top = Table(values, file=file, sources=sources)
    cameras = tuple(read_settings(CameraSettings, each, _tables_with) for each in top.tables("camera"))
    tables = only_tables(top, SECTIONS, _tables_with)
    config = Config(
        file=file,
        sources=tuple(sources),
        grpc_listen=_listen(tables["grpc"], DEFAULT_GRPC),
        http_listen=_listen(tables["http"], DEFAULT_HTTP),
        camera=cameras,
        **{name: read_settings(SECTIONS[name], table, _tables_with) for name, table in tables.items()},
    )
    _check_shares(config, tables["shares"])
    _check_cameras(config)
    return config


def _tables_with(key: str) -> list[str]:
    """Return the tables that have a key; `grpc_listen` of Config is the key `listen` of the table `grpc`."""
    given = {spec.name for spec in dataclasses.fields(Config)}
    fields = {name: {spec.name for spec in dataclasses.fields(kind)} for name, kind in SECTIONS.items()}
    return [name for name in fields if key in fields[name] or f"{name}_{key}" in given]


def _check_shares(config: Config, table: Table) -> None:
    """Refuse a share of bytes that is smaller than the largest request. Raises ConfigurationError."""
    percent = config.shares.caller_bytes_percent
    for name, largest, total in (
        ("[grpc] max_receiving_bytes", config.grpc.max_message_bytes, config.grpc.max_receiving_bytes),
        ("[http] max_buffered_bytes", config.http.max_body_bytes, config.http.max_buffered_bytes),
    ):
        if total * percent // 100 < largest:
            table.refuse(
                "caller_percent",
                f"{percent} % of {name} = {total} are fewer bytes than the largest request, {largest}; raise one of "
                "the two, or lower max_message_bytes or max_body_bytes",
            )


def _check_cameras(config: Config) -> None:
    """Refuse cameras that do not go together, and passwords in files that all may read. Raises ConfigurationError."""
    try:
        check_cameras(config.camera)
    except ConfigurationError as error:
        raise config.error(error.problem, error.table, error.key) from None
    file = next((source.file for source in reversed(config.sources) if source.holds("camera", "")), "")
    for camera in config.camera:
        if camera.has_secret and is_exposed(file):
            problem = "has a password, and all users of this device may read the file; name a file with `credential`"
            raise config.error(f"{problem}, or run: chmod o-r {shlex.quote(file)}", camera.table, "url")


def read_addresses(texts: typing.Iterable[str], table: str, key: str = "listen") -> tuple[Address, ...]:
    """Return the addresses without those that are "off". Raises ConfigurationError naming table and key."""
    return tuple(address for text in texts if (address := read_address(text, table, key)) is not None)


def read_security(config: Config) -> Security:
    """Read certificates and tokens from the files that the configuration names; check that each is usable.

    Raises ConfigurationError naming the setting, the file and what to do.
    """
    tls, auth = config.tls, config.auth
    if bool(tls.cert) != bool(tls.key):
        raise config.error("cert and key go together; set both", "tls")
    if tls.client_ca and not tls.cert:
        raise config.error("client_ca needs cert and key as well", "tls", "client_ca")
    security = Security(
        certificate=_file_bytes(config, "tls", "cert", tls.cert),
        key=_file_bytes(config, "tls", "key", tls.key),
        client_ca=_file_bytes(config, "tls", "client_ca", tls.client_ca),
        tokens=_tokens(config, auth.tokens_file) if auth.tokens_file else None,
        grants=auth.grants,
        failures=FailureBounds(auth.failure_burst, auth.failures_per_s, auth.failure_addresses),
    )
    _check_certificates(config, security)
    return security


def mqtt_brokers(config: Config, *, checked: bool = False) -> dict[str, MqttSettings]:
    """Return the settings of each MQTT broker by name; `checked`: their routes too. Raises ConfigurationError."""
    try:
        found = brokers(config.mqtt, [camera.name for camera in config.camera])
        for name in found if checked else ():
            from gateway.serving.frontends.mqtt.frontend import checked_routes

            with blamed_on(name):
                checked_routes(found[name], gateway_id(config), Counter())
    except ConfigurationError as error:
        raise config.error(error.problem, error.table, error.key) from None
    return found


def check_listeners(config: Config, security: Security) -> None:
    """Refuse open listeners beyond this machine, no listener, and MQTT routes that cannot work. ConfigurationError."""
    if not (mqtt_brokers(config, checked=True) or config.grpc_listen or config.http_listen):
        raise config.error(
            "gRPC and HTTP are off and no broker is named, so nothing could ask; "
            "set [grpc] or [http] listen, or [mqtt] url (EG-107)"
        )
    for table, addresses in (("grpc", config.grpc_listen), ("http", config.http_listen)):
        source = next((source for source in reversed(config.sources) if source.holds(table, "listen")), None)
        for address in addresses:
            try:
                check_exposure(address, security, anonymous=config.auth.anonymous)
            except ConfigurationError as error:
                if source and str(address) in source.values[table]["listen"]:  # else the command line names it
                    raise config.error(error.problem, table, "listen") from None
                raise


def open_listeners(config: Config, security: Security) -> list[Address]:
    """Return the listeners at which unidentified callers on the network may send requests."""
    return [address for address in (*config.grpc_listen, *config.http_listen) if is_open(address, security)]


def exposed_secrets(config: Config) -> dict[str, tuple[str, str]]:
    """Return the problem and its remedy for each setting whose file of secrets all users may read."""
    named = {f"{table}.{key}": getattr(getattr(config, table), key) for table, key in SECRETS}
    named |= {f"{camera.table}.credential": camera.credential for camera in config.camera}
    return {
        setting: (f"{name}: all users of this device may read it", f"run: chmod o-r {shlex.quote(name)} (EG-214)")
        for setting, name in named.items()
        if is_exposed(name)
    }


def gateway_id(config: Config) -> str:
    """Return the device's id: as configured, else twelve hex digits derived from the machine id, else the host's name.

    The machine id itself is confidential (machine-id(5)): it is hashed with this product's name first.
    """
    if config.gateway.id:
        return config.gateway.id
    try:
        machine = MACHINE_ID.read_text().strip()
    except OSError:
        machine = ""
    if not machine:
        return platform.node() or "edge-gateway"
    return hashlib.sha256(f"edge-gateway {machine}".encode()).hexdigest()[:12]


def state_folder(named: str | None, environ: typing.Mapping[str, str] = os.environ) -> Path:
    """Return `--state`, else $STATE_DIRECTORY, else $XDG_STATE_HOME/edge-gateway."""
    if named:
        return Path(named)
    if environ.get("STATE_DIRECTORY"):
        return Path(environ["STATE_DIRECTORY"].split(":")[0])
    home = environ.get("XDG_STATE_HOME") or str(Path("~/.local/state").expanduser())
    return Path(home) / "edge-gateway"


def models_folders(config: Config) -> tuple[Path, ...]:
    """Return the folders of models: as configured, else the default one and the examples of the wheel or source tree.

    A model in the first folder takes precedence over an example of the same name.
    """
    if config.models.dir:
        return (Path(config.models.dir),)
    package = Path(__file__).parents[1]
    shipped = package / "_share" / "models"
    examples = shipped if shipped.is_dir() else package.parent / "models"
    return (DEFAULT_MODELS, examples) if config.models.examples else (DEFAULT_MODELS,)


def models_place(config: Config) -> str:
    """Return the folders of models for a message."""
    return " and ".join(map(str, models_folders(config)))


def own_models_folder(config: Config) -> Path:
    """Return the folder that new models go into. Raises ConfigurationError if none is named or made."""
    folder = models_folders(config)[0]
    if not config.models.dir and not folder.is_dir():
        problem = f"no model directory is named, and {folder} does not exist; name one with --models DIR or --into DIR"
        raise config.error(f"{problem}, or with [models] dir in the configuration")
    return folder


def site_profiles_folder(config: Config) -> Path | None:
    """Return the folder of this site's device profiles: as configured, else the default one if it exists, else None."""
    if config.gateway.profiles_dir:
        return Path(config.gateway.profiles_dir)
    return DEFAULT_PROFILES if DEFAULT_PROFILES.is_dir() else None


def _listen(table: Table, default: tuple[str, ...]) -> tuple[Address, ...]:
    texts = table.texts("listen", default)
    try:
        return read_addresses(texts, table.name)
    except ConfigurationError as error:
        table.refuse("listen", error.problem)


def _file_bytes(config: Config, table: str, key: str, name: str | None) -> bytes | None:
    if not name:
        return None
    try:
        path = secret_path(name, table, key)
        return read_secret(path, name=name) if (table, key) in SECRETS else path.read_bytes()
    except ConfigurationError as error:
        raise config.error(error.problem, table, key) from None
    except OSError as error:
        denied = f"use sudo, or: sudo chgrp edge-gateway {name} && sudo chmod g+r {name}, or name another file"
        remedy = denied if isinstance(error, PermissionError) else "put the file there, or name another one"
        problem = f"cannot be read: {name}: {error.strerror or error}; {remedy} (EG-108)"
        raise config.error(problem, table, key) from error


def _check_certificates(config: Config, security: Security) -> None:
    """Refuse a certificate, key or authority that no listener could use. Load OpenSSL only if there is one."""
    if security.certificate is None:
        return
    from gateway.serving.frontends.tls import server_context

    try:
        server_context(security, protocol="h2")
    except ConfigurationError as error:
        tls = config.tls
        files = tls.client_ca if error.key == "client_ca" else f"{tls.cert} and {tls.key}"
        raise config.error(f"{files}: {error.problem} (EG-109)", "tls", error.key) from None


def _tokens(config: Config, name: str) -> Any:
    content = _file_bytes(config, "auth", "tokens_file", name) or b""
    return read_tokens(content.decode("utf-8", "replace"), name)
