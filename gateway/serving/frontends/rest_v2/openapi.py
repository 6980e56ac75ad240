"""Parts of OpenAPI that the endpoints' signatures do not contain."""

from __future__ import annotations

from dataclasses import dataclass

from litestar.openapi.spec import (
    OpenAPIMediaType,
    OpenAPIType,
    Operation,
    Parameter,
    RequestBody,
    Schema,
)

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
    """Body of an inference request: JSON, or JSON followed by binary tensors."""

    def __post_init__(self) -> None:
        """Add the body that the handler reads from the stream itself."""
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
            description="size of the JSON part where binary tensors follow it; 0: the body is the only input's bytes",
        )
        self.parameters = [*(self.parameters or []), length]


@dataclass
class ResultOperation(InferOperation):
    """Body of a request for a task's result: an inference request, or one image or recording."""

    def __post_init__(self) -> None:
        """Add images and recordings to the bodies of an inference request."""
        super().__post_init__()
        if isinstance(self.request_body, RequestBody):
            encoded = {media: OpenAPIMediaType(schema=_RAW) for media in ("image/jpeg", "image/png", "audio/wav")}
            self.request_body.content = {**self.request_body.content, **encoded}


@dataclass
class GenerateOperation(Operation):
    """Body of a request of the generate extension: a flat JSON object."""

    def __post_init__(self) -> None:
        """Add the body that the handler reads from the stream itself."""
        schema = Schema(
            type=OpenAPIType.OBJECT,
            properties={
                "text_input": Schema(type=OpenAPIType.STRING, description="or the model's own name of its input"),
                "id": Schema(type=OpenAPIType.STRING),
                "parameters": Schema(type=OpenAPIType.OBJECT),
            },
        )
        self.request_body = RequestBody(required=True, content={"application/json": OpenAPIMediaType(schema=schema)})
