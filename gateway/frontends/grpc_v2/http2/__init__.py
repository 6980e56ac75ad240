"""An HTTP/2 server connection without I/O (RFC 9113, RFC 7541): bytes in, events out, and what it
wants to say when asked.

Only what a gRPC server needs: no push, no priorities, no upgrade from HTTP/1.1. It knows nothing of gRPC.
"""
