"""What OpenAPI cannot learn from the endpoints' signatures."""

from __future__ import annotations

from dataclasses import dataclass
from http import HTTPStatus

from litestar import Response, Router
from litestar.handlers import HTTPRouteHandler
from litestar.openapi.config import OpenAPIConfig
from litestar.openapi.plugins import JsonRenderPlugin
from litestar.openapi.spec import (
    OpenAPIMediaType,
    OpenAPIType,
    Operation,
    Parameter,
    RequestBody,
    Schema,
)
from litestar.types import Method
from litestar.types.internal_types import PathParameterDefinition

from gateway import __version__
from gateway.frontends.rest_v2.errors import Refusal

_TENSOR = Schema(
    type=OpenAPIType.OBJECT,
    required=["name", "datatype", "shape"],
    properties={
        "name": Schema(type=OpenAPIType.STRING),
        "datatype": Schema(type=OpenAPIType.STRING, examples=["FP32"]),
        "shape": Schema(type=OpenAPIType.ARRAY, items=Schema(type=OpenAPIType.INTEGER)),
        "data": Schema(type=OpenAPIType.ARRAY, description="elements in row-major order, flat or nested as the shape"),
        "parameters": Schema(type=OpenAPIType.OBJECT),
    },
)
_RAW = Schema(type=OpenAPIType.STRING, content_media_type="application/octet-stream")
_REQUEST = Schema(
    type=OpenAPIType.OBJECT,
    required=["inputs"],
    properties={
        "id": Schema(type=OpenAPIType.STRING),
        "inputs": Schema(type=OpenAPIType.ARRAY, items=_TENSOR),
        "outputs": Schema(type=OpenAPIType.ARRAY, items=Schema(type=OpenAPIType.OBJECT)),
        "parameters": Schema(type=OpenAPIType.OBJECT),
    },
)


@dataclass
class InferOperation(Operation):
    """The body of an inference request: JSON, or JSON followed by binary tensors."""

    def __post_init__(self) -> None:
        """Add what the handler reads from the stream itself."""
        self.request_body = RequestBody(
            required=True,
            content={
                "application/json": OpenAPIMediaType(schema=_REQUEST),
                "application/octet-stream": OpenAPIMediaType(schema=_RAW),
            },
        )
        length = Parameter(
            name="Inference-Header-Content-Length",
            param_in="header",
            schema=Schema(type=OpenAPIType.INTEGER),
            description="size of the JSON part where binary tensors follow it",
        )
        self.parameters = [*(self.parameters or []), length]


def openapi_config() -> OpenAPIConfig:
    """The document at /schema/openapi.json alone: litestar's pages would load their scripts from other hosts."""
    return OpenAPIConfig(
        title="edge-inference-gateway",
        version=__version__,
        description="Open Inference Protocol v2 with Triton's extensions.",
        path="/schema",
        render_plugins=[JsonRenderPlugin()],
        openapi_router=Router("/schema", route_handlers=[], include_in_schema=False, after_request=_refuse_in_json),
        operation_id_creator=_operation_id,
    )


def _operation_id(_: HTTPRouteHandler, method: Method, path: list[str | PathParameterDefinition]) -> str:
    """Such as "get_v2_models_model_ready": unique for handlers with two paths too, as litestar's own are not."""
    parts = [part if isinstance(part, str) else part.name for part in path]
    return "_".join([str(getattr(method, "value", method)).lower(), *parts]).replace(".", "_")


def _refuse_in_json(response: Response[bytes]) -> Response[bytes]:
    """Litestar answers an unknown path below /schema with a page of HTML; every other error here is JSON."""
    if response.status_code != HTTPStatus.NOT_FOUND:
        return response
    body = Refusal(HTTPStatus.NOT_FOUND, "there is no such document; see /schema/openapi.json").body
    return Response(body, status_code=HTTPStatus.NOT_FOUND, media_type="application/json")
