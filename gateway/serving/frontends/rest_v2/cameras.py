"""Endpoints of cameras: their states and the pictures of events. Import this only to build an application (litestar).

Pictures show people: they need a scope of their own, and the camera's model among the models of the caller.
"""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any
from urllib.parse import quote

from litestar import Request, Response, get
from litestar.openapi.spec import OpenAPIType, Operation, Parameter, Schema

from gateway.common.domain.errors import Fault, RequestError
from gateway.common.domain.rights import CAMERAS, Rights
from gateway.serving.domain.cameras import CameraViews
from gateway.serving.frontends.rest_v2.authorisation import rights_of
from gateway.serving.frontends.rest_v2.requests import RestPorts, hold_answer
from gateway.serving.frontends.rest_v2.routes import lease_of, ports_of

CAMERA = "/v2/cameras/{camera:str}"
SNAPSHOTS_LISTED = 1_000
"""Most pictures in one answer; `before` asks for older ones."""
_PRIVATE = {"cache-control": "no-store", "x-content-type-options": "nosniff"}

Document = dict[str, Any]
Call = Request[Any, Any, Any]


@dataclass
class ListOperation(Operation):
    """Query of the list of pictures, which the handler reads itself."""

    def __post_init__(self) -> None:
        """Add the parameter."""
        schema, text = Schema(type=OpenAPIType.STRING), "list the pictures that are older than this file"
        before = Parameter(name="before", param_in="query", schema=schema, description=text)
        self.parameters = [*(self.parameters or []), before]


@get("/v2/cameras", summary="Cameras", opt={"needs": CAMERAS})
async def cameras(request: Call) -> Document:
    """Return the cameras whose models the caller may see: state, rates, drops, latencies."""
    return {"cameras": [*visible(ports_of(request), rights_of(request.scope["state"]))]}


@get(CAMERA, summary="Camera", opt={"needs": CAMERAS})
async def camera(request: Call) -> Document:
    """Return one camera."""
    return _named(request)[0]


@get(CAMERA + "/snapshots", summary="Pictures of events", operation_class=ListOperation, opt={"needs": CAMERAS})
async def snapshots(request: Call) -> Document:
    """Return the pictures of a camera's events with time and labels, the newest first."""
    found, views = _named(request)
    kept = await asyncio.to_thread(views.listed, found["name"])
    before = request.query_params.get("before", "")
    asked = [each for each in kept if not before or each.file < before]
    shown = [
        {
            "file": each.file,
            "time": datetime.fromtimestamp(each.wall_s, timezone.utc).isoformat(timespec="milliseconds"),
            "labels": each.labels,
            "bytes": each.size_bytes,
            "url": f"/v2/cameras/{found['name']}/snapshots/{quote(each.file, safe='+')}",
        }
        for each in asked[:SNAPSHOTS_LISTED]
    ]
    total = sum(each.size_bytes for each in kept)
    return {"camera": found["name"], "count": len(kept), "bytes": total, "snapshots": shown}


@get(CAMERA + "/snapshots/{file:str}", summary="Picture of an event", media_type="image/jpeg", opt={"needs": CAMERAS})
async def snapshot(request: Call) -> Response[bytes]:
    """Return a picture, with the masks and boxes of the camera's settings."""
    found, views = _named(request)
    content = await asyncio.to_thread(views.read, found["name"], request.path_params["file"])
    hold_answer(lease_of(request), len(content))
    return Response(content, media_type="image/jpeg", headers=_PRIVATE)


def visible(ports: RestPorts, rights: Rights) -> Iterator[Document]:
    """Yield the documents of the cameras whose models the caller may see."""
    statuses = ports.cameras.statuses() if ports.cameras else ()
    return (each for each in statuses if rights.sees(each["model"]))


def _named(request: Call) -> tuple[Document, CameraViews]:
    """Return the camera of the path. Raises RequestError NOT_FOUND, also for a camera that the caller may not see."""
    ports, name = ports_of(request), request.path_params["camera"]
    for each in visible(ports, rights_of(request.scope["state"])):
        if each["name"] == name and ports.cameras is not None:
            return each, ports.cameras
    raise RequestError(Fault.NOT_FOUND, f"no camera is called '{name:.64}' here; GET /v2/cameras lists them")


CAMERA_HANDLERS = (cameras, camera, snapshots, snapshot)
