"""Requests for frames to a running gateway: in shared memory if it allows that, else as bytes.

The example of a camera's client: one region, registered once; one request for each frame (docs/pages/howto/cameras.md).
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gateway.common.domain.errors import Fault, RequestError, UnreachableError
from gateway.serving.cli.http_client import GatewayAddress, GatewayClient, Keys
from gateway.serving.cli.remote import checked, model_path, read_object
from gateway.serving.cli.result_view import RESULTS
from gateway.serving.frontends.cameras.forms import FrameForm, choose_form
from gateway.serving.frontends.cameras.frames import PreparedFrame
from gateway.serving.frontends.cameras.settings import FeedSettings
from gateway.workshop.camera.requests import Parts, binary_request, region_request, wire_parts
from gateway.workshop.camera.segment import FrameSegment

REGIONS = "/v2/systemsharedmemory/region"


@dataclass(frozen=True, slots=True)
class FedModel:
    """Model that is fed. `form`: of its frames. `result`: the output of its task, "" if it has none."""

    name: str
    version: str
    form: FrameForm
    result: str


class FrameFeed:
    """Connection to a gateway for the frames of one source, until the end of `with`.

    `tell` is called with a line for the user if frames cannot be in shared memory.
    """

    def __init__(self, place: GatewayAddress, keys: Keys, settings: FeedSettings, tell: Callable[[str], None]) -> None:
        self._place, self._tell = place, tell
        self._client = GatewayClient(place, keys, settings.request_s)
        self._segment: FrameSegment | None = None
        self._is_registered = False
        self.in_memory = True

    def __enter__(self) -> FrameFeed:
        return self

    def __exit__(self, *_: object) -> None:
        self._drop_segment()
        self._client.close()

    def describe(self, model: str, version: str) -> FedModel:
        """Return the model, and the form of its frames. Raises ConfigurationError if it takes none."""
        base = model_path(model, version)
        with checked(self._place):
            metadata = read_object(*self._client.exchange("GET", base))
            config = read_object(*self._client.exchange("GET", f"{base}/config"))
            form = choose_form(model, metadata["inputs"], config)
            texts = {output["name"] for output in metadata["outputs"] if output["datatype"] == "BYTES"}
            result = next((name for name in reversed(RESULTS) if name in texts), "")
            return FedModel(metadata["name"], version, form, result)

    def ask(self, model: FedModel, frame: PreparedFrame) -> dict[str, Any]:
        """Return the JSON object of the answer for one frame.

        A connection that the gateway closed, and a region that it dropped, are made once again. Raises RequestError if
        the frame is refused, UnreachableError if no gateway answers.
        """
        parts = wire_parts(model.form, frame.content)
        try:
            return self._exchange(model, frame, parts)
        except UnreachableError:
            self._client.close()
            self._is_registered = False
        except RequestError as error:
            if error.fault is not Fault.NOT_FOUND:
                raise
            self._is_registered = False
        return self._exchange(model, frame, parts)

    def _exchange(self, model: FedModel, frame: PreparedFrame, parts: Parts) -> dict[str, Any]:
        outputs = [model.result] if model.result else []
        segment = self._shared(sum(map(len, parts)))
        if segment is not None:
            size = segment.write(*parts)
            body = region_request(model.form, frame.shape, segment.name, size, outputs)
            headers = {"Content_Type": "application/json"}
        else:
            body, headers = binary_request(model.form, frame.shape, parts, outputs)
        path = f"{model_path(model.name, model.version)}/infer"
        return read_object(*self._client.exchange("POST", path, body, **headers))

    def _shared(self, size: int) -> FrameSegment | None:
        """Return a registered segment for frames of `size` bytes; None if frames are sent as bytes."""
        if not self.in_memory:
            return None
        try:
            if self._segment is None or self._segment.byte_size < size:
                self._drop_segment()
                # The next power of 2, so that a somewhat larger frame needs no other segment.
                self._segment = FrameSegment(1 << (size - 1).bit_length(), _group(self._place))
            if not self._is_registered:
                self._register(self._segment)
        except (RequestError, OSError) as error:
            self._tell(f"frames are sent as bytes, not in shared memory: {error}")
            self.in_memory = False
            self._drop_segment()
        return self._segment

    def _register(self, segment: FrameSegment) -> None:
        """Register a segment, again if the gateway knew it. Raises RequestError if it may not be."""
        path = f"{REGIONS}/{segment.name}"
        body = json.dumps({"key": segment.key, "offset": 0, "byte_size": segment.byte_size}).encode()
        for action, content in (("unregister", b"{}"), ("register", body)):
            read_object(*self._client.exchange("POST", f"{path}/{action}", content, Content_Type="application/json"))
        self._is_registered = True

    def _drop_segment(self) -> None:
        """Remove the segment. The gateway drops its region then."""
        if self._segment is not None:
            self._segment.close()
        self._segment, self._is_registered = None, False


def _group(place: GatewayAddress) -> int | None:
    """Return the group of a gateway's UNIX socket if it belongs to another user: it may read the segment then."""
    with suppress(OSError):
        found = Path(place.unix).stat() if place.unix else None
        return found.st_gid if found and found.st_uid != os.geteuid() else None
    return None
