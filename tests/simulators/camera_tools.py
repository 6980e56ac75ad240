"""Cameras that others wrote (rtsp-rs, GStreamer), ways to disturb them, and videos made with PyAV.

`make` installs rtsp-rs and PyAV apart, and GStreamer from Debian.
"""

from __future__ import annotations

import os
import socket
import socketserver
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from fractions import Fraction
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np

from tests.simulators.daemon import COMMAND, ROOT

FOLDER = ROOT / ".venv" / "camera"
GST_PYTHON = ("/usr/bin/python3", "-I", str(ROOT / "tests" / "simulators" / "gst_cameras.py"))
sys.path.append(str(FOLDER))  # behind all packages of the tests


def environment() -> Mapping[str, str]:
    """Return our environment with PyAV behind the packages of the gateway."""
    return {**os.environ, "PYTHONPATH": str(FOLDER)}


def infer(*arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run `edge-gateway infer` where PyAV is installed."""
    words = [*COMMAND, "infer", *map(str, arguments)]
    return subprocess.run(words, cwd=ROOT, env=environment(), capture_output=True, text=True, check=False, **options)


@contextmanager
def started_infer(*arguments: object) -> Iterator[subprocess.Popen[str]]:
    """Lend `edge-gateway infer`, whose standard output is read line by line; it is killed at the end.

    It takes SIGHUP as from a terminal, also where the tests run without one (nohup).
    """
    words = ["env", "--default-signal=HUP", *COMMAND, "infer", *map(str, arguments)]
    pipe = subprocess.PIPE
    with subprocess.Popen(words, cwd=ROOT, env=environment(), stdout=pipe, stderr=pipe, text=True) as client:
        try:
            yield client
        finally:
            client.kill()


def pixels(number: int, width: int, height: int) -> np.ndarray[Any, Any]:
    """Return frame `number` of a video: gray, as bright as its number, so that a model can read it."""
    return np.full((height, width, 3), 2 * (number % 128), np.uint8)


def encoded(count: int, rate: int, width: int, height: int) -> Iterator[Any]:
    """Yield packets of H.264 with `count` frames."""
    import av

    codec = av.CodecContext.create("libx264", "w")
    codec.width, codec.height, codec.pix_fmt = width, height, "yuv420p"
    codec.time_base, codec.framerate = Fraction(1, rate), rate
    codec.options = {"preset": "ultrafast", "tune": "zerolatency", "crf": "10"}
    for number in range(count):
        frame = av.VideoFrame.from_ndarray(pixels(number, width, height), format="rgb24")
        frame = frame.reformat(format="yuv420p")
        frame.pts, frame.time_base = number, Fraction(1, rate)
        yield from codec.encode(frame)
    yield from codec.encode(None)


def write_video(path: Path, count: int = 20, rate: int = 30, size: tuple[int, int] = (128, 64)) -> Path:
    """Write a video of `count` frames; `size` is (width, height)."""
    import av

    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=rate)
        stream.width, stream.height, stream.pix_fmt = *size, "yuv420p"
        stream.options = {"preset": "ultrafast", "crf": "10"}
        for number in range(count):
            frame = av.VideoFrame.from_ndarray(pixels(number, *size), format="rgb24")
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return path


def write_spoilt(path: Path, count: int, spoilt: set[int]) -> None:
    """Write JPEG frames into a video, and zeros in place of those in `spoilt`."""
    import av

    with av.open(str(path), "w") as container:
        stream = container.add_stream("mjpeg", rate=10)
        stream.width, stream.height, stream.pix_fmt = 64, 32, "yuvj420p"
        for number in range(count):
            frame = av.VideoFrame.from_ndarray(pixels(number, 64, 32), format="rgb24")
            for packet in stream.encode(frame.reformat(format="yuvj420p")):
                sent = av.Packet(bytes(1000)) if number in spoilt else packet
                sent.stream, sent.pts, sent.dts, sent.time_base = stream, number, number, packet.time_base
                container.mux(sent)


class GstCameras:
    """GStreamer's RTSP server in a process: the cameras of gst_cameras.py, each also behind a password."""

    def __init__(self) -> None:
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(GST_PYTHON, stdin=pipe, stdout=pipe, text=True, bufsize=1)
        self.port, self.locked_port = map(int, self._output.readline().split())

    def url(self, name: str, port: int = 0) -> str:
        return f"rtsp://127.0.0.1:{port or self.port}/{name}"

    def tell(self, command: str) -> None:
        """Carry out a command: `freeze NAME`, `go NAME`, `size NAME W H`, `cut`."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{command}\n")
        assert self._output.readline() == f"{command}\n"

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()

    @property
    def _output(self) -> Any:
        return self._process.stdout


@contextmanager
def gst_cameras() -> Iterator[GstCameras]:
    """Lend GStreamer's cameras."""
    cameras = GstCameras()
    try:
        yield cameras
    finally:
        cameras.close()


@contextmanager
def rtsp_rs_camera() -> Iterator[str]:
    """Lend the URL of a camera of rtsp-rs, which sends the same second again and again."""
    import rtsp

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    server, ended = rtsp.Server(address), threading.Event()
    server.start()

    def send() -> None:
        for packet in cycle([bytes(packet) for packet in encoded(30, 30, 128, 64)]):
            if ended.wait(1 / 30):
                return
            server.send_frame(packet, 3000)  # at 90 kHz

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield f"rtsp://{address}/stream"
    finally:
        ended.set()
        thread.join()
        server.stop()


class CameraRelay:
    """TCP relay to a camera, which can be `cut`, `held` or made slow (`bytes_s`). `connections` counts attempts."""

    def __init__(self, port: int) -> None:
        self.connections, self.bytes_s, self.flows = 0, 0, threading.Event()
        self.flows.set()
        self._open: set[socket.socket] = set()
        relay = self

        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                relay.connections += 1
                with suppress(OSError), socket.create_connection(("127.0.0.1", port)) as camera:
                    ends = {self.request, camera}
                    relay._open |= ends
                    asking = threading.Thread(target=relay._pump, args=(self.request, camera, False), daemon=True)
                    asking.start()
                    relay._pump(camera, self.request, True)
                    relay._open -= ends

        class Server(socketserver.ThreadingTCPServer):
            allow_reuse_address, daemon_threads = True, True

        self._server = Server(("127.0.0.1", 0), Handler)
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def cut(self) -> None:
        """End all connections; new ones are accepted."""
        for end in tuple(self._open):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Refuse connections from now on, and end all."""
        self._server.shutdown()
        self._server.server_close()
        self.flows.set()
        self.cut()

    def _pump(self, source: socket.socket, target: socket.socket, is_camera: bool) -> None:
        with suppress(OSError):
            while content := source.recv(4096):
                if is_camera:
                    self.flows.wait()
                    time.sleep(len(content) / self.bytes_s if self.bytes_s else 0)
                target.sendall(content)
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


@contextmanager
def camera_relay(port: int) -> Iterator[CameraRelay]:
    """Lend a relay to the camera at a port of this machine."""
    relay = CameraRelay(port)
    try:
        yield relay
    finally:
        relay.close()


class _SpoiltRtsp(socketserver.StreamRequestHandler):
    """Camera that answers each request, and DESCRIBE with the server's `sdp`."""

    def handle(self) -> None:
        with suppress(ConnectionError):
            self._answer()

    def _answer(self) -> None:
        while head := self.rfile.readline():
            sequence = b"0"
            while (line := self.rfile.readline()).strip():
                if line.lower().startswith(b"cseq:"):
                    sequence = line.partition(b":")[2].strip()
            body = self.server.sdp if head.startswith(b"DESCRIBE") else b""  # type: ignore[attr-defined]
            public = b"Public: OPTIONS, DESCRIBE, SETUP, PLAY\r\nContent-Type: application/sdp\r\n"
            size = b"Content-Length: %d\r\n\r\n" % len(body)
            self.wfile.write(b"RTSP/1.0 200 OK\r\nCSeq: %s\r\n%s%s%s" % (sequence, public, size, body))


@contextmanager
def spoilt_camera(sdp: bytes) -> Iterator[str]:
    """Lend the URL of a camera with a description that is wrong."""
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), _SpoiltRtsp) as server:
        server.daemon_threads = True
        server.sdp = sdp  # type: ignore[attr-defined]
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"rtsp://127.0.0.1:{server.server_address[1]}/stream"
        server.shutdown()
