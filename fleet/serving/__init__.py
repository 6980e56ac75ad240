"""The controller's HTTP server: bounded connections, mutual TLS, who asks, limits, problems. It knows no route.

`server` loads uvicorn, `stack` puts the parts in their order.
"""
