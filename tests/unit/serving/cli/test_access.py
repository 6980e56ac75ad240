"""Judging files as the service would read them: by stat results alone, and as the kernel does."""

import os
import stat
import tempfile
from itertools import product
from pathlib import Path

import pytest

from gateway.common.domain.errors import ConfigurationError
from gateway.serving.cli.access import denials, needs
from gateway.serving.cli.service_user import UnitAccount, account_of, caller, installed_unit, read_unit
from gateway.serving.config import parse_config
from gateway.serving.domain.permissions import READ, SEARCH, WRITE, PathNode, UserAccount, denial

SERVICE = UserAccount("edge-gateway", 990, frozenset({980, 44}), "edge-gateway")
TOP = PathNode("/", stat.S_IFDIR | 0o755, 0, 0)
ETC = PathNode("/etc", stat.S_IFDIR | 0o755, 0, 0)


def file(mode, uid=0, gid=0, *, acl=False):
    return PathNode("/etc/key.pem", stat.S_IFREG | mode, uid, gid, acl)


@pytest.mark.parametrize(
    ("nodes", "wanted", "problem", "remedy"),
    [
        ((file(0o644),), READ, None, None),
        ((file(0o640, gid=980),), READ, None, None),
        ((file(0o600, uid=990),), READ, None, None),
        ((file(0o600, acl=True),), READ, None, None),
        (
            (file(0o600),),
            READ,
            "user edge-gateway may not read the file /etc/key.pem (mode 0600, owner 0, group 0)",
            "chgrp edge-gateway /etc/key.pem && chmod g+r /etc/key.pem",
        ),
        ((file(0o600, gid=44),), READ, "group 44", "chmod g+r /etc/key.pem"),
        ((file(0o044, uid=990),), READ, "owner 990", "chmod u+r /etc/key.pem"),  # the owner's class alone counts
        ((file(0o604, gid=44),), READ, "mode 0604", "chmod g+r /etc/key.pem"),  # and so does the group's
        ((file(0o640, gid=44),), READ | WRITE, "may not read and write", "chmod g+rw /etc/key.pem"),
        (
            (PathNode("/etc/ours", stat.S_IFDIR | 0o700, 0, 0), file(0o644)),
            READ,
            "user edge-gateway may not search the folder /etc/ours, which /etc/key.pem lies in",
            "chgrp edge-gateway /etc/ours && chmod g+x /etc/ours, or move what lies in it (EG-202)",
        ),
        (
            (PathNode("/etc/sockets", stat.S_IFDIR | 0o755, 0, 0),),
            WRITE | SEARCH,
            "may not write and search the folder /etc/sockets",
            "chmod g+wx /etc/sockets",
        ),
    ],
)
def test_the_first_that_refuses_is_named_with_the_command(nodes, wanted, problem, remedy):
    found = denial(SERVICE, (TOP, ETC, *nodes), wanted)
    if problem is None:
        assert found is None
    else:
        assert problem in found.problem
        assert remedy in found.remedy


def test_root_may_do_everything():
    root = UserAccount("root", 0, frozenset({0}), "root")
    assert denial(root, (TOP, PathNode("/x", stat.S_IFDIR, 1, 1), file(0, uid=1)), READ | WRITE) is None


def kernel_grants(account, path, modes):
    """Return which of `modes` the kernel grants a child that has become the account, where this process may do so."""
    child = os.fork()
    if child == 0:
        if os.geteuid() == 0:
            os.setgroups(sorted(account.gids))
            os.setresgid(*[min(account.gids)] * 3)
            os.setresuid(*[account.uid] * 3)
        bits = [os.R_OK * bool(mode & READ) | os.W_OK * bool(mode & WRITE) for mode in modes]
        os._exit(sum(os.access(path, each) << index for index, each in enumerate(bits)))
    granted = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return [bool(granted >> index & 1) for index in range(len(modes))]


