"""Listening sockets that outlive a process: passed by exec, by a service manager, or by somebody else."""

from __future__ import annotations

import fcntl
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from gateway.common.domain.access import Address
from gateway.common.wire import kept_listeners, listening
from gateway.common.wire.kept_listeners import KeptListeners

TCP = Address("127.0.0.1", 0)
EXECUTIONS = 50
AGAIN = """
import os, sys, tempfile
from gateway.common.domain.access import Address
from gateway.common.wire.kept_listeners import KEPT
from gateway.common.wire.listening import bound_address, listening

left, path = int(sys.argv[1]), sys.argv[2]
KEPT.inherit(os.environ)
wanted = [("grpc", Address("127.0.0.1", 0)), ("http", Address("127.0.0.1", 0)), ("grpc", Address(path=path))]
KEPT.retain(wanted)
sockets = []
for table, address in wanted:
    with listening([address], table, backlog=5, unix_mode=0o660) as made:
        sockets += made
open(os.devnull).fileno(), tempfile.TemporaryFile()
os.set_inheritable(os.open(os.devnull, os.O_RDONLY), True)
print(*map(bound_address, sockets), len(os.listdir("/proc/self/fd")), len([k for k in os.environ if "LISTEN" in k]))
sys.stdout.flush()
for each in sockets:
    each.close()
KEPT.unlink(path)
if left:
    environ = {**os.environ, **KEPT.pass_on()}
    os.execve(sys.executable, [sys.executable, "-c", sys.orig_argv[2], str(left - 1), path], environ)
KEPT.close()
print(os.path.exists(path))
"""


@pytest.fixture(autouse=True)
def kept(monkeypatch):
    """Replace the sockets that this process keeps."""
    made = KeptListeners()
    monkeypatch.setattr(listening, "KEPT", made)
    yield made
    made.close()


def passed(monkeypatch, *descriptors, names=(), **environ):
    """Let `descriptors` stand where sd_listen_fds(3) puts them. Return the variables."""
    first = fcntl.fcntl(descriptors[0], fcntl.F_DUPFD, 200) if descriptors else 200
    for index, descriptor in enumerate(descriptors[1:], 1):
        os.dup2(descriptor, first + index)
    monkeypatch.setattr(kept_listeners, "FIRST", first)
    told = {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": str(len(descriptors)), "LISTEN_FDNAMES": ":".join(names)}
    return {**told, **environ}


def listener(path=None):
    """Return a socket that listens at a path, or at a free port."""
    made = socket.socket(socket.AF_UNIX if path else socket.AF_INET)
    made.bind(str(path) if path else ("127.0.0.1", 0))
    made.listen()
    return made


def test_fifty_executions_keep_addresses_and_no_other_descriptor(tmp_path):
    command = [sys.executable, "-c", AGAIN, str(EXECUTIONS), str(tmp_path / "s.sock")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    *lines, exists = done.stdout.splitlines()
    assert len(lines) == EXECUTIONS + 1, done.stderr
    assert len(set(lines)) == 1, lines
    assert lines[0].endswith(" 0")
    assert exists == "False"


def test_what_waits_is_answered_by_the_next_owner(kept, monkeypatch):
    with listener() as made:
        waiting = socket.create_connection(made.getsockname())
        address = Address(*made.getsockname())
        environ = passed(monkeypatch, made.fileno(), names=("grpc-1",))
    kept.inherit(environ)
    assert not environ
    kept.retain([("grpc", address)])
    with waiting, listening.listen(address, "grpc", backlog=7, unix_mode=0o600) as taken:
        accepted, name = taken.accept()
        accepted.close()
        assert name == waiting.getsockname()


def test_a_port_that_moves_to_another_table_is_taken_and_port_0_is_not(kept, monkeypatch):
    with listener() as made:
        address = Address(*made.getsockname())
        kept.inherit(passed(monkeypatch, made.fileno(), names=("grpc-1",)))
    kept.retain([("http", TCP), ("http", address)])
    assert kept.take("http", TCP) is None
    taken = kept.take("http", address)
    assert taken is not None
    taken.close()


@pytest.mark.parametrize("order", [1, -1])
def test_port_0_does_not_take_the_socket_of_a_port_of_its_table(kept, monkeypatch, order):
    with listener() as first, listener() as second:
        address = Address(*first.getsockname())
        environ = passed(monkeypatch, first.fileno(), second.fileno(), names=("http-1", "http-2"))
        other = second.getsockname()
    kept.inherit(environ)
    wanted = [TCP, address][::order]
    kept.retain([("http", each) for each in wanted])
    for each in wanted:
        with listening.listen(each, "http", backlog=5, unix_mode=0o600) as taken:
            assert taken.getsockname() == (other if each is TCP else (address.host, address.port))


def test_what_is_not_configured_is_closed_before_anything_listens(kept, monkeypatch, caplog):
    with listener() as made:
        port = made.getsockname()[1]
        kept.inherit(passed(monkeypatch, made.fileno(), names=("grpc-1",)))
    kept.retain([("grpc", Address("127.0.0.2", port))])
    assert f"{port}) is not configured" in caplog.text
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))


def test_the_file_of_a_unix_socket_that_is_not_configured_is_removed_unless_it_is_anothers(kept, monkeypatch, tmp_path):
    own, others = tmp_path / "own", tmp_path / "others"
    with listener(own) as first, listener(others) as second:
        names = (f"grpc-{own.stat().st_ino}", f"http-{own.stat().st_ino}")
        kept.inherit(passed(monkeypatch, first.fileno(), second.fileno(), names=names))
    kept.retain([("grpc", TCP)])
    assert not own.exists()
    assert others.exists()


