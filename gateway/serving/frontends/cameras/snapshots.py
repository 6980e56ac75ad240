"""Snapshots: which answers make a picture of their frame, and the folder that holds the pictures.

A picture is a file of a camera's folder. Its name holds time and labels, so that a folder that is copied, or thinned
out by hand, stays complete: `20311130T174812345Z_person+car.jpg`. Nothing else is kept about it.
"""

from __future__ import annotations

import json
import logging
import os
import re
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timezone
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from gateway.common.domain.errors import Fault, RequestError
from gateway.common.domain.tensor import Datatype
from gateway.common.files import durable
from gateway.serving.domain.cameras import CameraAnswer, KeptSnapshot
from gateway.serving.frontends.cameras.settings import CameraSettings, SnapshotSettings

NAME_LIMIT = 200
"""Longest name of a file; labels that do not fit are left out of it. File systems take 255 bytes."""
FILES_LIMIT = 10_000
"""Most pictures of a camera: the folder is read for each new one."""
RESERVE_BYTES = 64 * 1_048_576
"""Free space of the disk that pictures leave to the rest of the device: verdicts and journals are on it, too."""
DISK_SHARE = 0.25
"""Share of the disk that the pictures of all cameras may take."""
LOOK_S = 3_600.0
"""Time for which a picture is too old before it is removed: a clock that leaps, and is set back, loses nothing."""
CLOCK_SET = "2020"
"""Begin of the names of pictures from a clock that was set. The age of others is unknown."""
DOCUMENT_BYTES = 131_072
"""Largest result that is read: it is read on the event loop. A thread would not help: json holds the interpreter."""
PARTS_LIMIT = 2_000
"""Most objects and lists of a result that are looked at: about 1,000 objects with a box."""
DRAWN_LIMIT, LABEL_LIMIT, CORNERS_LIMIT = 100, 60, 16
"""Most objects that are drawn into a picture, most characters of a label, and most corners of an object."""
DEPTH_LIMIT = 8
"""Depth to which a result is searched for labels: an output, its list and an object in it are three."""
PLACE_LIMIT = 32_768
"""Most pixels from the upper left corner at which something is drawn; larger numbers are not drawn at all."""
ANOMALY = "anomalous"
"""Label of a result that says so without one."""
_FILE = re.compile(r"(\d{8}T\d{9})Z_([\w.~+-]*)\.jpg", re.ASCII)

_log = logging.getLogger(__name__)


def document_of(answer: CameraAnswer) -> dict[str, Any]:
    """Return the result of a task, or those of a pipeline by output; {} if there are tensors only.

    Results beyond `DOCUMENT_BYTES` are left out.
    """
    found, left = dict[str, Any](), DOCUMENT_BYTES
    for name, text in _texts(answer):
        if len(text) <= left:
            left -= len(text)
            with suppress(ValueError, RecursionError):  # a text of a model
                found[name] = json.loads(text)
    only = next(iter(found.values()), None)
    return only if answer.manifest.task and isinstance(only, dict) else found


def _texts(answer: CameraAnswer) -> Iterator[tuple[str, bytes]]:
    """Yield the outputs that may be JSON objects or lists; others, such as images, have no labels."""
    outputs = answer.response.outputs
    for name in answer.manifest.answered or outputs:
        tensor = outputs.get(name)
        if tensor is not None and tensor.datatype is Datatype.BYTES and tensor.array.size:
            text = tensor.array.ravel()[0]
            if text[:64].lstrip()[:1] in {b"{", b"["}:
                yield name, text


def drawn_entries(part: Any, settings: SnapshotSettings) -> list[dict[str, Any]]:
    """Return what is drawn into the picture of a result: objects with a place, of a score that makes a picture."""
    if not settings.boxes:
        return []
    found = (_drawn(each) for each in _parts(part) if _score(each) >= settings.min_score)
    return list(islice(filter(None, found), DRAWN_LIMIT))


