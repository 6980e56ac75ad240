"""Which answers make a picture, and the folder of pictures: names, bounds, restarts, kills, a full disk."""

import asyncio
import json
import logging
import os
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.common.domain.errors import Fault, RequestError
from gateway.common.domain.tensor import Datatype, Tensor
from gateway.common.timeouts import timeout
from gateway.serving.domain.cameras import CameraAnswer
from gateway.serving.domain.infer import InferResponse
from gateway.serving.frontends.cameras import cameras as module
from gateway.serving.frontends.cameras import snapshots
from gateway.serving.frontends.cameras.feed import CameraFeed
from gateway.serving.frontends.cameras.protocol import ORDER_BYTES, encode_order
from gateway.serving.frontends.cameras.settings import CameraSettings, ChildLimits, SnapshotSettings
from gateway.serving.frontends.cameras.snapshots import Snapshots, document_of, drawn_entries, event_labels
from tests.simulators.engine_rig import manifest

NOW_NS = 1_964_792_892_345_000_000
NAME = "20320405T154812345Z_person.jpg"
DOOR = CameraSettings("door", "rtsp://10.0.0.7/h264", "street", snapshot=SnapshotSettings(("person",), 0.5, 10.0))


def detections(*found):
    return {"detections": [{"label": label, "class": 0, "score": score, "box": [0, 0, 9, 9]} for label, score in found]}


def answer(camera="door", *, task="object-detection", **documents):
    outputs = {}
    for name, content in documents.items():
        array = np.empty(1, object)
        array[0] = content if isinstance(content, bytes) else json.dumps(content).encode()
        outputs[name] = Tensor(Datatype.BYTES, array)
    outputs["raw"] = Tensor(Datatype.FP32, np.zeros((1, 3), np.float32))
    response = InferResponse("street", "1", "onnx", outputs)
    made = manifest(task=task, answered=tuple(documents))
    return CameraAnswer(camera, NOW_NS, made, outputs["raw"], response, (64, 32))


def following(folder, *cameras):
    place = Snapshots(folder)
    place.follow(cameras)
    return place


@pytest.fixture
def place(tmp_path):
    return following(tmp_path / "snapshots", DOOR)


class Clock:
    """Clock of the tests. `ahead_s`: by which the wall time is wrong."""

    def __init__(self) -> None:
        self._passed_s, self._begin_s, self._monotonic_s = 0.0, time.time(), time.monotonic()
        self.ahead_s = 0.0

    def pass_s(self, seconds: float) -> None:
        self._passed_s += seconds

    def time(self) -> float:
        return self._begin_s + self._passed_s + self.ahead_s

    def monotonic(self) -> float:
        return self._monotonic_s + self._passed_s


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr(snapshots, "time", made)
    return made


# ---- decision --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("document", "labels", "found"),
    [
        (detections(("person", 0.5), ("car", 0.9)), ("person",), ("person",)),
        (detections(("person", 0.49)), ("person",), ()),
        (detections(("car", 0.9)), ("person",), ()),
        (detections(("car", 0.9), ("person", 0.6), ("car", 0.7)), (), ("car", "person")),
        ({"label": "fire", "score": 0.8, "classes": [{"label": "fire", "score": 0.8}]}, (), ("fire",)),
        ({"label": None, "score": None, "classes": []}, (), ()),
        ({"cars": [{"box": [0, 0, 1, 1], "label": "car", "score": 0.7}], "count": {"in": 3}}, ("car",), ("car",)),
        ({"plates": [{"label": "plate", "text": "B-1"}]}, (), ("plate",)),  # without a score: the pipeline chose it
        ({"score": 17.2, "anomalous": True}, (), ("anomalous",)),
        ({"score": 0.2, "anomalous": False}, (), ()),
        ({"classes": [{"label": "road", "share": 0.7}, {"label": "grass", "share": 0.1}]}, (), ("road",)),
        ({"detections": [{"label": "person", "score": "high"}]}, (), ()),
        ({}, (), ()),
    ],
)
def test_labels_and_scores_decide(document, labels, found):
    assert event_labels(document, SnapshotSettings(labels)) == found


def test_a_picture_is_wanted_once_in_a_time_and_of_cameras_with_snapshots_only(place, monkeypatch):
    now_s = [100.0]
    monkeypatch.setattr(snapshots.time, "monotonic", lambda: now_s[0])
    some = detections(("person", 0.9))
    assert place.wanted(answer(result=detections(("car", 0.9)))) == ((), [])
    assert place.wanted(answer(result=some)) == (("person",), some["detections"])
    assert place.wanted(answer(result=some)) == ((), [])
    now_s[0] += 10.0
    assert place.wanted(answer(result=some))[0] == ("person",)
    assert place.wanted(answer("yard", result=some)) == ((), [])


