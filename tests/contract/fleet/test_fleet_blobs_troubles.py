"""Uploads to a bucket that fail half way: nothing shows, nothing is left over, and again it ends well."""

from __future__ import annotations

import hashlib
import io
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from fleet.controller.blobs.s3 import S3Blobs
from fleet.controller.blobs.settings import S3Settings
from gateway.common.domain.errors import Fault, RequestError
from tests.simulators.constants import settings_with
from tests.simulators.s3_server import BUCKET, S3Server, keys, s3
from tests.simulators.s3_trouble import (
    TroubledS3,
    cut_back,
    cut_there,
    fail_late,
    mistake,
    refuse,
    say_nothing,
    troubled,
)

__all__ = ["keys", "s3"]
GUIDE = Path(__file__).parents[3] / "fleet/README.md"
PART_BYTES, SMALL_BYTES, LARGE_BYTES = 65_536, 1000, 3 * 65_536 - 1
SETTINGS = {"part_bytes": PART_BYTES, "connect_timeout_s": 2.0, "request_timeout_s": 10.0, "retry_timeout_s": 20.0}
IN_PASSING = [
    ("begin", refuse(503)),
    ("part 2", refuse(503)),
    ("part 2", cut_there),
    ("part 2", cut_back),
    ("complete", refuse(500)),
    ("complete", fail_late),
    ("complete", cut_there),
    ("put", refuse(503)),
    ("put", cut_there),
]
"""Faults that another attempt resolves."""
FOR_GOOD = [
    ("begin", say_nothing),
    ("part 2", say_nothing),
    ("part 2", mistake),
    ("complete", say_nothing),
    ("put", say_nothing),
]
"""Answers that no S3 gives."""


def named(trouble) -> str:
    return getattr(trouble, "__qualname__", str(trouble)).partition(".")[0]


@pytest.fixture
def between(s3: S3Server) -> Iterator[TroubledS3]:
    with troubled(s3.endpoint) as made:
        yield made


class Upload:
    """Upload of content that was never there before."""

    def __init__(self, between: TroubledS3, step: str, retries: int) -> None:
        self.content = random.randbytes(SMALL_BYTES if step == "put" else LARGE_BYTES)
        self.digest = hashlib.sha256(self.content).hexdigest()
        self.blobs = S3Blobs(
            settings_with(S3Settings(), bucket=BUCKET, endpoint=between.url, retries=retries, **SETTINGS)
        )

    def put(self) -> None:
        self.blobs.put(self.digest, io.BytesIO(self.content), len(self.content))

    def whole(self) -> bool:
        with self.blobs.open(self.digest) as file:
            return file.read() == self.content


@pytest.mark.parametrize(("step", "trouble"), IN_PASSING + FOR_GOOD, ids=named)
def test_what_failed_shows_nowhere_and_ends_well_again(s3, between, step, trouble) -> None:
    upload = Upload(between, step, retries=0)
    between.troubles = {step: [trouble]}
    with pytest.raises(RequestError, match=f"bucket {BUCKET} at {between.url} does not answer") as caught:
        upload.put()
    assert (caught.value.fault, caught.value.retry_after_s) == (Fault.UNAVAILABLE, 10.0)
    assert upload.blobs.stat(upload.digest) is None
    assert not any(upload.digest in name for name in s3.names())
    assert s3.unfinished() == 0
    upload.put()
    assert upload.whole()


@pytest.mark.parametrize(("step", "trouble"), IN_PASSING, ids=named)
def test_what_fails_in_passing_is_tried_again(s3, between, step, trouble) -> None:
    upload = Upload(between, step, retries=2)
    between.troubles = {step: [trouble]}
    upload.put()
    assert between.seen.count(step) == 2
    assert upload.whole()
    assert s3.unfinished() == 0


@pytest.mark.parametrize("retries", [0, 2])
@pytest.mark.parametrize("step", ["complete", "put"])
def test_what_was_done_and_its_answer_lost_is_there(s3, between, step, retries) -> None:
    upload = Upload(between, step, retries)
    between.troubles = {step: [cut_back] * (retries + 1)}
    upload.put()
    assert between.troubles == {step: []}
    assert upload.whole()
    assert s3.unfinished() == 0


@pytest.mark.parametrize(
    ("trouble", "says"),
    [
        (refuse(503), "503 Service Unavailable"),
        (fail_late, "Server returned error response"),
        (cut_there, "error sending request"),
    ],
    ids=named,
)
def test_the_store_s_own_words_are_told_without_what_it_signs(between, trouble, says) -> None:
    upload = Upload(between, "complete", retries=0)
    between.troubles = {"complete": [trouble]}
    with pytest.raises(RequestError, match=says) as caught:
        upload.put()
    assert "uploadId" not in caught.value.message
    assert "<" not in caught.value.message


def test_parts_of_an_upload_that_could_not_be_given_up_are_what_the_guide_has_a_rule_for(s3, between) -> None:
    """The store is away from the middle of an upload on: it cannot be told that nothing more will come."""
    upload = Upload(between, "part 2", retries=0)
    between.troubles = {step: [cut_there] for step in ("part 2", "abort", "head")}
    between.troubles["head"].insert(0, refuse(404))
    with pytest.raises(RequestError, match="does not answer"):
        upload.put()
    assert s3.unfinished() == 1
    assert upload.blobs.stat(upload.digest) is None
    upload.put()
    assert upload.whole()
    assert s3.unfinished() == 1
    assert "AbortIncompleteMultipartUpload" in GUIDE.read_text()
