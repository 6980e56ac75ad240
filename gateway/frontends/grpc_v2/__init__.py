"""Open Inference Protocol v2 over gRPC, in Triton's dialect.

`service` answers messages and knows no transport; `grpcio_server` carries it over grpcio. Another transport needs
only `InferenceService.rpcs()`.
"""
