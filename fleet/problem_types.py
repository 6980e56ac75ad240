"""Types of problems (RFC 9457): the only table. The controller serves it at `/problems`; `PROBLEMS.md` lists it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gateway.common.domain.errors import Fault

PREFIX = "/problems/"


@dataclass(frozen=True, slots=True)
class ProblemType:
    """Kind of refusal. `name` ends its URI; `meaning` says what happened, `remedy` what the caller does next."""

    name: str
    status: int
    title: str
    fault: Fault
    meaning: str
    remedy: str

    @property
    def uri(self) -> str:
        """Return the `type` of problem documents, relative to the controller's address."""
        return f"{PREFIX}{self.name}"


INVALID = ProblemType(
    "invalid-request",
    400,
    "Invalid request",
    Fault.INVALID,
    "A parameter, a header or the body does not fit the API's schema, or names something that cannot be.",
    "Correct what `detail` names. The same request fails again.",
)
UNAUTHENTICATED = ProblemType(
    "unauthenticated",
    401,
    "Not authenticated",
    Fault.UNAUTHENTICATED,
    "The request has no API token and no device certificate, or the one it has is unknown, revoked or expired.",
    "Send `Authorization: Bearer TOKEN`, or enrol the device again.",
)
DENIED = ProblemType(
    "denied",
    403,
    "Not permitted",
    Fault.DENIED,
    "The caller is known, and its role or its tags do not permit this.",
    "Use a token with the role or the tags that `detail` names.",
)
DEVICE_SUSPENDED = ProblemType(
    "device-suspended",
    403,
    "Device suspended",
    Fault.DENIED,
    "An operator suspended this device. Its certificate stays valid, and may be renewed; all else is refused.",
    "Go on as before and poll at the usual interval; an operator resumes it: `edge-fleet devices resume DEVICE`.",
)
NOT_FOUND = ProblemType(
    "not-found",
    404,
    "Not found",
    Fault.NOT_FOUND,
    "The path, or what it names, does not exist.",
    "Check the path and the id; list what exists.",
)
METHOD_NOT_ALLOWED = ProblemType(
    "method-not-allowed",
    405,
    "Method not allowed",
    Fault.INVALID,
    "The path exists and does not take this method.",
    "Use a method that the header `Allow` names.",
)
REQUEST_TIMEOUT = ProblemType(
    "request-timeout",
    408,
    "Request timeout",
    Fault.EXPIRED,
    "The request's body did not arrive in time; nothing was done.",
    "Send it faster, or send less.",
)
CONFLICT = ProblemType(
    "conflict",
    409,
    "Conflict",
    Fault.INVALID,
    "The state of the resource does not allow this, or another request changed it at the same time.",
    "Read the resource again, then decide again.",
)
IN_PROGRESS = ProblemType(
    "request-in-progress",
    409,
    "Request in progress",
    Fault.OVERLOADED,
    "The first request with this Idempotency-Key, or another request that adds to the same file, has not ended.",
    "Send the same request again after `Retry-After` seconds; for a file, read `/v1/blobs/{digest}` first.",
)
DRAFT_OUTDATED = ProblemType(
    "draft-outdated",
    409,
    "Draft outdated",
    Fault.INVALID,
    "The draft does not follow the published version, or another draft of the role waits.",
    "Read what is published and what waits, make the draft again, and send the `ETag` of the draft that it replaces.",
)
PUBLICATION_REFUSED = ProblemType(
    "publication-refused",
    409,
    "Publication refused",
    Fault.INVALID,
    "What would be published is not a repository that devices trust, for example because an online key is not here.",
    "Do what `detail` names. Nothing was published.",
)
UPLOAD_OFFSET = ProblemType(
    "upload-offset",
    409,
    "Wrong upload offset",
    Fault.INVALID,
    "The file has another length here than `offset`, or is complete, or the bytes would be more than announced.",
    "Read `/v1/blobs/{digest}`, and continue from its `received_bytes`.",
)
UPLOADS_FULL = ProblemType(
    "uploads-full",
    409,
    "No room for uploads",
    Fault.INVALID,
    "Files that are not published reach a bound of all tokens or of this one: `[drafts] unpublished_limit_bytes`, "
    "20,000 files, of one token half of both and 64 incomplete ones.",
    "Publish or withdraw drafts, delete uploads (`edge-fleet uploads`), or wait until they expire.",
)
PRECONDITION_FAILED = ProblemType(
    "precondition-failed",
    412,
    "Precondition failed",
    Fault.INVALID,
    "`If-Match` names a state that the resource no longer has; nothing was done.",
    "Read the resource again, decide again, and send its new `ETag`.",
)
TOO_LARGE = ProblemType(
    "too-large",
    413,
    "Content too large",
    Fault.TOO_LARGE,
    "The body is larger than this route takes.",
    "Send less at a time.",
)
UNSUPPORTED_MEDIA = ProblemType(
    "unsupported-media-type",
    415,
    "Unsupported media type",
    Fault.INVALID,
    "The body has an encoding that is not supported.",
    "Send it with gzip, or without an encoding.",
)
KEY_REUSED = ProblemType(
    "idempotency-key-reused",
    422,
    "Idempotency key reused",
    Fault.INVALID,
    "This Idempotency-Key was used with another method, path or body.",
    "Send each new request with a new key.",
)
DRAFT_REFUSED = ProblemType(
    "draft-refused",
    422,
    "Draft refused",
    Fault.INVALID,
    "The draft is damaged, changes what its role may not, or names files that are not here.",
    "Correct what `detail` names. Upload missing files first (`/v1/blobs`).",
)
SIGNATURE_REFUSED = ProblemType(
    "signature-refused",
    422,
    "Signature refused",
    Fault.INVALID,
    "The signature is not over the document that waits, or its key may not sign the role.",
    "Download the draft again, and sign it with one of the keys that it names.",
)
PRIVATE_KEY_REFUSED = ProblemType(
    "private-key-refused",
    422,
    "Private key refused",
    Fault.INVALID,
    "The body contains a private key. The controller takes signatures, never keys; nothing was kept.",
    "Sign where the key is, and send the signature. Replace a key that others could read on its way.",
)
UPLOAD_MISMATCH = ProblemType(
    "upload-mismatch",
    422,
    "Other content than announced",
    Fault.INVALID,
    "The received bytes have another digest, and were removed; or the file was begun with another size.",
    "Check the file, and upload it again; after a wrong size, once the upload has expired (`expires`).",
)
PRECONDITION_REQUIRED = ProblemType(
    "precondition-required",
    428,
    "Precondition required",
    Fault.INVALID,
    "This controller takes changes only with `If-Match` (`[requests] require_if_match`).",
    "Read the resource, and send its `ETag` as `If-Match`.",
)
TOO_MANY = ProblemType(
    "too-many-requests",
    429,
    "Too many requests",
    Fault.OVERLOADED,
    "The caller sends more requests than it may.",
    "Send the request again after `Retry-After` seconds.",
)
HEAD_TOO_LARGE = ProblemType(
    "header-too-large",
    431,
    "Request header fields too large",
    Fault.INVALID,
    "The request line and the headers are larger than the server takes.",
    "Send fewer or shorter headers.",
)
INTERNAL = ProblemType(
    "internal-error",
    500,
    "Internal error",
    Fault.INTERNAL,
    "The controller has a defect.",
    "Give its operator the `instance` of this problem: the log names the defect under it.",
)
UNSUPPORTED = ProblemType(
    "unsupported",
    501,
    "Not supported",
    Fault.UNSUPPORTED,
    "This controller does not offer what was asked for.",
    "Do without it.",
)
OVERLOADED = ProblemType(
    "overloaded",
    503,
    "Overloaded",
    Fault.OVERLOADED,
    "The controller has too much to do at the moment; nothing was done.",
    "Send the request again after `Retry-After` seconds.",
)
UNAVAILABLE = ProblemType(
    "unavailable",
    503,
    "Unavailable",
    Fault.UNAVAILABLE,
    "Something that the controller needs, such as its database, does not answer; nothing was done.",
    "Send the request again after `Retry-After` seconds.",
)
FOLDER_NOT_WRITABLE = ProblemType(
    "folder-not-writable",
    503,
    "Folder not writable",
    Fault.UNAVAILABLE,
    "This replica cannot write the publisher's folder, or has a copy of it (`[drafts] accepted`).",
    "Ask the replica that has the folder itself, or let the controller's user write there.",
)
EXPIRED = ProblemType(
    "expired",
    504,
    "Deadline exceeded",
    Fault.EXPIRED,
    "The work was not done in time.",
    "Send the request again.",
)

