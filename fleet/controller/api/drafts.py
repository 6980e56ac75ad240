"""`/v1/drafts`: documents that wait for signatures. Private keys are refused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from litestar import delete, get, post, put
from litestar.params import JSONBody, PathParameter, RawBody
from msgspec import Meta, Struct

from fleet.controller.access import Action, Identity, may
from fleet.controller.api.conditions import check_state, operation
from fleet.controller.api.document import BODY, CHECKED
from fleet.controller.api.fields import DIGEST, DIGEST_CHARACTERS, KEPT, NAME_CHARACTERS, documented
from fleet.controller.api.identity import Call, actor, allow, control_of
from fleet.controller.api.pages import Page
from fleet.controller.control.drafts import DraftState
from fleet.controller.problems import ProblemError
from fleet.problem_types import PRIVATE_KEY_REFUSED
from fleet.publisher.draft_rules import PrivateKeyError, check_no_private_key
from fleet.publisher.drafts import Draft, draft_document
from fleet.publisher.impact import Impact
from fleet.publisher.roles import OWNER_PREFIX, ROOT, TARGETS, Quorum, signer_name
from fleet.publisher.wording import describe_changes
from fleet.times import moment
from gateway.common.domain.errors import Fault, RequestError

SHOWN = "/v1/drafts/{role}/file"
ROLE_CHARACTERS = len(OWNER_PREFIX) + NAME_CHARACTERS
SIGNATURES_LIMIT = 32
SIGNATURE_CHARACTERS = 4_096
RoleInPath = Annotated[str, PathParameter(min_length=1, max_length=ROLE_CHARACTERS, pattern=KEPT)]
KeyId = Annotated[str, Meta(min_length=1, max_length=NAME_CHARACTERS, pattern=KEPT)]
SignatureText = Annotated[str, Meta(min_length=1, max_length=SIGNATURE_CHARACTERS, pattern=KEPT)]
DocumentDigest = Annotated[str, documented(minLength=DIGEST_CHARACTERS, maxLength=DIGEST_CHARACTERS, pattern=DIGEST)]
DRAFT = {"content": {"application/json": {"schema": {"type": "object"}}}, "required": True}
"""A draft as `edge-fleet` writes it."""


class SignatureSent(Struct, forbid_unknown_fields=True, frozen=True):
    """A signature as TUF has it: `keyid` of the key, `sig` in hex."""

    keyid: KeyId
    sig: SignatureText


class SignaturesSent(Struct, forbid_unknown_fields=True, frozen=True):
    """Signatures of a draft.

    `document`: digest of what they cover, as the draft shows it; 409 if another draft waits by now.
    """

    document: DocumentDigest
    signatures: Annotated[list[SignatureSent], Meta(min_length=1, max_length=SIGNATURES_LIMIT)]


@dataclass(frozen=True, slots=True)
class QuorumView:
    """Quorum of a draft: `threshold` of these keys must sign.

    `signed`: keys with a signature; `optional`: not needed to publish.
    """

    purpose: str
    threshold: int
    keys: Sequence[str]
    signed: Sequence[str]
    missing: int
    optional: bool


@dataclass(frozen=True, kw_only=True)
class DraftEntry:
    """Draft of one role.

    `document`: SHA-256 of what signatures cover; `missing`: number of missing signatures; `waits`: why it cannot be
    published, "" if it can.
    """

    role: str
    version: int
    expires: str
    document: str
    missing: int
    quorums: Sequence[QuorumView]
    waits: str


@dataclass(frozen=True, slots=True)
class Concern:
    """Effect on devices that run `target` in `slot`.

    They may not install it any more, or (`stops`) are ordered to stop it.
    """

    target: str
    slot: str
    devices: int
    why: str
    stops: bool


@dataclass(frozen=True, kw_only=True)
class DraftView(DraftEntry):
    """Draft of one role, in words.

    `words`: content to be signed, compared with what is published; `concerns`: its effect on devices.
    """

    words: Sequence[str]
    concerns: Sequence[Concern]


async def refuse_private_keys(request: Call) -> None:
    """Litestar's hook before a body is parsed. Raise ProblemError for a private key in it."""
    try:
        check_no_private_key(await request.body())
    except PrivateKeyError as error:
        raise ProblemError(PRIVATE_KEY_REFUSED.status, f"the body {error}", kind=PRIVATE_KEY_REFUSED) from None


@operation(get, "/v1/drafts", Action.DRAFTS_READ, "Drafts that wait, by role")
def list_drafts(request: Call) -> Page[DraftEntry]:
    """List all drafts: a role has one at most."""
    allow(request)
    control = control_of(request)
    return Page([DraftEntry(**_fields(*waiting)) for waiting in control.drafts.waiting(control.clock())], None)


