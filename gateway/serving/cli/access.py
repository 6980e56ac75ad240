"""Check of an account's access to every file and folder that a configuration names, from stat results."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from gateway.common.files.credentials import is_credential
from gateway.serving.config import DEFAULT_FILE, Config, models_folders, more_files, site_profiles_folder
from gateway.serving.domain.permissions import READ, SEARCH, WRITE, Denial, PathNode, UserAccount, denial
from gateway.serving.frontends.cameras.settings import is_file
from gateway.serving.frontends.mqtt.settings.broker import table_of

ENTRIES_LIMIT = 10_000
"""Files and folders checked in one folder that is read whole."""
ACL = "system.posix_acl_access"


@dataclass(frozen=True, slots=True)
class PathPermission:
    """A path that `setting` names, and the permission bits `wanted` on it. `whole`: READ on its content, too."""

    setting: str
    path: Path
    wanted: int
    whole: bool = False


def denials(
    config: Config, account: UserAccount, state: Path, hidden: Iterable[str] = ()
) -> Iterator[tuple[str, Denial]]:
    """Yield each setting with the obstacle between `account` and its path, once per path. Absent paths are skipped.

    `hidden`: folders that the service does not see at all.
    """
    seen: set[str] = set()
    for need in needs(config, state):
        for path, wanted in _paths(need):
            found = _unseen(path, hidden) or _judged(account, path, wanted)
            if found is not None and found.path not in seen:
                seen.add(found.path)
                yield need.setting, found


def needs(config: Config, state: Path) -> Iterator[PathPermission]:
    """Yield what a daemon with this configuration reads, writes and searches."""
    tls, mqtt, site = config.tls, config.mqtt, site_profiles_folder(config)
    brokers = {"mqtt": mqtt, **{table_of(broker.name): broker for broker in mqtt.broker}}
    files = {
        "auth.tokens_file": config.auth.tokens_file,
        **{f"tls.{key}": getattr(tls, key) for key in ("cert", "key", "client_ca")},
        **{
            f"{table}.{key}": getattr(broker, key)
            for table, broker in brokers.items()
            for key in ("ca", "cert", "key", "username_file", "password_file")
        },
        **{f"{route.table}.descriptor": route.descriptor for route in mqtt.route},
        **{f"{camera.table}.credential": camera.credential for camera in config.camera},
        **{f"{camera.table}.url": camera.url for camera in config.camera if is_file(camera.url)},
        "fleet.root": str(config.fleet.root_file) if config.fleet.store else "",
    }
    main = Path(config.file or DEFAULT_FILE)
    yield from (PathPermission("configuration", file, READ) for file in (main, *more_files(main)))
    yield PathPermission("configuration", main.with_name("conf.d"), READ | SEARCH)
    named = {setting: name for setting, name in files.items() if name and not is_credential(name)}
    yield from (PathPermission(setting, Path(name), READ) for setting, name in named.items())
    for folder in models_folders(config):
        yield PathPermission("models.dir", folder, READ | SEARCH, whole=True)
    if site is not None:
        yield PathPermission("gateway.profiles_dir", site, READ | SEARCH, whole=True)
    if config.fleet.store:
        yield PathPermission("fleet.store", config.fleet.folder, READ | SEARCH)
    yield PathPermission("state", state, READ | WRITE | SEARCH)
    yield from (PathPermission("state", state / name, READ | WRITE) for name in ("state.sqlite", "state.lock"))
    yield from _sockets(config)


def _sockets(config: Config) -> Iterator[PathPermission]:
    control = config.control.address
    listens = {"grpc": config.grpc_listen, "http": config.http_listen, "control": (control,) if control else ()}
    for table, addresses in listens.items():
        for address in addresses:
            if address.path:
                yield PathPermission(f"{table}.listen", Path(address.path).parent, WRITE | SEARCH)


def _paths(need: PathPermission) -> Iterator[tuple[Path, int]]:
    yield need.path, need.wanted
    if need.whole:
        yield from islice(_below(need.path), ENTRIES_LIMIT)


def _below(folder: Path) -> Iterator[tuple[Path, int]]:
    for place, folders, files in os.walk(folder, followlinks=True):
        yield from ((Path(place, name), READ | SEARCH) for name in folders)
        yield from ((Path(place, name), READ) for name in files)


def _unseen(path: Path, hidden: Iterable[str]) -> Denial | None:
    real = Path(os.path.realpath(path))
    folder = next((folder for folder in hidden if real.is_relative_to(folder)), None)
    if folder is None:
        return None
    problem = f"{path} lies in {folder}, which the unit hides from the service (ProtectHome=, PrivateTmp=)"
    return Denial(folder, problem, "move it, to /etc/edge-gateway or /srv for example, and name it there (EG-202)")


def _judged(account: UserAccount, path: Path, wanted: int) -> Denial | None:
    nodes: list[PathNode] = []
    try:
        for node in _nodes(path):
            nodes.append(node)  # noqa: PERF402  nodes before an error count
        return denial(account, nodes, wanted)
    except FileNotFoundError:
        return None
    except OSError as error:
        unknown = PathNode(str(path), 0o777, account.uid, 0)
        remedy = "run this check as root: sudo edge-gateway config check"
        unread = Denial(str(path), f"{path} could not be judged: {error.strerror or error}", remedy)
        return denial(account, [*nodes, unknown], wanted) or unread


def _nodes(path: Path) -> Iterator[PathNode]:
    """Yield every folder on the resolved path, then the path itself; links are followed."""
    real = Path(os.path.realpath(path))
    for step in (*reversed(real.parents), real):
        found = step.stat()
        yield PathNode(str(step), found.st_mode, found.st_uid, found.st_gid, _has_acl(step))


def _has_acl(path: Path) -> bool:
    try:
        return ACL in os.listxattr(path)
    except OSError:  # a file system without access control lists
        return False
