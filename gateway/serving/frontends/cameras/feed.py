"""Feed of one camera: its process is started again for ever, and one frame of it at a time is a request to a model."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Any
from urllib.parse import quote, urlsplit, urlunsplit

import numpy as np

from gateway.common.domain.errors import ConfigurationError, RequestError
from gateway.common.domain.manifest import ModelManifest
from gateway.common.domain.redaction import without_secrets
from gateway.common.domain.retry import SECOND_NS, TokenBuckets, draw_chance, pause_s
from gateway.common.domain.tensor import DATATYPES, Array, Datatype, Tensor
from gateway.common.files.credentials import read_secret, secret_path
from gateway.common.timeouts import timeout
from gateway.serving.domain.cameras import CameraAnswer, CameraListener
from gateway.serving.domain.infer import InferRequest
from gateway.serving.domain.ports import Inference
from gateway.serving.frontends.cameras.forms import FrameForm, choose_form
from gateway.serving.frontends.cameras.process import CameraProcess, mapped
from gateway.serving.frontends.cameras.protocol import (
    CONNECTING,
    LOST,
    NO_MODEL,
    ORDER_BYTES,
    STALLED,
    STREAMING,
    STREAMS,
    CameraProtocolError,
    CameraReport,
    encode_order,
    next_state,
    plain_reason,
    read_report,
)
from gateway.serving.frontends.cameras.settings import CameraSettings, ChildLimits, FeedSettings
from gateway.serving.frontends.cameras.snapshots import Snapshots
from gateway.serving.frontends.documents import model_config, model_metadata

log = logging.getLogger(__name__)

COUNTED = ("read", "left_out", "skipped", "broken")
"""Counts of a camera's process."""
RATES_S = 10
"""Time over which rates are averaged, in reports of a process."""
LATENCIES = 512
"""Newest answers whose latencies are kept."""
WORDS, WORDS_PER_S = 10, 1 / 30
"""Changes of a camera that are logged at once, and on average: one that comes and goes does not fill the log."""
NO_PICTURE: tuple[int, int, tuple[str, ...]] = (0, 0, ())
AGE_LIMIT_NS = 60 * SECOND_NS
"""Greatest age of a frame that a process may state."""
JPEG_START = b"\xff\xd8"