TYPES = (
    INVALID,
    UNAUTHENTICATED,
    DENIED,
    DEVICE_SUSPENDED,
    NOT_FOUND,
    METHOD_NOT_ALLOWED,
    REQUEST_TIMEOUT,
    CONFLICT,
    IN_PROGRESS,
    DRAFT_OUTDATED,
    PUBLICATION_REFUSED,
    UPLOAD_OFFSET,
    UPLOADS_FULL,
    PRECONDITION_FAILED,
    TOO_LARGE,
    UNSUPPORTED_MEDIA,
    KEY_REUSED,
    DRAFT_REFUSED,
    SIGNATURE_REFUSED,
    PRIVATE_KEY_REFUSED,
    UPLOAD_MISMATCH,
    PRECONDITION_REQUIRED,
    TOO_MANY,
    HEAD_TOO_LARGE,
    INTERNAL,
    UNSUPPORTED,
    OVERLOADED,
    UNAVAILABLE,
    FOLDER_NOT_WRITABLE,
    EXPIRED,
)
OF_FAULT: Mapping[Fault, ProblemType] = {
    Fault.INVALID: INVALID,
    Fault.UNAUTHENTICATED: UNAUTHENTICATED,
    Fault.DENIED: DENIED,
    Fault.NOT_FOUND: NOT_FOUND,
    Fault.TOO_LARGE: TOO_LARGE,
    Fault.THROTTLED: TOO_MANY,
    Fault.OVERLOADED: OVERLOADED,
    Fault.EXPIRED: EXPIRED,
    Fault.UNAVAILABLE: UNAVAILABLE,
    Fault.UNSUPPORTED: UNSUPPORTED,
    Fault.INTERNAL: INTERNAL,
}
"""Type of a refusal that names only its fault."""
_OF_STATUS = {kind.status: kind for kind in reversed(TYPES) if kind not in {IN_PROGRESS, OVERLOADED}}


def of_status(status: int) -> ProblemType:
    """Return the type of a refusal that names only its status; of an unlisted status the type of its class."""
    return _OF_STATUS.get(status, INVALID if status < 500 else INTERNAL)