def test_documents_of_tasks_and_pipelines():
    assert document_of(answer(result={"a": 1})) == {"a": 1}
    several = answer(task="", cars=[{"label": "car"}], text=b"no JSON", count={"in": 1})
    assert document_of(several) == {"cars": [{"label": "car"}], "count": {"in": 1}}
    assert document_of(answer(task="")) == {}


def test_what_is_drawn_is_small_and_can_be_switched_off():
    mask = {"size": [9, 9], "counts": [81]}
    boxes = [
        {"label": "a", "class": 1, "score": 0.9, "box": [0, 0, 1, 1], "mask": mask},
        {"label": "b", "score": 0.1, "box": [1] * 4},
    ]
    document = {"found": boxes, "kind": {"label": "c", "score": 1.0}}
    assert drawn_entries(document, SnapshotSettings()) == [
        {"label": "a", "class": 1, "score": 0.9, "box": [0, 0, 1, 1]}
    ]
    assert drawn_entries(document, SnapshotSettings(boxes=False)) == []
    many = {"detections": [{"label": "a", "score": 1.0, "box": [0, 0, 1, 1]}] * 1000}
    assert len(drawn_entries(many, SnapshotSettings())) == 100


@pytest.mark.parametrize(
    ("wrong", "drawn"),
    [
        ({"class": "x" * 200_000}, {"label": "a", "score": 0.9, "box": [0, 0, 1, 1]}),
        ({"class": [0] * 60_000}, {"label": "a", "score": 0.9, "box": [0, 0, 1, 1]}),
        ({"class": 10**4000}, {"label": "a", "score": 0.9, "box": [0, 0, 1, 1]}),
        ({"score": float("inf")}, {"label": "a", "box": [0, 0, 1, 1]}),
        ({"label": ["x" * 200_000]}, {"label": "", "score": 0.9, "box": [0, 0, 1, 1]}),
        ({"label": "\ud800" + "x" * 99}, {"label": "?" + "x" * 59, "score": 0.9, "box": [0, 0, 1, 1]}),
        ({"corners": [[0, 0]] * 50_000}, None),
        (
            {"corners": [[0, 0], [1, 1], [0, 1]], "box": [0] * 60_000},
            {"label": "a", "score": 0.9, "corners": [[0, 0], [1, 1], [0, 1]]},
        ),
        ({"box": [0, 0]}, None),
    ],
)
def test_each_member_that_is_drawn_is_bounded(wrong, drawn):
    entry = {"label": "a", "score": 0.9, "box": [0, 0, 1, 1], **wrong}
    assert drawn_entries({"detections": [entry]}, SnapshotSettings()) == ([drawn] if drawn else [])


def test_the_order_of_a_hostile_result_fits(place):
    long = {"label": "\U0001f600" * 60, "score": 2 / 3, "class": 1e-300, "corners": [[-1e4 / 7, 1e4 / 7]] * 16}
    orders = []
    feed = CameraFeed(DOOR, None, [], ChildLimits(), place)
    feed._process = type("Process", (), {"send": lambda _self, order: orders.append(order)})()
    place.wanted = lambda _answer: (("person",), drawn_entries([long] * 200, SnapshotSettings()))
    feed._order_picture(answer())
    assert len(encode_order(orders[0])) <= ORDER_BYTES
    assert orders[0]["entries"]


def test_a_result_is_looked_at_up_to_a_number_of_parts():
    for document in ([[]] * 60_000, [[[[[[]]]]]] * 20_000, {"detections": [{"a": 1}] * 60_000}):
        looked = iter(range(snapshots.PARTS_LIMIT))
        assert len(list(snapshots._parts(document, left=looked))) <= snapshots.PARTS_LIMIT + 1
        assert next(looked, None) is None
    many = detections(*[("car", 0.9)] * 900, ("person", 0.9))
    assert event_labels(many, SnapshotSettings(("person",))) == ("person",)
    assert event_labels({"a": [[]] * 2_000, "b": {"label": "person"}}, SnapshotSettings(("person",))) == ()


def test_a_large_result_is_not_read_and_that_is_said_once(place, caplog):
    large = {"detections": [{"label": "person", "score": 0.9, "note": "x" * 140_000}]}
    for _ in range(3):
        assert place.wanted(answer(result=large)) == ((), [])
    assert "bytes" in place.problems["door"]
    assert len([line for line in caplog.messages if "make no pictures" in line]) == 1
    image = answer(task="", found=[{"label": "person"}], image=b"\xff\xd8" + bytes(200_000))
    assert place.wanted(image)[0] == ("person",)  # an image is no result


