"""Process of one camera: decodes all the time, and sends the newest frame when the daemon orders one.

It is started as `python -m gateway.serving.frontends.cameras.child FD`. The first message on the socket FD has its
settings: no password is in a command line or in the environment. What FFmpeg reads comes from a peer that is not
trusted, so the process has a bound of memory, no descriptors but this one, and ends with the daemon.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import resource
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gateway.common.domain.errors import ConfigurationError, RequestError
from gateway.common.domain.retry import draw_chance, pause_s
from gateway.serving.frontends.cameras.forms import FrameForm
from gateway.serving.frontends.cameras.frames import masked, picture, prepare
from gateway.serving.frontends.cameras.newest import NewestSlot
from gateway.serving.frontends.cameras.pacing import GAP_LIMIT_S
from gateway.serving.frontends.cameras.protocol import ORDER_BYTES, SEALS, SIDE_LIMIT, CameraReport, plain_reason
from gateway.serving.frontends.cameras.reader import DecodedFrame, LoginRefusedError, SourceReader, reason_of
from gateway.serving.frontends.cameras.reading import ReadingThread, WaitingFrame
from gateway.serving.frontends.cameras.settings import ChildLimits, FeedSettings, is_file
from gateway.serving.frontends.cameras.source import camera_source, file_source

if TYPE_CHECKING:
    import av

PR_SET_PDEATHSIG = 1  # linux/prctl.h
SIZES_S = 0.2
"""Least time between two reports of the size of frames."""
KILLED_FIRST = "500"
"""oom_score_adj(5): where the device is short of memory, this process is ended before the gateway."""


class CameraChild:
    """Camera's process: a thread reads and decodes, the main thread answers orders and reports each second."""

    def __init__(self, channel: socket.socket, setup: Mapping[str, Any]) -> None:
        self._channel, self._limits = channel, ChildLimits(**setup["limits"])
        self._feed = FeedSettings(open_s=self._limits.open_s, read_s=self._limits.read_s)
        self._is_file, self._masks = is_file(setup["url"]), setup["masks"]
        source = file_source(setup["url"]) if self._is_file else camera_source(setup["url"])
        if setup["ca"]:
            source = replace(source, options={**source.options, "tls_verify": "1", "ca_file": setup["ca"]})
        self._reader = SourceReader(source, self._feed, lambda _: None)
        self._came = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._slot = _AnnouncedSlot(self._came)
        self._thread = ReadingThread(self._frames(), self._slot, per_s=setup["per_s"], pace=self._is_file)
        self._noted, self._noted_s = (0, 0), float("-inf")
        """Size of frames that was reported last, and when."""
        self._ended = threading.Event()
        self._progress_s = time.monotonic()
        self._order: Mapping[str, Any] | None = None
        self._last: av.VideoFrame | None = None

    def run(self) -> None:
        """Work until the daemon closes the socket, or the reading thread ends or hangs."""
        poller, alive_s = select.poll(), 0.0
        hang_s = self._limits.hang_s + (GAP_LIMIT_S if self._is_file else 0.0)
        for descriptor in (self._channel.fileno(), self._came):
            poller.register(descriptor, select.POLLIN)
        self._thread.start()
        while True:
            left_s = max(0.0, alive_s + self._limits.alive_s - time.monotonic())
            ready = [descriptor for descriptor, _ in poller.poll(1000 * left_s)]
            if self._channel.fileno() in ready:
                message = self._channel.recv(ORDER_BYTES)
                if not message:
                    return
                self._take(json.loads(message))
            if self._came in ready:
                os.eventfd_read(self._came)
            if self._order is not None and (waiting := self._slot.take(0.0)) is not None:
                self._send_frame(self._order, waiting)
                self._order = None
            now_s = time.monotonic()
            if now_s >= alive_s + self._limits.alive_s:
                alive_s = now_s
                self._report("alive")
            if not self._thread.is_alive():
                failure = self._thread.failure
                reason = f"{type(failure).__name__}: {reason_of(failure)}" if failure else ""
                self._report("lost", reason=getattr(failure, "problem", "") or reason)
                return
            if now_s > self._progress_s + hang_s:
                self._report("stalled", reason=f"no frame was decoded in {hang_s:g} s")
                return

    def _take(self, order: Mapping[str, Any]) -> None:
        if "frame" in order:
            self._order = order
        else:
            self._send_picture(order)

    def _send_frame(self, order: Mapping[str, Any], waiting: WaitingFrame) -> None:
        try:
            form = dict(order["form"])
            size = form.pop("size")
            image = masked(waiting.frame.image, self._masks, self._feed)
            prepared = prepare(image, FrameForm(size=size and tuple(size), **form), self._feed)
            self._last, width, height = prepared.image, prepared.image.width, prepared.image.height
            at_ns = int(waiting.since_s * 1e9)
            self._send(prepared.content, "frame", order["frame"], width=width, height=height, at_ns=at_ns)
        except RequestError as error:
            self._report("failed", id=order["frame"], reason=error.message)
        except (MemoryError, OSError, ValueError) as error:
            self._report("failed", id=order["frame"], reason=f"{type(error).__name__}: {reason_of(error)}")

    def _send_picture(self, order: Mapping[str, Any]) -> None:
        """Send a JPEG of the last frame with boxes, or an empty one."""
        try:
            content = picture(self._last, order["entries"], self._feed) if self._last else b""
            self._send(content, "picture", order["picture"])
        except Exception as error:  # noqa: BLE001  what an engine found may be anything: infinite boxes, for example
            self._report("failed", id=order["picture"], reason=f"{type(error).__name__}: {reason_of(error)}")

    def _send(self, content: bytes, kind: str, number: int, **facts: Any) -> None:
        descriptor = os.memfd_create("edge-gateway-camera", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            left = memoryview(content)
            while left:
                left = left[os.write(descriptor, left) :]
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, SEALS)
            report = self._written(kind, id=number, byte_size=len(content), **facts)
            socket.send_fds(self._channel, [report], [descriptor])
        finally:
            os.close(descriptor)

    def _report(self, kind: str, **facts: Any) -> None:
        with suppress(BrokenPipeError, ConnectionResetError):  # the daemon has ended: `run` notices
            self._channel.send(self._written(kind, **facts))

    def _written(self, kind: Any, **facts: Any) -> bytes:
        thread = self._thread
        facts |= {"read": thread.read, "left_out": thread.left_out, "skipped": thread.skipped}
        facts["reason"] = plain_reason(facts.get("reason", ""))
        return CameraReport(kind, broken=self._reader.broken, **facts).encode()

    def _frames(self) -> Iterator[DecodedFrame]:
        """Yield the frames of the source, for ever: a camera that is lost is connected again, a file is repeated.

        Raises LoginRefusedError: the process ends, and the next one has what the file of the password holds then.
        """
        import av

        failures, at_s = 0, 0.0
        while True:
            first_s, base_s, kind, reason = None, at_s, "lost", "the stream ended"
            try:
                container = self._reader.open()
                try:
                    rate = float(container.streams.video[0].average_rate or 1)
                    for frame in self._reader.decoded(container):
                        self._progress_s, failures = time.monotonic(), 0
                        self._note_size(container, frame)
                        first_s = frame.timestamp_s if first_s is None else first_s
                        at_s = base_s + frame.timestamp_s - first_s
                        yield replace(frame, timestamp_s=at_s)
                finally:
                    container.close()
            except LoginRefusedError:
                raise
            except (ConfigurationError, av.FFmpegError, OSError, ValueError) as error:
                kind, reason = _kind_of(error), getattr(error, "problem", "") or reason_of(error)
            else:
                if self._is_file and first_s is not None:  # times go on when a file begins again
                    at_s += 1.0 / min(100.0, max(1.0, rate))
                    continue
            self._lost(kind, reason, failures := failures + 1)

    def _note_size(self, container: Any, frame: DecodedFrame) -> None:
        """Report the stream at its first frame, and where the size of frames changes. Raises ValueError."""
        now_s, image = time.monotonic(), frame.image
        if self._noted == (image.width, image.height) or now_s < self._noted_s + SIZES_S:
            return
        if max(image.width, image.height) > SIDE_LIMIT:
            raise ValueError(f"a frame of {image.width} by {image.height} pixels is too large")
        self._noted, self._noted_s, stream = (image.width, image.height), now_s, container.streams.video[0]
        codec = "".join(each for each in stream.codec_context.name if each.isalnum() or each == "_")[:39]
        self._report("opened", codec=codec or "unknown", width=image.width, height=image.height)

    def _lost(self, kind: str, reason: str, failures: int) -> None:
        """Report a loss, and wait before the next attempt."""
        self._noted, self._noted_s = (0, 0), float("-inf")
        self._report(kind, reason=reason)
        limits, chance = self._limits, 0.5 + draw_chance() / 2
        until_s = time.monotonic() + pause_s(failures, limits.pause_s, limits.pause_limit_s, chance)
        while (now_s := time.monotonic()) < until_s:
            self._progress_s = now_s
            self._ended.wait(min(1.0, until_s - now_s))
        self._progress_s = time.monotonic()
        self._report("connecting")


