"""Endpoints of Triton's shared memory extensions. Import only to build an application, as `routes`."""

import msgspec
from litestar import get, post

from gateway.common.domain.rights import ANY_CALLER, MEMORY, READ
from gateway.serving.frontends.not_offered import no_cuda_regions, no_regions
from gateway.serving.frontends.peer import Peer
from gateway.serving.frontends.regions import Regions, Registrant, unknown_region
from gateway.serving.frontends.rest_v2.routes import Call, Document, optional_body, ports_of

SHARED = "/v2/systemsharedmemory"
REGION = SHARED + "/region/{region:str}"
CUDA = "/v2/cudasharedmemory"
CUDA_REGION = CUDA + "/region/{region:str}"


class _Segment(msgspec.Struct):
    key: str
    byte_size: int
    offset: int = 0


@get([SHARED + "/status", REGION + "/status"], summary="Shared memory regions", opt={"needs": READ})
async def region_status(request: Call) -> list[Document]:
    """Return the caller's regions, or one; none if they are not allowed."""
    regions, name = ports_of(request).regions, _name(request)
    if regions is not None:
        return regions.status(_caller(request), name)
    if name:
        raise unknown_region(name, "system ")
    return []


@post(REGION + "/register", status_code=200, summary="Register shared memory", opt={"needs": MEMORY})
async def register_region(request: Call) -> Document:
    """Map a segment of the caller's, `{"key": …, "offset": …, "byte_size": …}`."""
    regions = _regions(request)
    segment = await optional_body(request, _Segment)
    state = request.scope["state"]
    peer: Peer = state.get("peer", Peer())
    who = Registrant(_caller(request), peer.local, peer.uid, peer.pid, state["admitted"].share_key)
    regions.register(who, _name(request), segment.key, segment.offset, segment.byte_size)
    return {}


@post(
    [SHARED + "/unregister", REGION + "/unregister"],
    status_code=200,
    summary="Unregister shared memory",
    opt={"needs": READ},
)
async def unregister_region(request: Call) -> Document:
    """Forget one of the caller's regions, or all of them."""
    _regions(request).unregister(_caller(request), _name(request))
    return {}


@get([CUDA + "/status", CUDA_REGION + "/status"], summary="CUDA shared memory regions", opt={"needs": READ})
async def cuda_region_status(request: Call) -> list[Document]:
    """Return no regions: none is ever registered."""
    if name := _name(request):
        raise unknown_region(name, "CUDA ")
    return []


@post(
    [CUDA + "/unregister", CUDA_REGION + "/unregister"],
    status_code=200,
    summary="Unregister CUDA shared memory",
    opt={"needs": READ},
)
async def unregister_cuda_region() -> Document:
    """Do nothing: programs unregister all regions before they register their first one, and Triton accepts it."""
    return {}


@post(CUDA_REGION + "/register", status_code=200, summary="Register CUDA shared memory", opt={"needs": ANY_CALLER})
async def register_cuda_region() -> Document:
    """Refuse: CUDA shared memory is not offered."""
    raise no_cuda_regions()


REGION_HANDLERS = (
    region_status,
    register_region,
    unregister_region,
    cuda_region_status,
    unregister_cuda_region,
    register_cuda_region,
)


def _regions(request: Call) -> Regions:
    regions = ports_of(request).regions
    if regions is None:
        raise no_regions()
    return regions


def _name(request: Call) -> str:
    return str(request.path_params.get("region", ""))


def _caller(request: Call) -> str:
    return str(request.scope["state"]["caller"])
