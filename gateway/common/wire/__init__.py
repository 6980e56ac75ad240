"""HTTP/1.1 and its sockets, for the servers of the device and of the controller.

It is independent of routes, callers and message texts. `connection` loads uvicorn, which `listeners` imports late.
"""
