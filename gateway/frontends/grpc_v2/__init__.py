"""Open Inference Protocol v2 over gRPC, in Triton's dialect.

`service` answers messages independently of any transport. Two transports use it: `transport`, the gateway's own server
on `http2`, and `grpcio`. Another one needs only `InferenceService.rpcs()`, described in `calls`. `codec` reads and
writes the messages.
"""
