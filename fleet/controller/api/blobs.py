"""`/v1/blobs`: upload of files of releases, in pieces and resumable, before a draft names them."""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import dataclass
from typing import Annotated

from litestar import delete, get, patch, post
from litestar.concurrency import sync_to_thread
from litestar.params import JSONBody, PathParameter, QueryParameter
from msgspec import Meta, Struct

from fleet.controller.access import Action, Identity, may
from fleet.controller.api.conditions import STATE, check_state, operation
from fleet.controller.api.document import BODY, CHECKED
from fleet.controller.api.fields import DIGEST, DIGEST_CHARACTERS, LARGEST, Digest, NameInQuery, PathInQuery
from fleet.controller.api.identity import ACTION, Call, actor, allow, control_of
from fleet.controller.api.pages import PAGE_ROWS, Limit, Page, page
from fleet.controller.audit import Deed
from fleet.controller.control.uploads import Appending, Upload, named_files
from fleet.disk import CHUNK_BYTES
from fleet.times import moment
from gateway.common.domain.errors import Fault, RequestError

SHOWN = "/v1/blobs/{digest}"
DigestInPath = Annotated[str, PathParameter(min_length=DIGEST_CHARACTERS, max_length=DIGEST_CHARACTERS, pattern=DIGEST)]
Offset = Annotated[int, QueryParameter(ge=0, le=LARGEST, description="received_bytes of the file")]
BYTES = {"content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}, "required": False}


class BlobAnnounced(Struct, forbid_unknown_fields=True, frozen=True):
    """Announcement of a file. `digest`: its SHA-256, in hex."""

    digest: Digest
    size_bytes: Annotated[int, Meta(ge=0, le=LARGEST)]


@dataclass(frozen=True, slots=True)
class BlobView:
    """State of an upload.

    `received_bytes` are on the disk. `complete`: drafts may name the file. `expires`: time when the file is removed
    unless more bytes arrive, a draft names it, or it is begun again; null: it is published. `by`: the token that sent
    it, as far as the list knows it.
    """

    digest: str
    size_bytes: int
    received_bytes: int
    complete: bool
    expires: str | None
    by: str


@operation(get, "/v1/blobs", Action.DRAFTS_READ, "List uploads, if not published")
def list_blobs(request: Call, after: PathInQuery = "", limit: Limit = PAGE_ROWS) -> Page[BlobView]:
    """Return incomplete uploads, and complete files that are not published, by digest and token."""
    allow(request)
    control = control_of(request)
    found = [one for one in control.uploads.unpublished() if _cursor(one) > after]
    return page(found[:limit], limit, _view, _cursor)


@operation(post, "/v1/blobs", Action.DRAFTS_CHANGE, "Begin to upload a file, or find how much of it is stored")
def begin_blob(request: Call, data: JSONBody[BlobAnnounced]) -> BlobView:
    """Return the present state if the upload was begun before or is complete."""
    identity, control = allow(request), control_of(request)
    uploads, now = control.uploads, control.clock()
    begun = uploads.begin(data.digest, data.size_bytes, actor(identity), now)
    if begun.received_bytes == begun.size_bytes:  # an empty file has no bytes to wait for
        begun = uploads.complete(data.digest, actor(identity), now)
    return _view(begun)


@operation(get, "/v1/blobs/{digest:str}", Action.DRAFTS_READ, "How much of a file is stored")
def show_blob(request: Call, digest: DigestInPath, by: NameInQuery = "") -> BlobView:
    """Return this token's upload, else another one's, or that of the token `by`.

    404 if it was never begun, or expired.
    """
    identity = allow(request)
    return _view(control_of(request).uploads.find(digest, by or actor(identity), others=not by))


@operation(
    delete,
    "/v1/blobs/{digest:str}",
    Action.DRAFTS_CHANGE,
    "Delete an upload that is not published",
    state=SHOWN,
    status_code=200,
)
def delete_blob(request: Call, digest: DigestInPath, by: NameInQuery = "") -> BlobView:
    """Delete an incomplete upload of this token, or a file that it sent and that no draft names.

    `by`: the token that sent it, for admins.
    """
    identity, control = allow(request), control_of(request)
    mine, now = actor(identity), control.clock()
    if by not in {"", mine} and not (answer := may(identity, Action.UPLOADS_REMOVE)):
        raise RequestError(Fault.DENIED, answer.reason)
    with control.drafts.changing(mine, now) as drafting:
        wanted = named_files(control.workspace, drafting.drafts.values())
        check_state(request, lambda: _view(control.uploads.find(digest, by or mine)))
        deed = Deed(mine, "blobs.delete", digest, {"by": by or mine})
        return _view(control.uploads.delete(digest, by or mine, deed, now, wanted))


@patch(
    "/v1/blobs/{digest:str}",
    opt={ACTION: Action.DRAFTS_CHANGE, STATE: SHOWN, BODY: BYTES, CHECKED: True},
    status_code=200,
    summary="Add bytes to a file",
)
async def append_blob(request: Call, digest: DigestInPath, offset: Offset = 0) -> BlobView:
    """Store the bytes of the body on the disk.

    409 if `offset` is not `received_bytes` of the file. With the last byte the digest of the file is verified.
    """
    identity = await sync_to_thread(_allowed, request, digest)
    uploads = control_of(request).uploads
    appending = await sync_to_thread(uploads.append, digest, offset, actor(identity))
    try:
        await _write(request, appending)
    finally:
        await sync_to_thread(appending.close)
    return _view(await sync_to_thread(uploads.complete, digest, actor(identity), control_of(request).clock()))


def _allowed(request: Call, digest: str) -> Identity:
    identity = allow(request)
    check_state(request, lambda: _view(control_of(request).uploads.find(digest, actor(identity))))
    return identity


async def _write(request: Call, appending: Appending) -> None:
    """Write the body, also what was received before a connection broke.

    At most `CHUNK_BYTES` and a piece of the body are in memory.
    """
    held = bytearray()
    try:
        async with aclosing(request.stream()) as pieces:
            async for piece in pieces:
                held += piece
                if len(held) >= CHUNK_BYTES:
                    full, held = bytes(held), bytearray()
                    await sync_to_thread(appending.add, full)
    finally:
        await sync_to_thread(appending.add, bytes(held))
        await sync_to_thread(appending.sync)


def _view(upload: Upload) -> BlobView:
    expires = moment(upload.expires) if upload.expires else None
    return BlobView(upload.digest, upload.size_bytes, upload.received_bytes, upload.complete, expires, upload.by)


def _cursor(upload: Upload) -> str:
    return f"{upload.digest}.{upload.by}"


HANDLERS = (list_blobs, begin_blob, show_blob, append_blob, delete_blob)
