"""Open Inference Protocol v2 over gRPC, in Triton's dialect.

`service` answers messages independently of any transport. `transport` is the server, on `http2`; `calls` describes
what it calls. `codec` reads and writes the messages.
"""
