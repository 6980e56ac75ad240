"""HTTP/2 server connection without I/O (RFC 9113, RFC 7541).

It takes bytes and returns events, and returns the bytes to write on request. It has only the parts that a gRPC server
needs: no push, no priorities, no upgrade from HTTP/1.1. It is independent of gRPC.
"""