class _AnnouncedSlot(NewestSlot[WaitingFrame]):
    """Slot that makes a descriptor readable when an item comes."""

    def __init__(self, came: int) -> None:
        super().__init__()
        self._came = came

    def offer(self, item: WaitingFrame) -> bool:
        """Put an item as `NewestSlot.offer` does."""
        replaced = super().offer(item)
        with suppress(BlockingIOError):
            os.eventfd_write(self._came, 1)
        return replaced


def _kind_of(error: Exception) -> str:
    """Return "stalled" for a stream that sent nothing in time, else "lost"."""
    return "stalled" if type(error).__name__ in {"ExitError", "TimeoutError"} else "lost"


def harden(limits: ChildLimits) -> None:
    """Bound this process: memory, descriptors, precedence; it ends with the thread that started it."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    for what, bound in (
        (resource.RLIMIT_DATA, limits.memory_bytes),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NOFILE, limits.files),
    ):
        # What the daemon allows itself ([gateway] memory_mib) bounds this process, too.
        least = min((bound, *(each for each in resource.getrlimit(what) if each != resource.RLIM_INFINITY)))
        resource.setrlimit(what, (least, least))
    with suppress(OSError):
        os.setpgid(0, 0)  # ctrl-c at a terminal is for the daemon
        os.nice(limits.nice)
    with suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:  # noqa: PTH123
        file.write(KILLED_FIRST)


def main() -> None:
    """Serve the socket that the command line names."""
    channel = socket.socket(fileno=int(sys.argv[1]))
    setup = json.loads(channel.recv(ORDER_BYTES) or "null")
    if setup is None or os.getppid() != setup["parent"]:
        return
    harden(ChildLimits(**setup["limits"]))
    try:
        import av  # noqa: F401
    except ImportError as error:
        from gateway.common.domain.installation import HERE

        missing = f"the Python package av cannot be imported ({error}); {HERE.adding('camera')} (EG-702)"
        channel.send(CameraReport("lost", reason=missing).encode())
        return
    CameraChild(channel, setup).run()
    sys.stdout.flush()
    os._exit(0)  # a thread that hangs in FFmpeg is left behind


if __name__ == "__main__":
    main()
