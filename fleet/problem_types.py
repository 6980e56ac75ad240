"""Types of problems (RFC 9457): the only table. The controller serves it at `/problems`; `PROBLEMS.md` lists it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gateway.domain.errors import Fault

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
    "The first request with this Idempotency-Key has not ended.",
    "Send the same request again after `Retry-After` seconds.",
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
    NOT_FOUND,
    METHOD_NOT_ALLOWED,
    REQUEST_TIMEOUT,
    CONFLICT,
    IN_PROGRESS,
    PRECONDITION_FAILED,
    TOO_LARGE,
    UNSUPPORTED_MEDIA,
    KEY_REUSED,
    PRECONDITION_REQUIRED,
    TOO_MANY,
    HEAD_TOO_LARGE,
    INTERNAL,
    UNSUPPORTED,
    OVERLOADED,
    UNAVAILABLE,
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
