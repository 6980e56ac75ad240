"""Files of releases over the API: in pieces, resumed, bounded, and visible only with their digest."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import httpx
import pytest

from fleet.client.client import Access, Client
from fleet.client.workspace import upload_file
from fleet.controller.access import Role
from fleet.controller.config import FleetConfig
from fleet.controller.control.folder_problems import folder_problems
from fleet.controller.control.maintenance import expire_uploads
from fleet.controller.control.settings import DraftSettings
from fleet.controller.problems import ProblemError
from fleet.disk import locked
from fleet.problem_types import FOLDER_NOT_WRITABLE
from fleet.publisher.draft_rules import new_targets
from fleet.publisher.repository import blob_file
from fleet.publisher.settings import FleetSettings
from fleet.publisher.workspace import Workspace
from gateway.common.domain.manifest import Artifact
from tests.simulators.constants import settings_with
from tests.simulators.controller import RunningController, controlling
from tests.simulators.fleet_repository import FleetRepository
from tests.simulators.operator import until
from tests.simulators.uploading import OWNER_ROLE, release, sent, upload

pytestmark = pytest.mark.timeout(120)
CONTENT = os.urandom(300_000)
DIGEST = hashlib.sha256(CONTENT).hexdigest()
PATH = f"/v1/blobs/{DIGEST}"
BOUNDS = settings_with(
    DraftSettings(),
    unpublished_limit_files=5,
    unpublished_limit_bytes=1_000_000,
    share_per_token=1.0,
    request_limit_bytes=400_000,
)
FILE_LIMIT_BYTES = 900_000


@pytest.fixture
def controller(tmp_path: Path) -> Iterator[RunningController]:
    """Yield a controller with narrow bounds. The publisher's settings are those of the repository."""
    publisher = FleetSettings(release_file_limit_bytes=FILE_LIMIT_BYTES)
    serve = settings_with(FleetConfig().serve, max_buffered_bytes_per_caller=100_000)
    config = replace(FleetConfig(), publisher=publisher, drafts=BOUNDS, serve=serve)
    with controlling(tmp_path, config, FleetRepository(tmp_path, settings=publisher)) as running:
        running.repository.add_release("meter-reader", "1")
        yield running


@pytest.fixture
def ci(controller: RunningController) -> Iterator[httpx.Client]:
    with controller.client(Role.PUBLISHER) as client:
        yield client


def moment_of(text: str) -> datetime:
    return datetime.fromisoformat(text)


def begun(client: httpx.Client, content: bytes = CONTENT, size_bytes: int | None = None) -> httpx.Response:
    digest = hashlib.sha256(content).hexdigest()
    return client.post(
        "/v1/blobs", json={"digest": digest, "size_bytes": len(content) if size_bytes is None else size_bytes}
    )


def appended(client: httpx.Client, content: bytes, offset: int = 0, path: str = PATH) -> httpx.Response:
    return client.patch(path, params={"offset": offset}, content=content)


def staged(controller: RunningController) -> list[str]:
    return [file.name for file in (controller.control.workspace.staged / "blobs").rglob("*") if file.is_file()]


