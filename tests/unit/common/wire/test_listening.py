"""Addresses that can be had, and those that cannot."""

from __future__ import annotations

import socket
import stat
from contextlib import closing
from pathlib import Path

import pytest

from gateway.common.domain.access import Address
from gateway.common.domain.errors import UnreachableError
from gateway.common.wire.listening import bound_address, listen, listening

LOOPBACK = Address("127.0.0.1", 0)


def had(address: Address, unix_mode: int = 0o600) -> socket.socket:
    return listen(address, "http", backlog=1, unix_mode=unix_mode)


def refused(address: Address) -> str:
    with pytest.raises(UnreachableError) as told:
        had(address)
    return str(told.value)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
def test_a_free_port_is_known_afterwards(host: str) -> None:
    with closing(had(Address(host, 0))) as listener:
        address = bound_address(listener)
        assert address.port
        socket.create_connection((address.host, address.port)).close()


def test_a_busy_port_is_said_to_be() -> None:
    with closing(had(LOOPBACK)) as listener:
        said = refused(bound_address(listener))
    assert "http.listen: cannot listen on 127.0.0.1:" in said
    assert "it is in use: stop what listens there" in said


@pytest.mark.parametrize(
    ("address", "says"),
    [
        (Address("192.0.2.1", 0), "this machine has no such address"),
        (Address("x" * 64 + ".example", 0), "this cannot be a host's name"),
        (Address("a.invalid", 0), "choose another address"),
        (Address(path="/nowhere/at/all.sock"), "its folder does not exist"),
    ],
)
def test_what_cannot_be_had_is_named_with_a_remedy(address: Address, says: str) -> None:
    assert says in refused(address)


def test_the_key_that_holds_the_address_is_named() -> None:
    with pytest.raises(UnreachableError, match=r"^listen\.addresses: cannot listen on 192\.0\.2\.1:0"):
        listen(Address("192.0.2.1", 0), "listen", "addresses", backlog=1, unix_mode=0)


@pytest.mark.parametrize("mode", [0o600, 0o660, 0o666])
def test_a_sockets_permissions_are_those_asked_for(tmp_path: Path, mode: int) -> None:
    address = Address(path=str(tmp_path / "x.sock"))
    with closing(had(address, mode)) as listener:
        assert stat.S_IMODE(Path(address.path).stat().st_mode) == mode
        assert bound_address(listener) == address


def test_a_socket_that_nobody_listens_on_any_more_is_replaced(tmp_path: Path) -> None:
    address = Address(path=str(tmp_path / "x.sock"))
    had(address).close()
    had(address).close()


def test_one_that_somebody_listens_on_is_not(tmp_path: Path) -> None:
    address = Address(path=str(tmp_path / "x.sock"))
    with closing(had(address)):
        assert "in use" in refused(address)
        with closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as peer:
            peer.connect(address.path)


@pytest.mark.parametrize("kind", ["file", "link"])
def test_what_is_no_socket_stays(tmp_path: Path, kind: str) -> None:
    path, other = tmp_path / "x.sock", tmp_path / "other"
    other.write_text("kept")
    path.symlink_to(other) if kind == "link" else path.write_text("kept")
    assert "is no socket: remove it" in refused(Address(path=str(path)))
    assert path.read_text() == other.read_text() == "kept"


def test_all_or_none(tmp_path: Path) -> None:
    path = tmp_path / "x.sock"
    addresses = [Address(path=str(path)), Address("192.0.2.1", 0)]
    with pytest.raises(UnreachableError), listening(addresses, "http", backlog=1, unix_mode=0o600):
        pytest.fail("the second cannot be had")
    assert not path.exists()


def test_a_block_that_fails_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "x.sock"
    with pytest.raises(ZeroDivisionError):  # noqa: PT012, SIM117  what follows the listening is what fails
        with listening([Address(path=str(path))], "http", backlog=1, unix_mode=0o600) as listeners:
            assert path.is_socket()
            raise ZeroDivisionError
    assert not path.exists()
    assert listeners[0].fileno() == -1
