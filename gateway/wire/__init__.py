"""HTTP/1.1 and its sockets as every server here has them, the device's and the controller's. It knows no route, no
caller and no wording.

`connection` loads uvicorn, which `listeners` does late.
"""