def _drawn(part: Mapping[str, Any]) -> dict[str, Any]:
    """Return the members of an object that are drawn, each of a bounded size; {} without a place."""
    corners, box, label = part.get("corners"), part.get("box"), part.get("label")
    if (
        isinstance(corners, list)
        and 0 < len(corners) <= CORNERS_LIMIT
        and all(_are_numbers(each, 2) for each in corners)
    ):
        place: dict[str, Any] = {"corners": corners}
    elif not corners and _are_numbers(box, 4):
        place = {"box": box}
    else:
        return {}
    text = label[:LABEL_LIMIT].encode(errors="replace").decode() if isinstance(label, str) else ""
    numbers = {key: part[key] for key in ("class", "score") if _are_numbers([part.get(key)], 1)}
    return {"label": text, **numbers, **place}


def event_labels(document: Mapping[str, Any], settings: SnapshotSettings) -> tuple[str, ...]:
    """Return the labels of a result that make a picture, best first, each once; () if there are none."""
    found = dict[str, float]()
    for each in _parts(document):
        is_anomaly = "label" not in each and each.get(ANOMALY) is True
        label, score = (ANOMALY, 1.0) if is_anomaly else (each.get("label"), _score(each))
        if isinstance(label, str) and score >= settings.min_score and label in (settings.labels or (label,)):
            found[label] = max(score, found.get(label, 0.0))
    return tuple(sorted(found, key=lambda label: -found[label]))


def _score(part: Mapping[str, Any]) -> float:
    """Return the score or share; 1.0 where there is none, as after a rule or a threshold of the model."""
    score = part.get("score", part.get("share", 1.0))
    return score if isinstance(score, float | int) else 0.0


def _are_numbers(values: Any, count: int) -> bool:
    """Return True for a list of so many numbers that can be drawn."""
    return (
        isinstance(values, list)
        and len(values) == count
        and all(isinstance(each, float | int) and abs(each) <= PLACE_LIMIT for each in values)
    )


def _parts(part: Any, depth: int = DEPTH_LIMIT, left: Iterator[int] | None = None) -> Iterator[dict[str, Any]]:
    """Yield a result and the objects in it, down to a depth, and the first ones of many."""
    left = iter(range(PARTS_LIMIT)) if left is None else left
    if isinstance(part, dict):
        yield part
    for inner in part.values() if isinstance(part, dict) else part:
        if depth and isinstance(inner, list | dict):
            if next(left, None) is None:
                return
            yield from _parts(inner, depth - 1, left)


