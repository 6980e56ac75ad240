"""Interface between a transport and the service core: caller, deadline, and the list of methods."""

from __future__ import annotations

import enum
import logging
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gateway.common.domain.errors import Fault, RequestError
from gateway.common.domain.rights import NOTHING, Needs, Rights
from gateway.serving.domain.shares import ANONYMOUS
from gateway.serving.frontends.grpc_v2.framing import Encoded, prefixed

INFER = "/inference.GRPCInferenceService/ModelInfer"
"""Path of the method that the hot path serves."""

log = logging.getLogger(__name__)


@dataclass(slots=True)
class CallInfo:
    """One call as the transport sees it.

    `deadline_ns`: on the monotonic clock, None if the caller set none. `local`: the call came from this device. `uid`,
    `pid`: of the process behind a UNIX socket, if the transport reports them. `share_key`: the caller in whose share
    the call counts (`domain.shares.caller_key`).
    """

    caller: str = ""
    deadline_ns: int | None = None
    local: bool = True
    uid: int | None = None
    pid: int | None = None
    rights: Rights = NOTHING
    share_key: str = ANONYMOUS


class RpcKind(enum.Enum):
    """Number of messages in each direction."""

    UNARY = "unary"
    SERVER_STREAM = "server stream"
    BIDIRECTIONAL = "bidirectional"


@dataclass(frozen=True, slots=True)
class Rpc:
    """Description of one method.

    `answer` takes (message, CallInfo), or for BIDIRECTIONAL an async iterator of messages and CallInfo. It returns a
    message (UNARY: awaitable) or an async generator of messages. Raises RequestError.

    `needs`: scopes of which a caller needs one. `raw`: its requests are bytes, which the method reads itself, and its
    replies are encoded.
    """

    path: str
    kind: RpcKind
    request: Any
    answer: Callable[[Any, CallInfo], Any]
    needs: Needs
    raw: bool = False

    def parse(self, content: bytes | memoryview) -> Any:
        """Return the request in `content`. Raises RequestError INVALID if it is none."""
        return content if self.raw else parse_message(self.request, content)

    def encode(self, reply: Any) -> Encoded:
        """Return the reply as it is sent."""
        encoded: Encoded = reply if self.raw else prefixed(reply.SerializeToString())
        return encoded


def parse_message(kind: Any, content: bytes | memoryview) -> Any:
    """Return the message of class `kind` in `content`. Raises RequestError INVALID if it is none."""
    from google.protobuf.message import DecodeError

    try:
        return kind.FromString(bytes(content))
    except DecodeError:
        name = kind.DESCRIPTOR.full_name
        raise RequestError(Fault.INVALID, f"the {len(content)} bytes sent are no {name} message") from None


def rights_changed() -> RequestError:
    """Return the error that ends a call when a reload replaced its caller's rights."""
    return RequestError(Fault.UNAVAILABLE, "the caller's rights have changed; call again")


def unexpected(error: Exception, path: str) -> RequestError:
    """Return the error that a peer gets for a defect: INTERNAL and a number that finds the traceback in the log.

    A refusal is returned as it is. A lack of memory is TOO_LARGE, logged without a number: equal lines are left out.
    """
    if isinstance(error, RequestError):
        return error
    if isinstance(error, MemoryError):
        log.warning("call of %s lacked memory for its message or answer ([gateway] memory_mib)", path)
        what = "the device lacks the memory for this message or its answer"
        return RequestError(Fault.TOO_LARGE, f"{what}; send less at once, or raise [gateway] memory_mib")
    number = secrets.token_hex(4)
    log.error("call of %s failed unexpectedly (error %s)", path, number, exc_info=error)
    return RequestError(Fault.INTERNAL, f"internal error {number}; the gateway's log says more under this number")
