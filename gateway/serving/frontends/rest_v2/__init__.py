"""Open Inference Protocol over HTTP, with Triton's extensions, OpenAPI and the metrics page."""