@pytest.fixture
def open_folder():
    """Yield a folder that every user may search; pytest's own is closed to others."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


def test_the_kernel_decides_alike(open_folder):
    """Every class of file and folder against access(2); a process that may not change its user asks for its own."""
    root = os.geteuid() == 0
    account = UserAccount("somebody", 54321, frozenset({54321, 54322}), "somebody") if root else caller()
    owners = ((54321, 0), (0, 54322), (0, 0)) if root else ((os.geteuid(), os.getegid()),)
    folder, inner = open_folder / "folder", open_folder / "folder" / "file"
    folder.mkdir()
    inner.touch()
    for owner, mode, folder_mode in product(owners, (0o000, 0o400, 0o040, 0o004, 0o620, 0o062), (0o711, 0o710, 0o700)):
        for path, bits in ((inner, mode), (folder, folder_mode)):
            os.chown(path, *owner)
            path.chmod(bits)
        found = [(str(path), path.stat()) for path in (*reversed(inner.parents), inner)]
        nodes = [PathNode(name, one.st_mode, one.st_uid, one.st_gid) for name, one in found]
        modes = (READ, WRITE, READ | WRITE)
        decided = [denial(account, nodes, mode) is None for mode in modes]
        assert decided == kernel_grants(account, inner, modes), (owner, oct(mode), oct(folder_mode))


def test_every_path_that_a_configuration_names_is_judged(open_folder):
    """Each is closed in turn, and its setting is named."""
    tmp_path = open_folder
    names = {
        "auth.tokens_file": "tokens", "tls.cert": "cert.pem", "tls.key": "key.pem", "tls.client_ca": "ca.pem",
        "mqtt.password_file": "password", "mqtt.ca": "broker.pem", "models.dir": "models/a/1/model.onnx",
        "gateway.profiles_dir": "profiles/mine.toml", "fleet.root": "store/root.json", "state": "state/state.sqlite",
        "grpc.listen": "run", "configuration": "edge.toml", "mqtt.route[plc].descriptor": "plc.binpb",
    }  # fmt: skip
    for name in names.values():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir() if name == "run" else path.touch()
    text = f"""
    [auth]\ntokens_file = "{tmp_path}/tokens"
    [tls]\ncert = "{tmp_path}/cert.pem"\nkey = "{tmp_path}/key.pem"\nclient_ca = "{tmp_path}/ca.pem"
    [mqtt]\nusername = "a"\npassword_file = "{tmp_path}/password"\nca = "{tmp_path}/broker.pem"
    [models]\ndir = "{tmp_path}/models"\n[gateway]\nprofiles_dir = "{tmp_path}/profiles"
    [fleet]\nstore = "{tmp_path}/store"\n[grpc]\nlisten = ["unix:{tmp_path}/run/grpc.sock"]
    [[mqtt.route]]\nname = "plc"\ntopics = ["plc"]\nmodel = "m"\ndescriptor = "{tmp_path}/plc.binpb"
    """
    config = parse_config(text, f"{tmp_path}/edge.toml")
    for path in tmp_path.rglob("*"):
        path.chmod(0o777)
    stranger = UserAccount("service", 54321, frozenset({54321}), "service")
    assert list(denials(config, stranger, tmp_path / "state")) == []
    for setting, name in names.items():
        (tmp_path / name).chmod(0o700)
        assert [(where, found.path) for where, found in denials(config, stranger, tmp_path / "state")] == [
            (setting, str(tmp_path / name))
        ]
        (tmp_path / name).chmod(0o777)
    hidden = [found.problem for _, found in denials(config, stranger, tmp_path / "state", [str(tmp_path)])]
    assert len(hidden) == 1
    assert "which the unit hides from the service" in hidden[0]


UNIT = "[Service]\nUser=edge-gateway\nGroup=edge\n#User=other\nStateDirectory=edge-gateway more\nProtectHome=yes\n"


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        ([""], UnitAccount()),
        ([UNIT], UnitAccount("edge-gateway", "edge", (), "/var/lib/edge-gateway", ("/home", "/root", "/run/user"))),
        ([UNIT, "User=me\nProtectHome=no\nSupplementaryGroups=a b\nSupplementaryGroups=c"],
         UnitAccount("me", "edge", ("a", "b", "c"), "/var/lib/edge-gateway")),
        (["SupplementaryGroups=a", "SupplementaryGroups=", "SupplementaryGroups=b"], UnitAccount(groups=("b",))),
    ],
)  # fmt: skip
def test_units_are_read_as_systemd_does(texts, expected):
    assert read_unit(texts) == expected


def test_the_installed_unit_is_found_with_its_drop_ins(tmp_path):
    assert installed_unit(tmp_path) is None
    shipped = (Path(__file__).parents[4] / "systemd" / "edge-gateway.service").read_text()
    place = tmp_path / "usr/local/lib/systemd/system"
    drop_in = tmp_path / "etc/systemd/system/edge-gateway.service.d"
    for folder, name, text in (
        (place, "edge-gateway.service", shipped),
        (drop_in, "groups.conf", "[Service]\nSupplementaryGroups=dialout\n"),
    ):
        folder.mkdir(parents=True)
        (folder / name).write_text(text)
    unit = installed_unit(tmp_path)
    assert (unit.user, unit.groups, unit.state) == ("edge-gateway", ("dialout",), "/var/lib/edge-gateway")
    assert "/home" in unit.hidden
    assert "/tmp" in unit.hidden


def test_accounts_are_looked_up():
    root = account_of("root", groups=["daemon"])
    assert (root.name, root.uid, root.group) == ("root", 0, "root")
    assert root.gids >= {0, *account_of("daemon").gids}
    with pytest.raises(
        ConfigurationError,
        match=r"no-such-user: this system has no such user or group .*; make the service's: sudo systemd-sysusers;",
    ):
        account_of("no-such-user")


def test_credentials_of_the_unit_are_no_paths(tmp_path):
    (tmp_path / "key.pem").touch(mode=0o600)
    text = f"""
[tls]
cert = "credential:cert"
key = "{tmp_path}/key.pem"
[[mqtt.broker]]
name = "plant"
url = "mqtt://a"
username = "u"
password_file = "credential:word"
ca = "{tmp_path}/key.pem"
"""
    named = {need.setting: str(need.path) for need in needs(parse_config(text, ""), tmp_path)}
    assert {name: path for name, path in named.items() if name.startswith(("tls", "mqtt"))} == {
        "tls.key": f"{tmp_path}/key.pem",
        "mqtt.broker[plant].ca": f"{tmp_path}/key.pem",
    }
