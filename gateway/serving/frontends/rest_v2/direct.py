"""Inference for direct requests (frontends/http/direct.py): no task and no litestar for a small request and answer."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import msgspec

from gateway.common.domain.access import Security
from gateway.common.domain.errors import RequestError
from gateway.common.domain.rights import INFER, Rights, check_model
from gateway.common.domain.tensor import Raw, finish
from gateway.serving.domain.infer import InferRequest, InferResponse, ResponseForm
from gateway.serving.domain.ports import Pending
from gateway.serving.frontends.authentication import Authentication
from gateway.serving.frontends.http.admission import Admitted, stopping
from gateway.serving.frontends.http.body import Lease
from gateway.serving.frontends.http.bounds import DEFECT
from gateway.serving.frontends.http.browsers import check_host
from gateway.serving.frontends.oip_json import JSON_BODY, JsonBody, JsonRequest
from gateway.serving.frontends.oip_json_answers import JsonAnswer, answer_steps, most_bytes_steps
from gateway.serving.frontends.peer import Peer
from gateway.serving.frontends.pools import Pool
from gateway.serving.frontends.rest_v2.answers import encoded, encoding_of, fields_of
from gateway.serving.frontends.rest_v2.errors import RestRefusals
from gateway.serving.frontends.rest_v2.raw_requests import Key, RawRequests, response_of
from gateway.serving.frontends.rest_v2.requests import (
    HEADER_LENGTH,
    WHOLE_BYTES,
    RestPorts,
    decode_large,
    decode_whole,
    hold_answer,
    most_of,
)

if TYPE_CHECKING:
    from gateway.serving.frontends.http.direct import DirectConnection

DIRECT_ELEMENTS = 512
"""Most elements of an answer that is encoded on the event loop at once: 0.03 ms for numbers, 0.06 ms for strings."""
_TARGET = re.compile(r"/v2/models/([A-Za-z0-9._-]+)(?:/versions/([A-Za-z0-9._-]+))?/infer(?:\?[^#]*)?")
"""Inference, and a query, which no route here reads."""
_LENGTH = HEADER_LENGTH.encode()
REMEMBERED = 256
"""Most callers without a token, and most names of this host, that are remembered."""
_PHRASES: Mapping[int, str] = {status.value: status.phrase for status in HTTPStatus}

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class HeadProperties:
    """Properties of a head. `length`: Inference-Header-Content-Length. `accept`: Accept-Encoding."""

    names: tuple[str, str]
    authorization: str | None
    length: str | None
    accept: str


@dataclass(frozen=True, slots=True)
class AdmittedCaller:
    """A caller that `security` admits to inference."""

    security: Security
    admitted: Admitted
    rights: Rights

    @classmethod
    def of(cls, peer: Peer, authentication: Authentication, authorization: str | None) -> AdmittedCaller:
        """Identify a caller. Raises as `Authentication.admit` does."""
        caller = authentication.admit(peer, authorization, INFER)
        return cls(authentication.security, Admitted(caller.name, peer.share_of(caller), peer.local), caller.rights)


class DirectInference:
    """Handler of direct inference requests.

    Implements `frontends.http.direct.Direct`, and `domain.ports.Sink` with an Exchange as token.
    """

    def __init__(self, ports: RestPorts, requests: Pool, names: tuple[str, ...], refuse: RestRefusals) -> None:
        """Set up the handler.

        `requests` counts requests in progress; `names` are the host names of this gateway.
        """
        self.ports, self.requests, self.refuse_form = ports, requests, refuse
        self._names = names
        self._vary = b"vary: origin\r\n" if ports.settings.cors_origins else b""
        self._hosts: set[bytes] = set()
        self._admissions: dict[Peer, AdmittedCaller] = {}
        self.raw = RawRequests(ports.inference)

    def route(self, method: str, target: str, fields: dict[bytes, bytes]) -> HeadProperties | None:
        """Implement `Direct.route`: inference for programs that name this host."""
        found = _TARGET.fullmatch(target)
        if method != "POST" or found is None or b"origin" in fields:
            return None
        host = fields[b"host"]
        if host not in self._hosts:
            try:
                check_host(host.decode("latin-1"), self._names)
            except RequestError:
                return None
            self._hosts = {*self._hosts, host} if len(self._hosts) < REMEMBERED else {host}
        authorization, length = fields.get(b"authorization"), fields.get(_LENGTH)
        return HeadProperties(
            (found[1], found[2] or ""),
            None if authorization is None else authorization.decode("latin-1"),
            None if length is None else length.decode("latin-1"),
            fields.get(b"accept-encoding", b"").decode("latin-1"),
        )

    def admission(self, peer: Peer, authorization: str | None) -> AdmittedCaller:
        """Identify a caller. Without a token, all connections of a peer are the same caller, until security changes."""
        authentication = self.ports.authentication
        if authorization is not None:
            return AdmittedCaller.of(peer, authentication, authorization)
        kept = self._admissions.get(peer)
        if kept is None or kept.security is not authentication.security:
            kept = AdmittedCaller.of(peer, authentication, None)
            if len(self._admissions) >= REMEMBERED:
                self._admissions.clear()
            self._admissions[peer] = kept
        return kept

    def begin(self, connection: DirectConnection, route: HeadProperties, body: memoryview) -> InferExchange | None:
        """Implement `Direct.begin`."""
        exchange, alone = InferExchange(self, connection, route), connection.alone
        if alone:  # nothing could join its run: it need not wait for the next pass of the event loop
            self.ports.inference.hold()
        exchange.do(exchange.begin, body)
        if alone:
            self.ports.inference.release()
        return None if exchange.over else exchange

    def open(self, connection: DirectConnection, route: HeadProperties, size: int) -> InferExchange | None:
        """Implement `Direct.open`."""
        exchange = InferExchange(self, connection, route)
        return exchange if exchange.open(size) else None

    def head(self, status: int, fields: Mapping[str, str], size: int) -> bytes:
        """Return status line and fields of an answer with `size` bytes."""
        lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        return (
            f"HTTP/1.1 {status} {_PHRASES[status]}\r\n{lines}content-length: {size}\r\n".encode("latin-1") + self._vary
        )

    def respond_json(self, connection: DirectConnection, content: bytes) -> None:
        """Answer with a JSON text."""
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n" % len(content)
        connection.respond(head + self._vary, content)

    # ---- Sink --------------------------------------------------------------------------------------------------------
    def part(self, token: InferExchange, response: InferResponse) -> None:
        """Implement `Sink.part`: the infer endpoint asks for none."""

    def answer(self, token: InferExchange, response: InferResponse) -> None:
        """Implement `Sink.answer`."""
        token.do(token.answer, response)

    def refuse(self, token: InferExchange, error: RequestError) -> None:
        """Implement `Sink.refuse`."""
        token.refuse(error)

    def answer_raw(self, token: InferExchange, form: ResponseForm, contents: Sequence[Raw]) -> None:
        """Implement `RawSink.answer_raw`."""
        token.do(token.answer_raw, form, contents)

    def submit_again(self, token: InferExchange) -> None:
        """Implement `RawSink.submit_again`."""
        token.do(token.submit_again)

    def flush(self) -> None:
        """Implement `Sink.flush`: every answer is written at once, to a connection of its own."""


class InferExchange:
    """One direct request, from its body to its answer. Implements `frontends.http.direct.IncomingRequest`."""

    __slots__ = (
        "_admitted",
        "_asked",
        "_body",
        "_connection",
        "_direct",
        "_ident",
        "_lease",
        "_pending",
        "_route",
        "_sending",
        "_task",
        "body",
        "over",
        "size",
    )

    def __init__(self, direct: DirectInference, connection: DirectConnection, route: HeadProperties) -> None:
        self._direct, self._connection, self._route = direct, connection, route
        self._admitted: Admitted | None = None
        self._lease: Lease
        self._asked: JsonRequest
        self._pending: Pending | None = None
        self._task: Any = None
        self._sending = False
        """True while the answer is being sent in pieces."""
        self._body, self._ident = memoryview(b""), ""
        """Body and id of a request that is answered as bytes."""
        self.over = False
        """True once the answer was given, or none is due any more."""

    def do(self, work: Callable[..., None], *arguments: Any) -> None:
        """Do a part of the work. An error ends this request only; one that is no refusal is a defect of the server."""
        try:
            work(*arguments)
        except RequestError as error:
            self.refuse(error)
        except Exception as error:  # noqa: BLE001  as litestar does
            self.fail(error)

    def open(self, size: int) -> bool:
        """Take a place for a body that is still to come, and reserve its memory for a caller on this device.

        Return False, uncounted, if it would be refused.
        """
        direct, ports, (model, version) = self._direct, self._direct.ports, self._route.names
        peer = self._connection.peer
        try:
            caller = ports.authentication.security.caller(peer.name, peer.identities, self._route.authorization)
            ports.inference.describe(model, version)
            most = ports.bodies.bound(most_of(ports, model, self._route.length))
        except RequestError:
            return False
        admitted = Admitted(caller.name, peer.share_of(caller), peer.local)
        self._lease = Lease(ports.bodies, admitted)
        if (
            not (caller.rights.allows(INFER) and caller.rights.sees(model) and size <= most.limit_bytes)
            or (peer.local and not ports.bodies.is_free(self._lease, size))
            or direct.requests.take(admitted.share_key, local=admitted.local)
        ):
            return False
        self._admitted = admitted
        if peer.local:  # as `BodyReader.read` does
            self._lease.reserve(size)
        self.body, self.size = bytearray(), size
        return True

    def hold(self, size: int) -> bool:
        """Implement `frontends.http.direct.IncomingRequest.hold`."""
        fits = self._lease.fits(size)
        if fits:
            self._lease.take(size)
        return fits

    def begin_received(self) -> None:
        """Implement `frontends.http.direct.IncomingRequest.begin_received`."""
        body, self.body = memoryview(self.body), bytearray()
        self._task = self._connection.loop.create_task(self._begin_apart(body, None, None, 0))

    def begin(self, body: memoryview) -> None:
        """Admit and submit the request. Raises RequestError."""
        direct, ports, (model, version) = self._direct, self._direct.ports, self._route.names
        admission = direct.admission(self._connection.peer, self._route.authorization)
        admitted = admission.admitted
        if admission.rights.models:
            check_model(admitted.caller, admission.rights, model)
        direct.requests.require(admitted.share_key, local=admitted.local)
        self._admitted = admitted
        self._lease = Lease(ports.bodies, admitted)
        parsed = key = None
        if self._route.length is None:
            with suppress(msgspec.MsgspecError, UnicodeDecodeError, RecursionError):  # the usual way says what is wrong
                parsed = JSON_BODY.decode(body)
                key = direct.raw.key(self._route.names, parsed)
            if key is not None and parsed is not None and self._collect(body, parsed, key):
                return
        ports.inference.describe(model, version)
        most = ports.bodies.bound(most_of(ports, model, self._route.length))
        if len(body) > most.limit_bytes:
            raise most.too_large()
        self._lease.take(len(body))
        if len(body) > WHOLE_BYTES:
            self._task = self._connection.loop.create_task(self._begin_apart(body, parsed, key, most.limit_bytes))
            return
        asked = decode_whole(ports, body, self._route.length, self._route.names, admitted.caller, parsed=parsed)
        self._submit(asked)
        direct.raw.learn(key, parsed, asked.request, most.limit_bytes)

    def answer_raw(self, form: ResponseForm, contents: Sequence[Raw]) -> None:
        """Answer with outputs as bytes."""
        if self.over:
            return
        direct, content = self._direct, self._direct.raw.answer(form, self._ident, contents)
        if content is None or (self._route.accept and len(content) >= direct.ports.settings.compress_from_bytes):
            self._asked = JsonRequest(InferRequest(form.model, {}))
            self.answer(response_of(form, self._ident, contents))
            return
        if len(content) > len(self._body):
            hold_answer(self._lease, len(content))
        self._end()
        direct.respond_json(self._connection, content)

    def submit_again(self) -> None:
        """Submit a request that its raw batch did not answer."""
        if not self.over:
            self._submit(decode_whole(self._direct.ports, self._body, None, self._route.names, self._lease.caller))

    def answer(self, response: InferResponse) -> None:
        """Encode and send an answer; a large one, or one that is compressed, in a task."""
        answer = self._encoded_at_once(response)
        if answer is None or encoding_of(answer, self._route.accept, self._direct.ports.settings) != "identity":
            self._task = self._connection.loop.create_task(self._answer_apart(response, answer))
        else:
            self._respond(200, fields_of(answer), bytes(answer))

    def refuse(self, error: RequestError) -> None:
        """Answer with a refusal."""
        refusal = self._direct.refuse_form.error(error)
        self._respond(refusal.status, {"content-type": refusal.media_type, **dict(refusal.headers)}, refusal.body)

    def fail(self, error: Exception) -> None:
        """Log a defect in full, and answer that it is the server's."""
        _log.error("a request to model '%s' failed", self._route.names[0], exc_info=error)
        refusal = self._direct.refuse_form.plain(500, DEFECT)
        self._respond(refusal.status, {"content-type": refusal.media_type}, refusal.body)

    def cancel(self) -> None:
        """Implement `frontends.http.direct.Exchange.cancel`."""
        for each in (self._pending, self._task):
            if each is not None:
                each.cancel()
        self._end()

    def cut_off(self) -> None:
        """Implement `frontends.http.direct.Exchange.cut_off`."""
        _log.warning("a request to model '%s' was cut off by the shutdown", self._route.names[0])
        self.cancel()
        if self._sending:  # a second answer would be read as a part of the first one
            self._connection.transport.abort()
            return
        self.over = False
        self.refuse(stopping())

    # ---- internal ----------------------------------------------------------------------------------------------------
    def _collect(self, body: memoryview, parsed: JsonBody, key: Key) -> bool:
        """Add the request to the engine's batch of its like. Return False if it takes the usual way."""
        known = self._direct.raw.known.get(key)
        if known is None or len(body) > known.limit_bytes or (contents := known.contents(parsed)) is None:
            return False
        self._lease.take(len(body))
        self._body, self._ident = body, parsed.id or ""
        if known.batch.add(self._direct, self, contents, time.monotonic_ns(), None):
            return True
        self._lease.become(0)
        return False

    def _encoded_at_once(self, response: InferResponse) -> JsonAnswer | None:
        """Return an answer that is encoded quickly, and count its memory; None for a large one."""
        if sum([tensor.array.size for tensor in response.outputs.values()]) > DIRECT_ELEMENTS:
            return None
        asked, lease = self._asked, self._lease
        hold_answer(lease, finish(most_bytes_steps(response, asked)))
        return finish(answer_steps(response, asked, literals=True))

    def _submit(self, asked: JsonRequest) -> None:
        pending = self._direct.ports.inference.submit(asked.request, self._direct, self)
        self._pending = None if self.over else pending
        self._asked = replace(asked, request=replace(asked.request, inputs={}))  # it does not hold the body

    async def _begin_apart(self, body: memoryview, parsed: JsonBody | None, key: Key | None, limit_bytes: int) -> None:
        """Decode a large request within the bounds of one pass of the event loop, and submit it."""
        try:
            route = self._route
            ports, lease = self._direct.ports, self._lease
            asked = await decode_large(ports, body, route.length, route.names, lease, parsed=parsed)
            self._submit(asked)
            self._direct.raw.learn(key, parsed, asked.request, limit_bytes)
        except RequestError as error:
            self.refuse(error)
        except Exception as error:  # noqa: BLE001  the task's boundary
            self.fail(error)

    async def _answer_apart(self, response: InferResponse, answer: JsonAnswer | None) -> None:
        ports, asked, lease = self._direct.ports, self._asked, self._lease
        decoding, caller = ports.inference.decoding, lease.caller
        try:
            if answer is None:
                hold_answer(lease, await decoding.run(caller, most_bytes_steps(response, asked)))
                answer = await decoding.run(caller, answer_steps(response, asked, literals=True))
            content = await encoded(answer, self._route.accept, ports, caller)
        except RequestError as error:
            self.refuse(error)
        except Exception as error:  # noqa: BLE001  the task's boundary
            self.fail(error)
        else:
            self._sending = True
            try:
                await self._connection.respond_in_pieces(
                    self._direct.head(200, content.fields, content.size), content.pieces
                )
            finally:
                self._end()

    def _respond(self, status: int, fields: Mapping[str, str], content: bytes) -> None:
        if not self.over:
            self._end()
            self._connection.respond(self._direct.head(status, fields, len(content)), content)

    def _end(self) -> None:
        """Release what the request held."""
        # What is pending holds this request: its body would wait for a search for garbage.
        self.over, self._pending, self._task = True, None, None
        if self._admitted is not None:
            self._direct.requests.give(self._admitted.share_key, local=self._admitted.local)
            self._admitted = None
            self._lease.become(0)