TEXTS = (b"[" * 100_000, b"\xff", b"1", b"[1, 2]", b"null", *(b'{"a": ' * n + b"1" + b"}" * n for n in (900, 5000)))


@pytest.mark.parametrize("text", TEXTS)
def test_texts_of_models_make_no_picture(place, text):
    assert place.wanted(answer(result=text)) == ((), [])
    assert place.wanted(answer(task="", result=text)) == ((), [])


# ---- folder ----------------------------------------------------------------------------------------------------------
def test_a_picture_is_kept_listed_and_read(place, tmp_path):
    assert place.listed("door") == []
    assert place.keep("door", NOW_NS, ("person",), b"jpeg")
    (kept,) = place.listed("door")
    assert (kept.file, kept.labels, kept.size_bytes) == (NAME, ("person",), 4)
    assert kept.wall_s == pytest.approx(NOW_NS / 1e9)
    assert place.read("door", NAME) == b"jpeg"
    assert (tmp_path / "snapshots" / "door" / NAME).stat().st_mode & 0o007 == 0  # pictures show people


@given(st.lists(st.text(min_size=1).filter(lambda text: text.isprintable()), max_size=5, unique=True))
def test_labels_survive_in_names_that_need_no_quoting_in_a_url(labels):
    name = snapshots._name(NOW_NS, labels)
    assert len(name) <= 255
    match = snapshots._FILE.fullmatch(name)
    found = [snapshots.unquote(part.replace("~", "%")) for part in match[2].split("+") if part]
    assert found == labels[: len(found)]
    assert len(found) == len(labels) or len("".join(labels).encode()) > 50


@pytest.mark.parametrize(
    "file", ["", "..", "../door/" + NAME, "/etc/passwd", NAME + "\0", "x" * 300, NAME[:-4] + ".png"]
)
def test_other_names_are_not_found(place, file):
    place.keep("door", NOW_NS, ("person",), b"jpeg")
    with pytest.raises(RequestError) as refused:
        place.read("door", file)
    assert refused.value.fault is Fault.NOT_FOUND


def test_bytes_bound_the_folder_also_after_a_restart_and_the_newest_stay(tmp_path):
    bounded = CameraSettings("door", "rtsp://c", "m", snapshot=SnapshotSettings(max_bytes=1_048_576))
    first = following(tmp_path, bounded)
    now_ns = time.time_ns()
    for number in range(4):
        assert first.keep("door", now_ns + number * 1_000_000_000, ("a",), bytes(300_000))
    again = following(tmp_path, bounded)
    assert len(again.listed("door")) == 3
    assert again.keep("door", now_ns + 9_000_000_000, ("b",), bytes(700_000))
    kept = again.listed("door")
    assert [each.labels for each in kept] == [("b",), ("a",)]
    assert all(new.wall_s > old.wall_s for new, old in pairwise(kept))
    assert not again.keep("door", now_ns, ("c",), bytes(2_000_000))
    assert "raise max_bytes" in again.problems["door"]
    assert again.listed("door") == kept


def test_age_bounds_the_folder_also_of_a_camera_that_is_gone_and_other_files_stay(place, tmp_path, clock):
    for camera in ("door", "gone"):
        place.keep(camera, time.time_ns() - int(8 * 86400e9), ("person",), b"old")
        place.keep(camera, time.time_ns(), ("person",), b"new")
    (tmp_path / "snapshots" / "door" / "note.txt").write_text("mine")
    (tmp_path / "snapshots" / "door" / ".tmp-killed").write_bytes(b"half")
    place.tidy(first=True)
    clock.pass_s(3_600.0)
    place.tidy(first=False)
    assert [len(place.listed(camera)) for camera in ("door", "gone")] == [1, 1]
    assert {each.name for each in (tmp_path / "snapshots" / "door").iterdir()} >= {"note.txt"}
    assert not (tmp_path / "snapshots" / "door" / ".tmp-killed").exists()
    for _ in range(2):
        clock.pass_s(8 * 86_400.0)
        place.tidy(first=False)
    assert sorted(each.name for each in (tmp_path / "snapshots").iterdir()) == ["door"]
    assert place.listed("door") == []


