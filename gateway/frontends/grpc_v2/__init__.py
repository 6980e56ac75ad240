"""Open Inference Protocol v2 over gRPC, in Triton's dialect.

`service` answers messages independently of any transport. `grpcio_server` connects it to grpcio. Another transport
needs only `InferenceService.rpcs()`.
"""