def problem(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["type"].removeprefix("/problems/")


def test_a_file_comes_in_pieces_and_is_there_with_its_last_byte(controller, ci) -> None:
    assert ci.get(PATH).status_code == 404
    assert begun(ci).json()["received_bytes"] == 0
    for offset in range(0, len(CONTENT), 70_000):
        assert staged(controller) == []
        done = appended(ci, CONTENT[offset : offset + 70_000], offset).json()
        assert done["received_bytes"] == min(offset + 70_000, len(CONTENT))
    assert (done["complete"], staged(controller)) == (True, [DIGEST])
    assert moment_of(done["expires"]) - controller.clock() > timedelta(hours=BOUNDS.unfinished_kept_h - 1)
    assert (controller.control.workspace.staged / blob_file(DIGEST)).read_bytes() == CONTENT
    assert begun(ci).json() == (again := ci.get(PATH).json()) == done | {"expires": again["expires"]}
    assert problem(appended(ci, b"x", len(CONTENT))) == (409, "upload-offset")


def test_a_body_larger_than_what_a_caller_may_buffer_is_streamed(controller, ci) -> None:
    assert len(CONTENT) > controller.replica._origin.config.serve.max_buffered_bytes_per_caller
    begun(ci)
    assert appended(ci, CONTENT).json()["complete"]
    assert ci.put(f"/v1/drafts/{OWNER_ROLE}", content=CONTENT).status_code == 503, "other routes buffer"


def test_what_a_client_does_not_know_it_asks(controller, ci) -> None:
    begun(ci)
    appended(ci, CONTENT[:1000])
    assert problem(appended(ci, CONTENT[:1000])) == (409, "upload-offset")
    refused = appended(ci, CONTENT[2000:], 2000)
    assert problem(refused) == (409, "upload-offset")
    assert "1000 of 300000 bytes" in refused.json()["detail"]
    assert appended(ci, CONTENT[1000:], ci.get(PATH).json()["received_bytes"]).json()["complete"]


def test_other_bytes_than_announced_are_never_visible(controller, ci) -> None:
    begun(ci)
    assert problem(appended(ci, CONTENT[:-1] + b"x" + b"y")) == (409, "upload-offset"), "more than announced"
    assert problem(appended(ci, bytes(len(CONTENT)))) == (422, "upload-mismatch")
    assert (ci.get(PATH).status_code, staged(controller)) == (404, [])
    assert begun(ci).json()["received_bytes"] == 0
    assert problem(other_size := begun(ci, size_bytes=7)) == (422, "upload-mismatch")
    assert f"DELETE {PATH}" in other_size.json()["detail"]
    assert ci.delete(PATH).json()["size_bytes"] == len(CONTENT)
    assert begun(ci, size_bytes=7).json()["size_bytes"] == 7


def test_an_empty_file_is_complete_at_once(controller, ci) -> None:
    assert begun(ci, b"").json()["complete"]


def test_bounds(controller, ci) -> None:
    assert begun(ci, size_bytes=FILE_LIMIT_BYTES + 1).status_code == 413
    begun(ci, size_bytes=FILE_LIMIT_BYTES)
    appended(ci, CONTENT)
    assert problem(begun(ci, b"another", 700_001)) == (409, "uploads-full")
    assert begun(ci, b"another", 700_000).status_code == 201
    for number in range(3):
        assert begun(ci, b"small" * number).status_code == 201
    assert problem(begun(ci, b"a sixth", 0)) == (409, "uploads-full")
    assert appended(ci, bytes(BOUNDS.request_limit_bytes + 1)).status_code == 413


def test_announced_bytes_take_no_room(controller, ci) -> None:
    """Room is taken by what arrives; what does not fit is refused when it arrives."""
    files = [os.urandom(FILE_LIMIT_BYTES) for _ in range(2)]
    paths = [f"/v1/blobs/{hashlib.sha256(file).hexdigest()}" for file in files]
    assert [begun(ci, file).status_code for file in files] == [201, 201]
    for offset in range(0, FILE_LIMIT_BYTES, 300_000):
        assert appended(ci, files[0][offset : offset + 300_000], offset, paths[0]).status_code == 200
    assert problem(appended(ci, files[1][:200_000], 0, paths[1])) == (409, "uploads-full")
    assert appended(ci, files[1][:100_000], 0, paths[1]).json()["received_bytes"] == 100_000


@pytest.fixture
def other(controller: RunningController) -> Iterator[httpx.Client]:
    with controller.client(token=controller.token(Role.PUBLISHER, name="other")) as client:
        yield client


def test_a_wrong_announcement_does_not_hinder_another_token(controller, ci, other) -> None:
    begun(other, size_bytes=7)
    assert begun(ci).json()["received_bytes"] == 0
    begun(other, b"second")
    assert other.get(PATH, params={"by": "a publisher"}).json()["size_bytes"] == len(CONTENT)
    assert (other.get(PATH).json()["by"], ci.get(PATH).json()["by"]) == ("other", "a publisher")
    begun(ci, b"second")
    second = f"/v1/blobs/{hashlib.sha256(b'second').hexdigest()}"
    assert problem(appended(other, b"wrong!", 0, second)) == (422, "upload-mismatch")
    assert appended(ci, b"second", 0, second).json()["complete"]
    assert appended(ci, CONTENT[:100]).json()["received_bytes"] == 100
    assert appended(ci, CONTENT[100:], 100).json()["complete"]
    assert other.get(PATH).json()["complete"]
    assert not [*controller.control.workspace.uploads.glob("[!.]*")], "uploads of a complete file end"


@pytest.mark.parametrize(
    ("bounds", "count"),
    [(settings_with(DraftSettings(), open_limit_per_token=4), 4), (settings_with(BOUNDS, share_per_token=0.5), 2)],
)
def test_one_token_leaves_room_for_others(tmp_path: Path, bounds: DraftSettings, count: int) -> None:
    """Four uploads of 16 GiB were announced, and a publisher could publish nothing for a day."""
    with (
        controlling(tmp_path, replace(FleetConfig(), drafts=bounds)) as running,
        running.client(token=running.token(Role.PUBLISHER, name="wild")) as wild,
        running.client(token=running.token(Role.PUBLISHER, name="ci")) as ci,
    ):
        file_bytes = running.control.workspace.settings.release_file_limit_bytes
        size_bytes = min(file_bytes, bounds.unpublished_limit_bytes // 2)
        answers = [begun(wild, b"%d" % number, size_bytes) for number in range(count + 1)]
        assert [answer.status_code for answer in answers] == [201] * count + [409]
        assert "edge-fleet uploads list" in answers[-1].json()["detail"]
        assert upload(ci, CONTENT) == DIGEST


def test_files_that_a_token_has_staged_count_for_it(controller, ci, other) -> None:
    half = settings_with(BOUNDS, share_per_token=0.5)
    controller.control.uploads._settings = half
    upload(other, CONTENT)
    assert problem(begun(other, b"x" * 200_001)) == (409, "uploads-full")
    assert upload(ci, b"x" * 200_001)
    listed = {one["by"]: one["received_bytes"] for one in ci.get("/v1/blobs").json()["items"]}
    assert listed == {"other": len(CONTENT), "a publisher": 200_001}


def test_uploads_are_listed_and_deleted(controller, ci, other, tmp_path) -> None:
    made = release(controller, tmp_path, "meter-reader", "2")
    assert sent(ci, made).status_code == 200
    begun(other)
    page = ci.get("/v1/blobs", params={"limit": 1}).json()
    rest = ci.get("/v1/blobs", params={"after": page["next"]}).json()["items"]
    listed = [*page["items"], *rest]
    assert len(listed) == 1 + len(made.files)
    assert [(one["by"], one["complete"]) for one in listed if one["digest"] == DIGEST] == [("other", False)]
    named = next(iter(made.files))
    assert problem(ci.delete(f"/v1/blobs/{named}")) == (409, "conflict"), "a draft names it"
    assert ci.delete(PATH).status_code == 404, "it is another token's"
    assert ci.delete(PATH, params={"by": "other"}).status_code == 403
    assert upload(ci, b"named by no draft") in staged(controller)
    with controller.client(Role.ADMIN) as admin:
        assert admin.delete(PATH, params={"by": "other"}).json()["by"] == "other"
    assert ci.delete(f"/v1/blobs/{hashlib.sha256(b'named by no draft').hexdigest()}").json()["complete"]
    assert {one["digest"] for one in ci.get("/v1/blobs").json()["items"]} == {*made.files}


def test_an_upload_without_bytes_expires_soon(controller, ci) -> None:
    begun(ci)
    begun(ci, b"has bytes")
    path = f"/v1/blobs/{hashlib.sha256(b'has bytes').hexdigest()}"
    appended(ci, b"has", 0, path)
    upload(ci, b"")
    later = controller.clock() + timedelta(minutes=BOUNDS.empty_kept_min + 1)
    assert moment_of(ci.get(PATH).json()["expires"]) < later
    expire_uploads(controller.control, later)
    assert [ci.get(one).status_code for one in (PATH, path)] == [404, 200]
    assert ci.get(f"/v1/blobs/{hashlib.sha256(b'').hexdigest()}").json()["complete"]


def test_what_was_uploaded_counts_until_it_is_published(controller, ci) -> None:
    for number in range(3):
        upload(ci, bytes([number]) * 300_000)
    assert problem(begun(ci, b"x" * 100_001)) == (409, "uploads-full")


@pytest.mark.parametrize("cut", [0, 3, 20, 40])
def test_a_private_key_is_not_kept_wherever_it_is_cut(controller, ci, cut) -> None:
    content = b"x" * 100 + b"-----BEGIN OPENSSH PRIVATE KEY-----\nabc\n" + b"y" * 100
    path = f"/v1/blobs/{hashlib.sha256(content).hexdigest()}"
    begun(ci, content)
    place = 100 + cut
    first = appended(ci, content[:place], 0, path)
    answer = first if first.status_code == 422 else appended(ci, content[place:], place, path)
    assert problem(answer) == (422, "private-key-refused")
    assert ci.get(path).status_code == 404
    assert not list(controller.control.workspace.uploads.glob("[!.]*"))


def test_of_two_that_write_at_the_same_time_one_is_told_to_wait(controller, ci) -> None:
    begun(ci)
    first = controller.control.uploads.append(DIGEST, 0, "a publisher")
    assert problem(appended(ci, CONTENT)) == (409, "request-in-progress")
    first.close()
    assert appended(ci, CONTENT).json()["complete"]


def test_an_upload_continues_after_a_broken_connection(controller, ci) -> None:
    begun(ci)

    def pieces() -> Iterator[bytes]:
        yield CONTENT[:100_000]
        raise ConnectionError

    with pytest.raises(ConnectionError):
        ci.patch(PATH, content=pieces())
    until(lambda: ci.get(PATH).json()["received_bytes"] == 100_000, "what was received is not kept")
    answer = appended(ci, CONTENT[100_000:], 100_000)
    while answer.status_code == 409:  # the controller has written, and still holds the file
        assert problem(answer) == (409, "request-in-progress")
        answer = appended(ci, CONTENT[100_000:], 100_000)
    assert answer.json()["complete"], answer.text


def test_what_nobody_goes_on_with_expires_and_what_a_draft_names_stays(controller, ci, tmp_path) -> None:
    made = release(controller, tmp_path, "meter-reader", "2")
    assert sent(ci, made).status_code == 200
    begun(ci)
    appended(ci, CONTENT[:1])
    upload(ci, b"named by no draft")
    now, kept = controller.clock(), timedelta(hours=BOUNDS.unfinished_kept_h)
    expire_uploads(controller.control, now + kept - timedelta(minutes=5))
    assert len(staged(controller)) == 1 + len(made.files)
    expire_uploads(controller.control, now + kept + timedelta(minutes=5))
    assert {*staged(controller)} == {*made.files}
    assert ci.get(PATH).status_code == 404
    (draft,) = controller.control.workspace.drafts().values()
    assert {*made.files} <= {Path(name).name for name in controller.control.workspace.content([*new_targets(draft)])}


def test_a_file_that_is_begun_again_is_kept_as_long_as_a_new_one(controller, ci) -> None:
    begun(ci)
    appended(ci, CONTENT[:1])
    upload(ci, b"named by no draft")
    kept = timedelta(hours=BOUNDS.unfinished_kept_h)
    workspace = controller.control.workspace
    places = [
        workspace.uploads / f"{DIGEST}.{len(CONTENT)}.a publisher",
        *(workspace.staged / "blobs" / "sha256").iterdir(),
    ]
    for place in places:
        os.utime(place, ((controller.clock() - kept + timedelta(minutes=5)).timestamp(),) * 2)
    begun(ci)
    upload(ci, b"named by no draft")
    expire_uploads(controller.control, controller.clock() + timedelta(minutes=10))
    assert [place.exists() for place in places] == [True, True]


def test_a_published_file_does_not_expire(controller, ci) -> None:
    (digest, *_) = (file.name for file in (controller.control.workspace.public / "blobs" / "sha256").iterdir())
    shown = ci.get(f"/v1/blobs/{digest}").json()
    assert (shown["complete"], shown["expires"]) == (True, None)


def test_a_file_that_is_published_while_it_is_searched_is_found(controller, ci, monkeypatch) -> None:
    upload(ci, CONTENT)
    workspace, asked = controller.control.workspace, Path.stat
    place, public = (root / blob_file(DIGEST) for root in (workspace.staged, workspace.public))

    def stat(self: Path, **given: bool) -> os.stat_result:
        """Publish the file after its first state was asked for."""
        try:
            return asked(self, **given)
        finally:
            if self in {place, public}:
                with suppress(FileNotFoundError):
                    place.replace(public)

    monkeypatch.setattr(Path, "stat", stat)
    assert controller.control.uploads.find(DIGEST, "").complete
    assert controller.control.uploads.find(DIGEST, "").complete


def test_an_upload_that_ends_while_another_request_begins_is_told(controller, ci, monkeypatch) -> None:
    begun(ci, b"")
    begun(ci)
    uploads = controller.control.uploads
    found = uploads.find(DIGEST, "a publisher")
    appended(ci, CONTENT)
    monkeypatch.setattr(uploads, "find", lambda *_: found)
    with pytest.raises(ProblemError, match="the upload has just ended; ask for its state"):
        uploads.append(DIGEST, 0, "a publisher")


def test_files_that_are_removed_while_they_are_counted_do_not_count(controller, ci, monkeypatch) -> None:
    begun(ci)
    (part,) = controller.control.workspace.uploads.glob("[!.]*")
    asked = Path.stat

    def stat(self: Path, **given: bool) -> os.stat_result:
        if self == part:
            part.unlink(missing_ok=True)
        return asked(self, **given)

    monkeypatch.setattr(Path, "stat", stat)
    assert controller.control.uploads.expire(controller.clock() + timedelta(days=30), frozenset()) == 0


def test_a_reservation_waits_for_others_for_a_bounded_time(tmp_path: Path) -> None:
    config = replace(FleetConfig(), drafts=settings_with(BOUNDS, lock_wait_s=0.2))
    with controlling(tmp_path, config) as running, running.client() as admin:
        with locked(running.control.workspace.uploads, 10.0):
            refused = begun(admin)
        assert problem(refused) == (503, "overloaded")
        assert refused.headers["retry-after"]
        while (answer := begun(admin)).status_code == 503:
            assert problem(answer) == (503, "overloaded")
        assert answer.status_code == 201


def test_a_replica_with_a_copy_of_the_folder_says_so(tmp_path: Path) -> None:
    config = replace(FleetConfig(), drafts=replace(DraftSettings(), accepted=False))
    with controlling(tmp_path, config) as running, running.client() as admin:
        for answer in (begun(admin), admin.post("/v1/publication")):
            assert problem(answer) == (503, "folder-not-writable")
            assert "accepted = false" in answer.json()["detail"]
        assert admin.get("/v1/drafts").status_code == 200


def test_a_folder_that_cannot_be_written_is_told(controller, ci) -> None:
    """A file stands where the folder should be: what a disk refuses looks alike."""
    uploads = controller.control.workspace.uploads
    uploads.parent.mkdir(exist_ok=True)
    uploads.write_text("")
    assert problem(begun(ci)) == (503, "unavailable")
    uploads.unlink()
    assert begun(ci).status_code == 201


def test_of_many_complete_files_one_is_verified_at_a_time(tmp_path: Path) -> None:
    """Hashing takes a thread that devices' requests need. A client that is refused continues its upload later."""
    config = replace(FleetConfig(), drafts=settings_with(BOUNDS, lock_wait_s=0.2))
    with controlling(tmp_path, config) as running, running.client() as admin:
        begun(admin)
        with running.control.uploads._limit.entered("another file"):
            assert problem(appended(admin, CONTENT)) == (503, "overloaded")
            assert admin.get(PATH).json()["received_bytes"] == len(CONTENT)
        file = tmp_path / "file"
        file.write_bytes(CONTENT)
        token = admin.headers["authorization"].removeprefix("Bearer ")
        sizes: list[int] = []
        client = Client(Access(running.url, token, str(running.ca_file)))
        upload_file(client, file, Artifact("file", DIGEST, len(CONTENT)), sizes.append)
        assert (sum(sizes), admin.get(PATH).json()["complete"]) == (len(CONTENT), True)


def test_a_folder_that_this_user_may_not_write_is_told(tmp_path: Path) -> None:
    with pytest.raises(ProblemError) as refused, folder_problems(Workspace(tmp_path), DraftSettings()):
        raise PermissionError(errno.EACCES, "Permission denied")
    assert refused.value.problem.type == FOLDER_NOT_WRITABLE.uri
    assert str(tmp_path) in refused.value.problem.detail
