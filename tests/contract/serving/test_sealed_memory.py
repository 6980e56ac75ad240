"""Sealed memory: a memfd passed over a UNIX socket is read in place by gRPC calls of the same caller."""

from __future__ import annotations

import asyncio
import fcntl
import gc
import json
import os
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc.aio as triton
from tritonclient.utils import InferenceServerException

from gateway.common.domain.access import Address, Security, read_tokens
from gateway.serving.frontends.pools import Pools
from gateway.serving.frontends.regions import Regions
from gateway.serving.frontends.sealed_memory import LINE_BYTES, SealedMemory
from gateway.serving.frontends.settings import SharedMemorySettings
from tests.simulators.grpc_gateway import serving
from tests.simulators.segments import descriptors, mappings

pytestmark = pytest.mark.asyncio
SIZE = 64 * 1024
X = np.arange(SIZE, dtype=np.uint8).reshape(1, -1)


@contextmanager
def sealed(size: int = SIZE, seals: int = fcntl.F_SEAL_SHRINK) -> Iterator[int]:
    """Yield a sealed memfd."""
    descriptor = os.memfd_create("frames", os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(descriptor, size)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
        yield descriptor
    finally:
        os.close(descriptor)


@asynccontextmanager
async def offering(
    folder: Path, security: Security | None = None, **changed: Any
) -> AsyncIterator[tuple[str, Regions, Any]]:
    """Serve gRPC and a registration socket; yield the socket's path, the regions and the gRPC gateway."""
    path = str(folder / "memory.sock")
    settings = SharedMemorySettings(**{"allowed": True, "socket": path, **changed})
    regions, security = Regions(settings), security or Security()
    memory = SealedMemory(regions, settings, security, Pools().refusals)
    memory.start()
    grpc = Address(path=str(folder / "grpc.sock"))
    try:
        async with serving(regions=regions, addresses=[grpc], security=security) as gateway:
            yield path, regions, gateway
    finally:
        memory.stop()


class Program:
    """A program that registers one region."""

    def __init__(self, path: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.setblocking(False)
        self._path, self._loop = path, asyncio.get_running_loop()

    async def register(self, *descriptors: int, line: bytes | None = None, **fields: Any) -> str:
        """Send one registration; return the error, "" if it was accepted."""
        await self._loop.sock_connect(self._socket, self._path)
        wanted = {"name": "frames", "byte_size": SIZE, **fields}
        sent = json.dumps(wanted).encode() + b"\n" if line is None else line
        socket.send_fds(self._socket, [sent], [*descriptors])
        return json.loads(await self.receive()).get("error", "")

    async def receive(self) -> bytes:
        """Return the next bytes from the gateway; b"" once it has closed."""
        return await self._loop.sock_recv(self._socket, LINE_BYTES)

    def close(self) -> None:
        self._socket.close()


MakeProgram = Callable[[str], Program]


@pytest.fixture
def program() -> Iterator[MakeProgram]:
    """Yield a function that makes programs, which live until the test has ended."""
    made: list[Program] = []

    def make(path: str) -> Program:
        made.append(Program(path))
        return made[-1]

    yield make
    for each in made:
        each.close()


def placed(size: int = SIZE) -> triton.InferInput:
    tensor = triton.InferInput("x", [1, size], "UINT8")
    tensor.set_shared_memory("frames", size)
    return tensor


async def test_inputs_are_read_in_place_and_outputs_written(tmp_path: Path, program: MakeProgram) -> None:
    async with offering(tmp_path) as (path, _, gateway), triton.InferenceServerClient(gateway.target) as client:
        with sealed(2 * SIZE) as descriptor:
            assert await program(path).register(descriptor, byte_size=2 * SIZE) == ""
            os.pwrite(descriptor, X.tobytes(), 0)
            output = triton.InferRequestedOutput("y")
            output.set_shared_memory("frames", SIZE, SIZE)
            await client.infer("identity_uint8", [placed()], outputs=[output])
            assert os.pread(descriptor, SIZE, SIZE) == X.tobytes()
            (request,) = gateway.inference.requests
            seen = request.inputs["x"].array
            os.pwrite(descriptor, b"\xff", 0)
            assert seen[0, 0] == 0xFF, "the input is a copy"


async def test_a_sealed_segment_cannot_be_truncated_and_an_unsealed_one_is_refused(
    tmp_path: Path, program: MakeProgram
) -> None:
    async with offering(tmp_path) as (path, regions, _):
        with sealed() as descriptor, pytest.raises(PermissionError):
            os.ftruncate(descriptor, 0)
        with sealed(seals=fcntl.F_SEAL_GROW) as descriptor:
            assert "sealed with F_SEAL_SHRINK" in await program(path).register(descriptor)
        with (tmp_path / "file").open("w+b") as file:
            file.truncate(SIZE)
            assert "sealed with F_SEAL_SHRINK" in await program(path).register(file.fileno())
        assert regions.status(f"uid:{os.getuid()}") == []


async def test_a_region_ends_with_its_connection_and_the_connection_with_its_region(
    tmp_path: Path, program: MakeProgram
) -> None:
    caller = f"uid:{os.getuid()}"
    gc.collect()  # what earlier tests left to the collector would count
    async with offering(tmp_path) as (path, regions, _):
        before = descriptors("/memfd:"), mappings("/memfd:frames")
        with sealed() as descriptor:
            first, second = program(path), program(path)
            assert await first.register(descriptor) == ""
            assert "already in manager" in await second.register(descriptor)
            assert await second.receive() == b""
            assert regions.status(caller) == [{"name": "frames", "key": "memfd", "offset": 0, "byte_size": SIZE}]
            regions.unregister(caller, "frames")
            assert await first.receive() == b""
            third = program(path)
            assert await third.register(descriptor) == ""
            third.close()
            while regions.status(caller):
                await asyncio.sleep(0.001)
        first.close()
        second.close()
        assert (descriptors("/memfd:"), mappings("/memfd:frames")) == before


async def test_a_token_is_needed_where_callers_need_one(tmp_path: Path, program: MakeProgram) -> None:
    security = Security(
        tokens=read_tokens("cam s3cret-of-camera scopes=memory,infer\nread s3cret-of-read scopes=infer", "tokens")
    )
    async with offering(tmp_path, security) as (path, regions, _):
        with sealed() as descriptor:
            assert "token is required" in await program(path).register(descriptor)
            assert "scope" in await program(path).register(descriptor, authorization="Bearer s3cret-of-read")
            assert await program(path).register(descriptor, authorization="Bearer s3cret-of-camera") == ""
            assert [line["name"] for line in regions.status("cam")] == ["frames"]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (b"{\n", "not JSON"),
        (b"[]\n", "must be an object"),
        (b'{"name": "a", "byte_size": 1, "more": 1}\n', "must be an object"),
        (b'{"name": 1, "byte_size": 1}\n', "name must be a string"),
        (b'{"name": "a", "byte_size": true}\n', "byte_size an integer"),
        (b'{"name": "", "byte_size": 1}\n', "1 to 255 characters"),
        (b'{"name": "a", "byte_size": 0}\n', "must be 1 to"),
        (b'{"name": "a", "byte_size": 1000000}\n', "do not lie within"),
        (b"x" * LINE_BYTES + b"\n", "one line of at most"),
    ],
)
async def test_what_is_no_registration_is_refused_with_the_reason(
    tmp_path: Path, program: MakeProgram, line: bytes, problem: str
) -> None:
    async with offering(tmp_path) as (path, _, _):
        with sealed() as descriptor:
            assert problem in await program(path).register(descriptor, line=line)


async def test_a_registration_has_exactly_one_descriptor(tmp_path: Path, program: MakeProgram) -> None:
    async with offering(tmp_path) as (path, _, _):
        with sealed() as descriptor:
            assert "no descriptor came with it" in await program(path).register()
            assert "with one descriptor" in await program(path).register(descriptor, descriptor)


async def test_one_caller_has_its_share_of_connections(tmp_path: Path, program: MakeProgram) -> None:
    async with offering(tmp_path, max_regions=4) as (path, _, _):
        with sealed() as descriptor:
            answers = [await program(path).register(descriptor, name=str(number)) for number in range(3)]
            assert answers[:2] == ["", ""]
            assert "too many memory connections" in answers[2]


async def test_a_region_that_may_not_be_written_takes_no_output(tmp_path: Path, program: MakeProgram) -> None:
    async with offering(tmp_path) as (path, _, gateway), triton.InferenceServerClient(gateway.target) as client:
        with sealed(seals=fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_WRITE) as descriptor:
            assert await program(path).register(descriptor) == ""
            output = triton.InferRequestedOutput("y")
            output.set_shared_memory("frames", SIZE)
            with pytest.raises(InferenceServerException, match="may not be written"):
                await client.infer("identity_uint8", [placed()], outputs=[output])