@operation(get, "/v1/drafts/{role:str}", Action.DRAFTS_READ, "One draft, in words")
def show_draft(request: Call, role: RoleInPath) -> DraftView:
    """Return the content to be signed, the signatures, and the affected devices."""
    allow(request)
    control = control_of(request)
    return _view(control.drafts.find(role, control.clock()))


@operation(get, "/v1/drafts/{role:str}/file", Action.DRAFTS_READ, "One draft, as the file that edge-fleet sign takes")
def download_draft(request: Call, role: RoleInPath) -> dict[str, Any]:
    """Return the draft file, with everything that its signers need. Its ETag changes with each signature."""
    allow(request)
    control = control_of(request)
    return draft_document(control.drafts.draft(role, control.clock()))


@operation(
    put, "/v1/drafts/{role:str}", Action.DRAFTS_CHANGE, "Upload a draft", state=SHOWN, opt={BODY: DRAFT, CHECKED: True}
)
def put_draft(request: Call, role: RoleInPath, body: RawBody) -> DraftView:
    """Store a draft that is based on what is published now.

    If another draft waits, `If-Match` names the one that this replaces. A copy of the waiting draft adds its
    signatures. Root and targets: admins only.
    """
    identity, control = _allow_role(request, role), control_of(request)
    names_state = "if-match" in request.headers

    def check(waiting: Draft | None) -> None:
        if waiting or names_state:  # a first draft has no state before it
            check_state(request, lambda: draft_document(waiting) if waiting else None)

    now = control.clock()
    return _view(control.drafts.put(role, body, actor(identity), now, replaces=names_state, check=check))


@operation(
    post,
    "/v1/drafts/{role:str}/signatures",
    Action.DRAFTS_CHANGE,
    "Add signatures to a draft",
    state=SHOWN,
    status_code=200,
    before_request=refuse_private_keys,
)
def add_signatures(request: Call, role: RoleInPath, data: JSONBody[SignaturesSent]) -> DraftView:
    """Add signatures made elsewhere. 422 for a key that may not sign, or a signature over another document."""
    identity, control = allow(request), control_of(request)
    signatures = {one.keyid: one.sig for one in data.signatures}
    if len(signatures) < len(data.signatures):
        raise RequestError(Fault.INVALID, "signatures: a key is named twice")
    drafts, by, now = control.drafts, actor(identity), control.clock()
    return _view(drafts.sign(role, data.document, signatures, by, now, check=_checked(request)))


@operation(delete, "/v1/drafts/{role:str}", Action.DRAFTS_CHANGE, "Withdraw a draft", state=SHOWN, status_code=200)
def delete_draft(request: Call, role: RoleInPath) -> DraftView:
    """Delete a draft with its signatures. Root and targets: admins only."""
    identity, control = _allow_role(request, role), control_of(request)
    return _view(control.drafts.discard(role, actor(identity), control.clock(), check=_checked(request)))


def concern(impact: Impact) -> Concern:
    """Return an effect on devices in the form of answers."""
    return Concern(impact.target, impact.slot, impact.devices, impact.why, impact.stops)


def _checked(request: Call) -> Any:
    return lambda waiting: check_state(request, lambda: draft_document(waiting))


def _allow_role(request: Call, role: str) -> Identity:
    """Allow root and targets to admins only: they name the signers. Raise RequestError UNAUTHENTICATED, DENIED."""
    identity = allow(request)
    answer = may(identity, Action.DRAFTS_KEYS)
    if role in {ROOT, TARGETS} and not answer:
        raise RequestError(Fault.DENIED, answer.reason)
    return identity


def _view(state: DraftState) -> DraftView:
    words, concerns = describe_changes(state.draft), [concern(impact) for impact in state.concerns]
    return DraftView(**_fields(state.draft, state.waits), words=words, concerns=concerns)


def _fields(draft: Draft, waits: str) -> dict[str, Any]:
    signed = draft.metadata.signed
    return {
        "role": draft.role,
        "version": signed.version,
        "expires": moment(signed.expires),
        "document": draft.document,
        "missing": draft.missing,
        "quorums": [_quorum(wanted, draft.metadata) for wanted in draft.quorums],
        "waits": waits,
    }


def _quorum(wanted: Quorum, metadata: Any) -> QuorumView:
    keys, signed = ([signer_name(key) for key in keys] for keys in (wanted.keys, wanted.signed_by(metadata)))
    return QuorumView(wanted.purpose, wanted.threshold, keys, signed, wanted.missing(metadata), wanted.optional)


HANDLERS = (list_drafts, show_draft, download_draft, put_draft, add_signatures, delete_draft)
