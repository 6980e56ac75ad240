"""The gateway's own gRPC server (decisions/0013): sockets, connections, and calls on the streams of `http2`.

`server` and `sockets` accept connections. `connection` is one connection. `unary` and `streaming` are its calls.
"""
