"""The controller's HTTP server: bounded connections, mutual TLS, identity, limits, errors. It contains no routes.

`server` loads uvicorn and composes the middleware.
"""