class CameraFeed:
    """Feed of one camera, from `start` to `stop`."""

    def __init__(
        self,
        settings: CameraSettings,
        engine: Inference,
        listeners: Sequence[CameraListener],
        limits: ChildLimits,
        snapshots: Snapshots,
    ) -> None:
        self.settings, self.restarts = settings, 0
        self._engine, self._listeners, self._limits = engine, listeners, limits
        self._snapshots = snapshots
        self._feed = FeedSettings()
        self._task: asyncio.Task[None] | None = None
        self._process: CameraProcess | None = None
        self._url = ""
        """URL that the last process was given; "": none was started yet."""
        self._asking: asyncio.Task[None] | None = None
        self._state, self._since_s, self._reason = CONNECTING, time.time(), ""
        self._logged = ("", "")
        """State and reason that were logged last."""
        self._words = TokenBuckets(WORDS_PER_S, WORDS, 1)
        self._codec, self._size = "", (0, 0)
        self._before, self._now = Counter[str](), Counter[str]()
        """Counts of the processes before this one, and of this one."""
        self._asked = self._answered = self._failed = 0
        self._dropped = Counter[str]()
        self._latencies_ms = deque[float](maxlen=LATENCIES)
        self._marks = deque[tuple[float, int, int, int]](maxlen=RATES_S + 1)
        self._form: tuple[ModelManifest, FrameForm] | None = None
        self._order, self._ordered = 0, 0
        """Number of the last order, and of the frame that is waited for (0: none)."""
        self._picture = NO_PICTURE
        """Number, time and labels of the picture that is waited for."""
        self._keeping: asyncio.Task[bool] | None = None
        """Task that writes the picture before."""

    @property
    def is_streaming(self) -> bool:
        """Return True while frames arrive."""
        return self._state in STREAMS

    @property
    def is_current(self) -> bool:
        """Return False if the password in the file is another one than that of the process."""
        try:
            return not self._url or self._url == process_setup(self.settings, self._limits)["url"]
        except (OSError, ConfigurationError):  # what the process has may be right
            return True

    def start(self, delay_s: float = 0.0, after: Collection[asyncio.Task[None]] = ()) -> None:
        """Start the process after a delay and the end of tasks, such as of another process with the same camera."""
        self._tell("changed", self.settings.name, streaming=False)
        self._task = asyncio.create_task(self._run(delay_s, after), name=f"camera {self.settings.name}")

    async def stop(self) -> None:
        """End the process."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
        if self.is_streaming:
            self._tell("changed", self.settings.name, streaming=False)

    def counts(self) -> dict[str, int]:
        """Return the counts of frames by what became of them."""
        found = {name: self._before[name] + self._now[name] for name in COUNTED}
        return {**found, "asked": self._asked, "answered": self._answered, "failed": self._failed}

    def status(self) -> dict[str, Any]:
        """Return the camera's state, rates and counts as a document."""
        latencies = sorted(self._latencies_ms)
        first, last = (self._marks[0], self._marks[-1]) if self._marks else ((0.0, 0, 0, 0),) * 2
        seconds = last[0] - first[0]
        rates = [
            round((end - begin) / seconds, 2) if seconds else 0.0
            for begin, end in zip(first[1:], last[1:], strict=True)
        ]
        if not self.is_streaming:
            rates = [0.0, *rates[1:]]
        return {
            "name": self.settings.name,
            "url": self.settings.shown_url,
            "model": self.settings.model,
            "state": self._state,
            "since": round(self._since_s, 3),
            "reason": self._reason,
            "codec": self._codec,
            "width": self._size[0],
            "height": self._size[1],
            **dict(zip(("source_per_s", "asked_per_s", "answered_per_s"), rates, strict=True)),
            "counts": self.counts(),
            "dropped": dict(self._dropped),
            "latency_ms": {name: _percentile(latencies, share) for name, share in (("p50", 0.5), ("p99", 0.99))},
            "rss_bytes": self._process.resident_bytes() if self._process else 0,
            "restarts": self.restarts,
            "picture_problem": self._snapshots.problems.get(self.settings.name, ""),
        }

    def want(self) -> None:
        """Order a frame, if frames arrive, the model is here, and no frame is under way."""
        if self._process is None or not self.is_streaming or self._ordered or self._asking is not None:
            return
        try:
            form = self._form_now()
        except (RequestError, ConfigurationError) as error:
            self._reason = str(error)
            if self._state == STREAMING:
                self._enter("model_away")
            return
        if self._state == NO_MODEL:
            self._reason = ""
            self._enter("model_back")
        self._ordered = self._order = self._order + 1
        self._process.send({"frame": self._ordered, "form": asdict(form)})

    # ---- the process -------------------------------------------------------------------------------------------------
    async def _run(self, delay_s: float, after: Collection[asyncio.Task[None]]) -> None:
        """Start the process again and again, with back-off that never ends."""
        failures = 0
        if after:
            await asyncio.wait(after)
        await asyncio.sleep(delay_s)
        while True:
            begin_s = time.monotonic()
            try:
                reason = await self._live()
            except (OSError, ConfigurationError) as error:
                reason = f"its process cannot be started: {error}"
            except Exception as error:  # a defect of ours must not end the camera
                log.exception("camera %s", self.settings.name)
                reason = f"{type(error).__name__}: {error}"
            failures = 1 if time.monotonic() - begin_s > self._limits.stable_s else failures + 1
            if self._state not in {LOST, STALLED} or not self._reason:  # else it has reported why
                self._reason = reason
                self._enter("lost")
            chance = 0.5 + draw_chance() / 2
            await asyncio.sleep(pause_s(failures, self._limits.pause_s, self._limits.pause_limit_s, chance))
            self.restarts += 1
            self._enter("connecting")

    async def _live(self) -> str:
        """Serve one process. Return why it ended."""
        setup = process_setup(self.settings, self._limits)
        self._process, self._url = CameraProcess(setup), setup["url"]
        process = self._process
        try:
            return await self._serve(process)
        finally:
            if self._asking is not None:
                self._asking.cancel()
            self._process, self._asking, self._ordered, self._picture = None, None, 0, NO_PICTURE
            self._before.update(self._now)
            self._now.clear()
            self._marks.clear()
            if await process.end(self._limits.end_s) is None:
                log.error("the process %s of camera %s cannot be killed", process.pid, self.settings.name)

    async def _serve(self, process: CameraProcess) -> str:
        budgets = self._budgets()
        while True:
            try:
                async with timeout(self._limits.silent_s):
                    message, descriptor = await process.receive()
                if not message:
                    code = await process.ended(1.0)
                    return "its process ended" + ("" if code is None else f" with exit code {code}")
                try:
                    self._take(read_report(message), descriptor, *budgets)
                finally:
                    if descriptor >= 0:
                        os.close(descriptor)
            except TimeoutError:
                return f"its process hangs: it reported nothing for {self._limits.silent_s:g} s"
            except CameraProtocolError as error:
                return f"its process sent a wrong message: {error}"

    def _budgets(self) -> tuple[TokenBuckets, TokenBuckets]:
        """Return the budgets of messages that no order asked for, and of answers.

        Each frame may have a picture, and a process that was held up reads the frames of a file in one go.
        """
        unasked, per_s = self._limits.unasked, self.settings.per_s
        answers = TokenBuckets(2 * per_s + 1, per_s * self._limits.silent_s + 10, 1)
        return TokenBuckets(unasked, 3 * unasked, 1), answers

    def _take(self, report: CameraReport, descriptor: int, unasked: TokenBuckets, asked: TokenBuckets) -> None:
        """Take a message; one that answers an order counts as `asked`. Raises CameraProtocolError."""
        for name in COUNTED:
            self._now[name] = max(self._now[name], getattr(report, name))
        is_answer = report.id and report.id in {self._ordered, self._picture[0]}
        if (asked if is_answer else unasked).take("", time.monotonic_ns()):
            raise CameraProtocolError("too many messages")
        if report.kind in {"frame", "picture"}:
            if report.id != (self._ordered if report.kind == "frame" else self._picture[0]) or not report.id:
                raise CameraProtocolError(f"a {report.kind} that no order asked for")
            (self._take_frame if report.kind == "frame" else self._take_picture)(report, descriptor)
        elif descriptor >= 0:
            raise CameraProtocolError(f"memory with the message {report.kind}")
        elif report.kind == "failed":
            self._take_failure(report)
        elif report.kind == "alive":
            counts = self.counts()
            self._marks.append((time.monotonic(), counts["read"], self._asked, self._answered))
            self.want()
        else:
            self._take_event(report)

    def _take_event(self, report: CameraReport) -> None:
        if report.kind == "opened":
            self._codec, self._size = report.codec, (report.width, report.height)
        elif report.kind != "connecting":
            self._reason = without_secrets(plain_reason(report.reason)) or report.kind
        self._enter(report.kind)
        self.want()

    def _take_failure(self, report: CameraReport) -> None:
        """Count a frame that could not be sent."""
        self._reason = without_secrets(plain_reason(report.reason))
        if report.id == self._ordered:
            self._ordered = 0
            self._drop("INVALID")
            self.want()
        elif report.id == self._picture[0]:
            self._picture = NO_PICTURE

    def _enter(self, event: str) -> None:
        """Change the state. Raises CameraProtocolError."""
        before, self._state = self._state, next_state(self._state, event)
        if self._state == before:
            return
        self._since_s = time.time()
        if (before in STREAMS) != self.is_streaming:
            self._tell("changed", self.settings.name, streaming=self.is_streaming)
        name, problem = self.settings.name, (self._state, self._reason)
        if self._state == STREAMING:
            self._reason = ""
        if self._state == CONNECTING or problem == self._logged or self._words.take("", time.monotonic_ns()):
            return
        self._logged = problem
        if self._state == STREAMING:
            log.info("camera %s streams: %s, %s × %s", name, self._codec, *self._size)
        else:
            log.warning("camera %s: %s: %s", name, self._state.replace("_", " "), self._reason)

    # ---- frames ------------------------------------------------------------------------------------------------------
    def _form_now(self) -> FrameForm:
        """Return the form of frames of the version that answers now. Raises RequestError, ConfigurationError."""
        model, version = self.settings.model, self.settings.version
        manifest = self._engine.describe(model, version)
        if self._form is None or self._form[0] is not manifest:
            described = (manifest, self._engine.placement(model, version), [manifest.version])
            form = choose_form(model, model_metadata(*described)["inputs"], model_config(*described))
            self._form = (manifest, form)
        return self._form[1]

    def _take_frame(self, report: CameraReport, descriptor: int) -> None:
        """Ask the model for a frame. Raises CameraProtocolError."""
        self._ordered = 0
        if self._form is None or not report.width or not report.height:
            raise CameraProtocolError("a frame without a size")
        manifest, form = self._form
        try:
            tensor = _tensor(form, report, descriptor, self._feed)
        except MemoryError as error:
            self._reason = str(error)
            self._drop("OVERLOADED")
            return
        self._asked += 1
        now_ns = time.monotonic_ns()
        age_ns = min(max(0, now_ns - report.at_ns), AGE_LIMIT_NS)
        request = InferRequest(
            self.settings.model,
            {form.input: tensor},
            self.settings.version,
            deadline_ns=now_ns + int(self._limits.request_s * SECOND_NS),
            caller=f"camera:{self.settings.name}",
            stream=self.settings.name,
            arrived_ns=now_ns - age_ns,
        )
        asking = self._ask(request, manifest, tensor, (report.width, report.height), time.time_ns() - age_ns)
        self._asking = asyncio.create_task(asking, name=f"frame of {self.settings.name}")

    async def _ask(
        self, request: InferRequest, manifest: ModelManifest, tensor: Tensor, size: tuple[int, int], wall_ns: int
    ) -> None:
        try:
            response = await self._engine.infer(request)
            self._answered += 1
            self._reason = ""
            self._latencies_ms.append((time.monotonic_ns() - request.arrived_ns) / 1e6)
            if response.version != manifest.version:
                with suppress(RequestError):  # it has been withdrawn since
                    manifest = self._engine.describe(response.model, response.version)
            answer = CameraAnswer(self.settings.name, wall_ns, manifest, tensor, response, size)
            self._tell("answered", answer)
            self._order_picture(answer)
        except RequestError as error:
            self._reason = error.message
            self._drop(error.fault.value)
        except Exception as error:  # a defect must not end the camera
            log.exception("camera %s: frame", self.settings.name)
            self._reason = f"{type(error).__name__}: {error}"
            self._drop("INTERNAL")
        self._asking = None
        self.want()

    def _drop(self, reason: str) -> None:
        self._failed += 1
        self._dropped[reason] += 1

    def _tell(self, method: str, *values: Any, **named: Any) -> None:
        """Call a method of every listener. One that raises against its contract affects nothing else."""
        for listener in self._listeners:
            told: Callable[..., None] = getattr(listener, method)
            try:
                told(*values, **named)
            except Exception:  # a defect of a listener must not end the camera
                log.exception("camera %s: %s of %s", self.settings.name, method, type(listener).__name__)

    # ---- pictures ----------------------------------------------------------------------------------------------------
    def _order_picture(self, answer: CameraAnswer) -> None:
        """Order a picture of the frame that was answered, if the result has what it is for."""
        if self._process is None or self._picture[0] or self._keeping is not None:
            return
        labels, drawn = self._snapshots.wanted(answer)
        if labels:
            self._order += 1
            self._picture = (self._order, answer.wall_ns, labels)
            order = {"picture": self._order, "entries": drawn}
            while len(encode_order(order)) > ORDER_BYTES:  # a longer one would end the process
                del drawn[len(drawn) // 2 :]
            self._process.send(order)

    def _take_picture(self, report: CameraReport, descriptor: int) -> None:
        """Pass a picture on. Raises CameraProtocolError."""
        (_, wall_ns, labels), self._picture = self._picture, NO_PICTURE
        if report.byte_size > self._limits.picture_bytes:
            raise CameraProtocolError(f"a picture of {report.byte_size} bytes")
        content = bytes(mapped(descriptor, report.byte_size))
        if content.startswith(JPEG_START):
            self._tell("pictured", self.settings.name, wall_ns, content)
            keep = asyncio.to_thread(self._snapshots.keep, self.settings.name, wall_ns, labels, content)
            self._keeping = asyncio.create_task(keep, name=f"picture of {self.settings.name}")
            self._keeping.add_done_callback(self._kept)

    def _kept(self, _keeping: asyncio.Task[bool]) -> None:
        self._keeping = None


def _tensor(form: FrameForm, report: CameraReport, descriptor: int, settings: FeedSettings) -> Tensor:
    """Return the tensor of a frame. Raises CameraProtocolError, and MemoryError if it cannot be mapped."""
    shape = form.shape(report.width, report.height)
    if report.byte_size > settings.frame_bytes or not report.byte_size:
        raise CameraProtocolError(f"a frame of {report.byte_size} bytes")
    content = mapped(descriptor, report.byte_size)
    if not form.layout:
        element: Array = np.empty(1, object)
        element[0] = bytes(content)
        return Tensor(Datatype.BYTES, element)
    if int(np.prod(shape)) != report.byte_size:
        raise CameraProtocolError("a frame of another size than its shape")
    return Tensor(DATATYPES[form.datatype], np.frombuffer(content, np.uint8).reshape(shape))


def process_setup(settings: CameraSettings, limits: ChildLimits) -> dict[str, Any]:
    """Return the settings of a process. Raises OSError and ConfigurationError for the file of the password."""
    url = settings.url
    if settings.credential:
        path = secret_path(settings.credential, settings.table, "credential")
        words = read_secret(path, name=settings.credential).decode("utf-8", "replace").splitlines()
        user, colon, password = (words[0] if words else "").strip().partition(":")
        if not user or not colon:
            raise ConfigurationError(f"{settings.credential}: its first line must be USER:PASSWORD")
        parts = urlsplit(url)
        netloc = f"{quote(user, safe='')}:{quote(password, safe='')}@{parts.netloc}"
        url = urlunsplit(parts._replace(netloc=netloc))
    return {
        "url": url,
        "masks": list(map(list, settings.masks)),
        "per_s": settings.per_s,
        "limits": asdict(limits),
        "ca": settings.ca and os.path.abspath(settings.ca),  # noqa: PTH100  the process has another folder
    }


def _percentile(values: Sequence[float], share: float) -> float | None:
    """Return a percentile of sorted values; None without values."""
    return round(values[min(len(values) - 1, int(share * len(values)))], 3) if values else None