@pytest.mark.parametrize("at_s", [0.0, 60.0, 3_599.0, 3_600.0, 3_601.0, 7_199.0, 7_200.0])
def test_a_clock_that_leaps_and_is_set_back_loses_no_picture(place, clock, at_s):
    for number in range(3):
        place.keep("door", time.time_ns() + number * 1_000_000, ("person",), b"jpeg")
    for now_s in range(0, 5 * 3_600, 60):  # the clock is ten years ahead for less than an hour
        clock.ahead_s = 10 * 365 * 86_400.0 if at_s <= now_s < at_s + 3_500.0 else 0.0
        place.tidy(first=False)
        clock.pass_s(60.0)
    assert len(place.listed("door")) == 3


def test_pictures_of_a_clock_that_was_not_set_are_bounded_by_bytes_only(tmp_path, clock):
    bounded = CameraSettings("door", "rtsp://c", "m", snapshot=SnapshotSettings(max_bytes=1_048_576))
    place = following(tmp_path, bounded)
    for number in range(3):
        place.keep("door", 12_000_000_000 + number * 1_000_000_000, ("person",), bytes(300_000))
    for _ in range(5):
        clock.pass_s(3_600.0)
        place.tidy(first=False)
    assert [each.file[:4] for each in place.listed("door")] == ["1970"] * 3
    assert place.keep("door", time.time_ns(), ("person",), bytes(300_000))
    assert [each.file[:4] == "1970" for each in place.listed("door")] == [False, True, True]


def test_the_oldest_pictures_make_room_on_a_full_disk(place, monkeypatch):
    reserve_bytes = snapshots.RESERVE_BYTES

    def room(folder):
        used = sum(file.stat().st_size for file in folder.parent.rglob("*.jpg"))
        disk = os.statvfs("/")
        return os.statvfs_result((1, 1, 10**9, 0, reserve_bytes + 1_000_000 - used, *disk[5:]))

    monkeypatch.setattr(snapshots, "os", SimpleNamespace(**{**vars(os), "statvfs": room}))
    for number in range(20):  # "door" removes its own, and "gate", which has none yet, those of the largest
        camera = "yard" if number < 2 else "door" if number < 19 else "gate"
        assert place.keep(camera, NOW_NS + number * 1_000_000_000, (f"n{number}",), bytes(200_000)), place.problems
    found = [[each.labels[0] for each in place.listed(camera)] for camera in ("yard", "door", "gate")]
    assert found == [["n1", "n0"], ["n18", "n17"], ["n19"]]
    monkeypatch.setattr(snapshots, "RESERVE_BYTES", 10**12)  # others fill the disk: no removal would help
    assert not place.keep("door", NOW_NS, ("a",), bytes(200_000))
    assert "make room" in place.problems["door"]
    assert found == [[each.labels[0] for each in place.listed(camera)] for camera in ("yard", "door", "gate")]