class Snapshots:
    """Pictures of all cameras, in folders of the cameras' names. `folder` None: the state is not on a disk.

    `statuses` returns the documents of cameras (`CameraViews`). Methods with a verb of the disk (`keep`, `tidy`,
    `listed`, `read`) block: call them on a thread. Each camera has one writer.
    """

    def __init__(self, folder: Path | None, statuses: Callable[[], list[dict[str, Any]]] = list) -> None:
        self._folder, self.statuses = folder, statuses
        self._cameras: dict[str, SnapshotSettings | None] = {}
        self._next_s: dict[str, float] = {}
        self._large: set[str] = set()
        self._looks = deque[tuple[float, float]](maxlen=2)
        """Monotonic and wall time of the newest two looks for old pictures, an hour or more apart."""
        self._sizes: dict[str, int] = {}
        """Bytes of pictures by camera, as they were found last."""
        self.problems: dict[str, str] = {}
        """Why the last picture of a camera was not kept."""

    @property
    def has_any(self) -> bool:
        """Return True if there are pictures, perhaps of cameras that are gone."""
        return self._folder is not None and os.path.isdir(self._folder)  # noqa: PTH112  False if it cannot be read

    def follow(self, cameras: Iterable[CameraSettings]) -> None:
        """Take the settings of cameras."""
        self._cameras = {each.name: each.snapshot for each in cameras}
        self._large.clear()

    def wanted(self, answer: CameraAnswer) -> tuple[tuple[str, ...], list[dict[str, Any]]]:
        """Return labels, and what is drawn, if this answer makes a picture now, else ((), []). It counts as one."""
        settings, now_s = self._cameras.get(answer.camera), time.monotonic()
        if settings is None or now_s < self._next_s.get(answer.camera, 0.0):
            return (), []
        if (size := sum(len(text) for _, text in _texts(answer))) > DOCUMENT_BYTES and answer.camera not in self._large:
            self._large.add(answer.camera)  # said once
            problem = f"results of camera {answer.camera} have {size} bytes, more than {DOCUMENT_BYTES}"
            self._note(answer.camera, f"{problem}: they make no pictures; let the model answer with fewer objects")
        document = document_of(answer)
        if not (labels := event_labels(document, settings)):
            return (), []
        self._next_s[answer.camera] = now_s + settings.every_s
        return labels, drawn_entries(document, settings)

    def keep(self, camera: str, wall_ns: int, labels: Sequence[str], jpeg: bytes) -> bool:
        """Write a picture, and remove the oldest ones beyond the bounds. Return False, and log why, if it fails."""
        problem = ""
        try:
            self._write(camera, _name(wall_ns, labels), jpeg)
        except FileExistsError as error:
            problem = f"{error.filename} is a file, where a folder of pictures should be; move it away"
        except OSError as error:
            problem = error.strerror or str(error)
        except Exception as error:  # noqa: BLE001  a defect must be seen where pictures are missing
            problem = f"{type(error).__name__}: {error}"
        self._note(camera, problem and f"the picture of camera {camera} is not kept: {problem}")
        return not problem

    def _note(self, camera: str, problem: str) -> None:
        """Note why a camera's picture is not kept, or "", and log a change."""
        before = self.problems.pop(camera, "")
        if problem:
            self.problems[camera] = problem
        if problem != before:
            _log.log(logging.WARNING if problem else logging.INFO, problem or f"pictures of camera {camera} are kept")

    def tidy(self, *, first: bool) -> None:
        """Remove pictures beyond the bounds, also of cameras that are gone. `first`: and what a killed writer left."""
        if self._folder is None or not self.has_any:
            return
        cameras = self._cameras
        try:
            folders = [*self._folder.iterdir()]
        except OSError as error:
            _log.warning("old pictures are left, for now: %s", error)
            return
        for folder in folders:
            settings = cameras.get(folder.name)
            try:
                if first:
                    durable.sweep(folder)
                if not self._removed(folder, settings or SnapshotSettings(), 0) and settings is None:
                    self._sizes.pop(folder.name, None)
                    folder.rmdir()
            except OSError as error:  # a file of another owner, or a folder that holds other files
                _log.info("%s is left: %s", folder, error)

    def listed(self, camera: str) -> list[KeptSnapshot]:
        """Return the pictures of a camera, the newest first. Raises RequestError for a folder that cannot be read."""
        try:
            files = _files(self._folder / camera)[::-1] if self._folder else []
            return [_kept(file, size) for file, size in files]
        except OSError as error:
            raise RequestError(Fault.UNAVAILABLE, f"the pictures cannot be read: {error.strerror}") from None

    def read(self, camera: str, file: str) -> bytes:
        """Return a picture. Raises RequestError NOT_FOUND."""
        if self._folder is not None and _FILE.fullmatch(file):
            try:
                return (self._folder / camera / file).read_bytes()
            except OSError:
                pass
        raise RequestError(Fault.NOT_FOUND, f"camera '{camera}' has no picture '{file:.200}'; list them: …/snapshots")

    def _write(self, camera: str, name: str, jpeg: bytes) -> None:
        settings = self._cameras.get(camera) or SnapshotSettings()
        if self._folder is None:
            raise OSError(0, "the state is not kept on a disk; name a folder that can be written (EG-210)")
        folder = self._folder / camera
        durable.make_folder(folder)
        if len(jpeg) > settings.max_bytes:
            raise OSError(0, f"it has {len(jpeg)} bytes; raise max_bytes of its snapshots, or let the camera send less")
        self._removed(folder, settings, len(jpeg))
        self._make_room(folder, len(jpeg))
        durable.write_file(folder / name, jpeg)
        self._sizes[camera] = self._sizes.get(camera, 0) + len(jpeg)

    def _removed(self, folder: Path, settings: SnapshotSettings, more_bytes: int) -> list[str]:
        """Remove pictures until one of `more_bytes` fits; return the names of those that stay. Raises OSError."""
        kept, stay, begin = _files(folder), list[str](), self._begin(settings.max_age_s)
        total, count = sum(size for _, size in kept), len(kept)
        for file, size in kept:
            if total + more_bytes > settings.max_bytes or count >= FILES_LIMIT or CLOCK_SET <= file < begin:
                (folder / file).unlink(missing_ok=True)
                total, count = total - size, count - 1
            else:
                stay.append(file)
        self._sizes[folder.name] = total
        return stay

    def _begin(self, max_age_s: float) -> str:
        """Return the least name of pictures that are not too old: they were no younger at two looks, an hour apart."""
        now_s, wall_s = time.monotonic(), time.time()
        if not self._looks or now_s >= self._looks[-1][0] + LOOK_S:
            self._looks.append((now_s, wall_s))
        begin_s = min(wall_s, *(at_s + now_s - look_s for look_s, at_s in self._looks)) - max_age_s
        return _time(begin_s) if begin_s > 0.0 and now_s >= self._looks[0][0] + LOOK_S else ""

    def _make_room(self, folder: Path, more_bytes: int) -> None:
        """Remove the oldest pictures until the disk takes one more: of this camera, else of those with most bytes.

        Raises OSError, and removes nothing, if that is not enough.
        """
        for is_first in (True, False):
            disk, sizes = os.statvfs(folder), dict(self._sizes)
            short = RESERVE_BYTES - disk.f_bavail * disk.f_frsize
            lack = more_bytes + max(short, sum(sizes.values()) - int(DISK_SHARE * disk.f_blocks * disk.f_frsize))
            if lack <= 0:
                return
            if not is_first or sum(sizes.values()) < lack:
                break
            largest = sorted(sizes, key=lambda name: -sizes[name])
            for name in (folder.name,) if sizes.get(folder.name, 0) >= lack else largest:
                for file, size in _files(folder.with_name(name)):
                    if lack > 0:
                        folder.with_name(name).joinpath(file).unlink(missing_ok=True)
                        self._sizes[name] = self._sizes.get(name, 0) - size
                        lack -= size
        free = f"fewer than {RESERVE_BYTES >> 20} MiB of the disk are free"
        raise OSError(0, f"{free}; make room, or lower max_bytes of the cameras' snapshots (EG-209)")