def test_a_socket_file_that_may_not_be_removed_stays(kept, monkeypatch):
    with tempfile.TemporaryDirectory() as place:
        Path(place).chmod(0o755)
        own = Path(place, "own")
        with listener(own) as made:
            kept.inherit(passed(monkeypatch, made.fileno(), names=(f"grpc-{own.stat().st_ino}",)))
        Path(place).chmod(0o555)
        if os.geteuid() == 0:
            os.seteuid(65534)
        try:
            kept.retain([])
            kept.unlink(str(own))
            assert own.exists()
        finally:
            os.seteuid(os.getuid())
            Path(place).chmod(0o755)


@pytest.mark.parametrize("environ", [{"LISTEN_PID": "1"}, {"LISTEN_FDS": "-1"}, {"LISTEN_FDS": "x"}])
def test_what_is_passed_to_another_process_is_left_alone(kept, monkeypatch, environ):
    with listener() as made:
        told = passed(monkeypatch, made.fileno(), names=("grpc-1",), **environ)
        kept.inherit(told)
        assert kept.take("grpc", Address(*made.getsockname())) is None
        assert not told
        os.close(kept_listeners.FIRST)


def test_descriptors_that_are_no_listening_sockets_are_closed_and_logged(kept, monkeypatch, caplog, tmp_path):
    read, write = os.pipe()
    with socket.socket() as unbound, socket.socket(type=socket.SOCK_DGRAM) as datagrams, listener() as good:
        datagrams.bind(("127.0.0.1", 0))
        descriptors = (read, unbound.fileno(), datagrams.fileno(), good.fileno(), good.fileno())
        names = ("grpc-1", "grpc-2", "grpc-3", "grpc-4", "grpc-4")
        environ = passed(monkeypatch, *descriptors, names=names)
        kept.inherit({**environ, "LISTEN_FDS": "1" * 5000})  # and more than there are
        address = Address(*good.getsockname())
    for each in (read, write):
        os.close(each)
    assert "grpc-1 is closed: descriptor 200 is no listening socket" in caplog.text
    assert all(f"grpc-{number} is closed" in caplog.text for number in (1, 2, 3, 4))
    open_still = {each for each in os.listdir("/proc/self/fd") if int(each) >= kept_listeners.FIRST}  # noqa: PTH208
    assert open_still == {str(kept_listeners.FIRST + 3)}
    assert not os.get_inheritable(kept_listeners.FIRST + 3)
    taken = kept.take("grpc", address)
    assert taken is not None
    taken.close()


@pytest.mark.parametrize("change", ["removed", "replaced", "renamed"])
def test_a_unix_socket_whose_path_is_no_longer_its_own_is_made_again(kept, monkeypatch, tmp_path, change):
    path = tmp_path / "s.sock"
    with listener(path) as made:
        name = f"grpc-{path.stat().st_ino}"
        environ = passed(monkeypatch, made.fileno(), names=(name,))
    if change == "renamed":
        path.rename(tmp_path / "other")
    else:
        (tmp_path / "holds the inode").hardlink_to(path)
        path.unlink()
    if change == "replaced":
        listener(path).close()
    kept.inherit(environ)
    kept.retain([("grpc", Address(path=str(path)))])
    with listening.listen(Address(path=str(path)), "grpc", backlog=5, unix_mode=0o600) as new:
        assert new.getsockname() == str(path)
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))


def test_a_unix_socket_gets_the_mode_that_is_configured_now(kept, monkeypatch, tmp_path):
    path = tmp_path / "s.sock"
    with listener(path) as made:
        path.chmod(0o666)
        environ = passed(monkeypatch, made.fileno(), names=(f"grpc-{path.stat().st_ino}",))
    kept.inherit(environ)
    kept.retain([("grpc", Address(path=str(path)))])
    inode = path.stat().st_ino
    listening.listen(Address(path=str(path)), "grpc", backlog=5, unix_mode=0o600).close()
    assert (path.stat().st_ino, path.stat().st_mode & 0o777) == (inode, 0o600)
    kept.unlink(str(path))
    assert path.exists()
    kept.close()
    assert not path.exists()


def test_the_service_manager_stores_new_sockets_and_forgets_unwanted_ones(kept, monkeypatch, tmp_path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager, listener() as unwanted:
        manager.bind(str(tmp_path / "notify"))
        told = {"NOTIFY_SOCKET": manager.getsockname(), "FDSTORE": "64"}
        kept.inherit(passed(monkeypatch, unwanted.fileno(), names=("grpc-1",)) | told)
        path = str(tmp_path / "s.sock")
        kept.retain([("grpc", Address(path=path))])
        assert manager.recv(1000) == b"FDSTOREREMOVE=1\nFDNAME=grpc-1"
        listening.listen(Address(path=path), "grpc", backlog=5, unix_mode=0o600).close()
        message, (stored,), _, _ = socket.recv_fds(manager, 1000, 2)
        with socket.socket(fileno=stored) as copy:
            assert message == f"FDSTORE=1\nFDNAME=grpc-{Path(path).stat().st_ino}".encode()
            assert copy.getsockname() == path
        kept.unlink(path)
        kept.close()
        assert Path(path).exists()  # the manager's copy listens there