def test_pictures_of_all_cameras_take_a_share_of_the_disk(place, monkeypatch):
    disk = os.statvfs("/")
    total = os.statvfs_result((1, 1, 4_000_000, 0, 10**12, *disk[5:]))
    monkeypatch.setattr(snapshots, "os", SimpleNamespace(**{**vars(os), "statvfs": lambda _folder: total}))
    cameras = [f"c{number}" for number in range(4)]
    for number in range(24):
        assert place.keep(cameras[number // 6], NOW_NS + number * 1_000_000_000, ("a",), bytes(100_000))
    kept = [len(place.listed(camera)) for camera in cameras]
    assert sum(kept) == 10
    assert min(kept) >= 1
    again = following(place._folder, DOOR)
    again.tidy(first=True)
    assert again.keep("door", NOW_NS, ("a",), bytes(100_000))
    assert sum(len(again.listed(camera)) for camera in (*cameras, "door")) == 10


def test_a_new_picture_reads_no_times_of_others(place, monkeypatch):
    place.keep("door", NOW_NS, ("person",), b"jpeg")
    with monkeypatch.context() as patched:
        patched.setattr(snapshots, "_seconds", None)
        assert place.keep("door", NOW_NS + 1_000_000_000, ("person",), b"jpeg")
        place.tidy(first=True)
    assert [each.wall_s for each in place.listed("door")] == pytest.approx([NOW_NS / 1e9 + 1, NOW_NS / 1e9])


def test_the_number_of_files_is_bounded(place, monkeypatch):
    monkeypatch.setattr(snapshots, "FILES_LIMIT", 3)
    for number in range(5):
        place.keep("door", time.time_ns() + number * 1_000_000, ("person",), b"x")
    assert len(place.listed("door")) == 3


def test_a_full_disk_is_said_once_and_recovers(place, monkeypatch, caplog):
    caplog.set_level(logging.INFO)
    disk = os.statvfs("/")

    def full(_folder):
        return os.statvfs_result((*disk[:4], 10, *disk[5:]))

    with monkeypatch.context() as patched:
        patched.setattr(snapshots.os, "statvfs", full)
        assert not place.keep("door", NOW_NS, ("person",), b"jpeg")
        assert not place.keep("door", NOW_NS, ("person",), b"jpeg")
    assert "make room" in place.problems["door"]
    assert len([line for line in caplog.messages if "is not kept" in line]) == 1
    assert place.keep("door", time.time_ns(), ("person",), b"jpeg")
    assert place.problems == {}
    assert "are kept" in caplog.messages[-1]


def test_no_space_left_in_the_middle_of_a_picture_leaves_nothing(place, tmp_path, monkeypatch):
    def fail(*_arguments):
        raise OSError(28, "No space left on device")

    place.keep("door", NOW_NS, ("car",), b"jpeg")
    place.tidy(first=True)
    before = place.listed("door")
    monkeypatch.setattr(snapshots.durable.os, "fsync", fail)
    assert not place.keep("door", NOW_NS, ("person",), b"jpeg")
    assert "No space left on device" in place.problems["door"]
    assert [each.name for each in (tmp_path / "snapshots" / "door").iterdir()] == [each.file for each in before]


def test_labels_of_any_text_are_kept(place):
    assert place.keep("door", NOW_NS, ("\ud800", "person"), b"jpeg")
    (kept,) = place.listed("door")
    assert kept.labels == ("?", "person")


def test_any_failure_is_a_problem_of_the_camera(place):
    assert not place.keep("door", 10**30, ("person",), b"jpeg")  # no time
    assert "is not kept" in place.problems["door"]


@pytest.mark.parametrize("name", ["snapshots", "snapshots/door"])
def test_a_file_in_place_of_a_folder_is_named(place, tmp_path, name):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("in the way")
    assert not place.keep("door", NOW_NS, ("person",), b"jpeg")
    assert f"{tmp_path / name} is a file" in place.problems["door"]
    assert "move it away" in place.problems["door"]
    place.tidy(first=True)
    (tmp_path / name).unlink()
    assert place.keep("door", NOW_NS, ("person",), b"jpeg")


def test_a_folder_that_cannot_be_read_for_a_while_is_tidied_later(place, monkeypatch, caplog):
    place.keep("gone", time.time_ns(), ("person",), b"jpeg")
    (place._folder / "gone" / ".tmp-killed").write_bytes(b"half")
    failed, read = [], Path.iterdir

    def fail_once(folder):
        if not failed:
            failed.append(folder)
            raise OSError(5, "Input/output error")
        return read(folder)

    monkeypatch.setattr(Path, "iterdir", fail_once)
    monkeypatch.setattr(module, "TIDY_S", 0.0)
    monkeypatch.setattr(place, "tidy", lambda first, tidy=place.tidy: tidy(first=True))

    async def tidied():
        cameras = module.Cameras(None, snapshots=place)
        async with timeout(30.0):
            while (place._folder / "gone" / ".tmp-killed").exists():
                await asyncio.sleep(0.01)
        await cameras.stop()

    asyncio.run(tidied())
    assert "Input/output error" in caplog.text


def test_without_a_disk_nothing_is_kept():
    nowhere = following(None, DOOR)
    assert not nowhere.keep("door", NOW_NS, ("person",), b"jpeg")
    assert "EG-210" in nowhere.problems["door"]
    assert nowhere.listed("door") == []
    nowhere.tidy(first=True)


WRITER = """
import sys, time
from pathlib import Path
from types import SimpleNamespace
from gateway.serving.frontends.cameras.snapshots import Snapshots
place = Snapshots(Path(sys.argv[1]))
for number in range(100_000):
    place.keep("door", time.time_ns(), ("person",), bytes([number % 256]) * 100_000)
    print(number, flush=True)
"""


def test_a_kill_leaves_whole_pictures_only(tmp_path):
    for _ in range(3):
        with subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE) as writer:
            for _ in range(20):
                writer.stdout.readline()
            writer.send_signal(signal.SIGKILL)
    place = Snapshots(tmp_path)
    kept = place.listed("door")
    assert len(kept) >= 40
    assert all(len(set(place.read("door", each.file))) == 1 and each.size_bytes == 100_000 for each in kept)
    place.tidy(first=True)
    assert {each.name for each in (tmp_path / "door").iterdir()} == {each.file for each in kept}