def _files(folder: Path) -> list[tuple[str, int]]:
    """Return names and bytes of the pictures in a folder, the oldest first; none if there is no folder. Raises OSError.

    Names begin with the time, which is not read here: there may be 10,000, and each new picture needs their order.
    """
    if not folder.is_dir():
        return []
    found = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if _FILE.fullmatch(entry.name):
                with suppress(FileNotFoundError):  # it was removed meanwhile
                    found.append((entry.name, entry.stat().st_size))
    return sorted(found)


def _kept(file: str, size_bytes: int) -> KeptSnapshot:
    """Return what the name of a picture says."""
    at, _, words = file.removesuffix(".jpg").partition("Z_")
    labels = tuple(unquote(label.replace("~", "%")) for label in words.split("+") if label)
    return KeptSnapshot(file, _seconds(at), labels, size_bytes)


def _time(wall_s: float) -> str:
    """Return a time as names begin with it."""
    at = datetime.fromtimestamp(wall_s, timezone.utc)
    return f"{at:%Y%m%dT%H%M%S}{at.microsecond // 1000:03}Z"


def _name(wall_ns: int, labels: Sequence[str]) -> str:
    """Return the name of a file, without the labels that do not fit."""
    name = f"{_time(wall_ns / 1e9)}_"
    for number, label in enumerate(labels):
        part = ("+" if number else "") + quote(label, safe="", errors="replace").replace("~", "%7E").replace("%", "~")
        if len(name) + len(part) > NAME_LIMIT:
            break
        name += part
    return f"{name}.jpg"


def _seconds(text: str) -> float:
    try:
        return datetime.strptime(f"{text}000", "%Y%m%dT%H%M%S%f").replace(tzinfo=timezone.utc).timestamp()
    except ValueError:  # digits that are no time
        return 0.0
