"""A frame in the client's shared memory, registered with a server for the length of a block."""

from __future__ import annotations

import fcntl
import json
import mmap
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gateway.serving.frontends.grpc_v2.codec.protocol import message
from tests.performance.servers import MEMORY_SOCKET, WAIT_S, Server

SERVICE = "/inference.GRPCInferenceService/SystemSharedMemory"


@contextmanager
def registered(server: Server, name: str, content: bytes) -> Iterator[str]:
    """Yield the region's name; its segment holds `content` and is gone when the block ends."""
    key = f"/edge-bench-{os.getpid()}-{name}"
    file = Path(f"/dev/shm{key}")
    file.unlink(missing_ok=True)
    descriptor = os.open(file, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
    try:
        os.ftruncate(descriptor, len(content))
        with mmap.mmap(descriptor, len(content)) as memory:
            memory[:] = content
            told = message("inference.SystemSharedMemoryRegisterRequest")(name=name, key=key, byte_size=len(content))
            _ask(server, "Register", told.SerializeToString())
            yield name
            told = message("inference.SystemSharedMemoryUnregisterRequest")(name=name)
            _ask(server, "Unregister", told.SerializeToString())
    finally:
        os.close(descriptor)
        file.unlink()


@contextmanager
def sealed(server: Server, name: str, content: bytes) -> Iterator[str]:
    """Yield the name of a region that is a sealed memfd, which holds `content` and is registered for the block."""
    descriptor = os.memfd_create(name, os.MFD_ALLOW_SEALING)
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            os.write(descriptor, content)
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
            connection.connect(str(server.unix.with_name(MEMORY_SOCKET)))
            line = json.dumps({"name": name, "byte_size": len(content)}).encode() + b"\n"
            socket.send_fds(connection, [line], [descriptor])
            if (answer := connection.recv(4096)) != b"{}\n":
                raise SystemExit(f"{server.name} did not register sealed memory: {answer!r}")
            yield name
        finally:
            os.close(descriptor)


def _ask(server: Server, what: str, request: bytes) -> None:
    import grpc

    with grpc.insecure_channel(f"unix:{server.unix}") as channel:
        try:
            channel.unary_unary(SERVICE + what)(request, timeout=WAIT_S)
        except grpc.RpcError as error:
            raise SystemExit(f"{server.name} did not {what.lower()} shared memory: {error}") from error
