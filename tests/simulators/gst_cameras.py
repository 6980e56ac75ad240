"""RTSP server of GStreamer with cameras of many kinds. Debian's python3 runs this file, which has GStreamer's bindings.

It prints the ports of a server without and of one with a password. Commands are lines of its standard input, and each
is answered with its own line: `freeze NAME`, `go NAME`, `size NAME W H`, and `cut`, which ends every connection.
"""

import sys
import threading
from typing import Any

import gi  # type: ignore[import-not-found]

gi.require_version("Gst", "1.0")
gi.require_version("GstRtsp", "1.0")
gi.require_version("GstRtspServer", "1.0")
from gi.repository import GLib, Gst, GstRtsp, GstRtspServer  # type: ignore[import-not-found]  # noqa: E402

USER, PASSWORD = "admin", "s3cret"
PAYLOAD = "rtph264pay config-interval=-1"
H264 = f"x264enc speed-preset=ultrafast tune=zerolatency key-int-max=10 ! {PAYLOAD}"
B_FRAMES = f"x264enc speed-preset=faster bframes=3 key-int-max=10 ! video/x-h264,profile=main ! {PAYLOAD}"
RGB = f"video/x-raw,format=Y444 ! x264enc tune=zerolatency ! video/x-h264,profile=high-4:4:4 ! {PAYLOAD}"
CAMERAS = {
    "h264": (128, 64, "10/1", H264),
    "b-frames": (128, 64, "10/1", B_FRAMES),
    "h265": (128, 64, "10/1", "x265enc speed-preset=ultrafast tune=zerolatency key-int-max=10 ! rtph265pay"),
    "jpeg": (128, 64, "10/1", "video/x-raw,format=I420 ! jpegenc ! rtpjpegpay"),
    "8k": (7680, 4320, "1/1", H264),
    "tiny": (1, 1, "10/1", RGB),
    "rare": (128, 64, "1/4", H264),
}
medias: dict[str, Any] = {}


def pipeline(width: int, height: int, rate: str, encoder: str) -> str:
    """Return the description of one camera, whose frames pass a valve."""
    raw = f"video/x-raw,width={width},height={height},framerate={rate}"
    source = f"videotestsrc is-live=true pattern=ball ! capsfilter name=size caps={raw} ! valve name=valve"
    return f"( {source} ! videoconvert ! {encoder} name=pay0 pt=96 )"


def server(*, locked: bool) -> Any:
    """Return a server with all cameras; a locked one asks for USER and PASSWORD by digest."""
    found = GstRtspServer.RTSPServer()
    found.set_address("127.0.0.1")
    found.set_service("0")
    permissions = GstRtspServer.RTSPPermissions()
    if locked:
        auth, token = GstRtspServer.RTSPAuth(), GstRtspServer.RTSPToken()
        token.set_string("media.factory.role", "user")
        auth.set_supported_methods(GstRtsp.RTSPAuthMethod.DIGEST)
        auth.add_digest(USER, PASSWORD, token)
        found.set_auth(auth)
        permissions.add_permission_for_role("user", "media.factory.access", True)
        permissions.add_permission_for_role("user", "media.factory.construct", True)
    for name, parts in CAMERAS.items():
        factory = GstRtspServer.RTSPMediaFactory()
        factory.set_launch(pipeline(*parts))
        factory.set_shared(True)
        if locked:
            factory.set_permissions(permissions)
        factory.connect("media-configure", lambda _factory, media, name: medias.update({name: media}), name)
        found.get_mount_points().add_factory(f"/{name}", factory)
    found.attach(None)
    return found


def obey(servers: list[Any], line: str) -> bool:
    """Carry out one command."""
    word, *rest = line.split()
    if word == "cut":
        for each in servers:
            each.client_filter(lambda *_: GstRtspServer.RTSPFilterResult.REMOVE)
    elif word in {"freeze", "go"}:
        medias[rest[0]].get_element().get_by_name("valve").set_property("drop", word == "freeze")
    elif word == "size":
        name, width, height = rest
        raw = f"video/x-raw,width={width},height={height},framerate=10/1"
        medias[name].get_element().get_by_name("size").set_property("caps", Gst.Caps.from_string(raw))
    print(line, flush=True)
    return False


def main() -> None:
    """Serve until standard input ends."""
    Gst.init(None)
    loop, servers = GLib.MainLoop(), [server(locked=False), server(locked=True)]
    print(*(each.get_bound_port() for each in servers), flush=True)

    def listen() -> None:
        for line in sys.stdin:
            GLib.idle_add(obey, servers, line.strip())
        loop.quit()

    threading.Thread(target=listen, daemon=True).start()
    loop.run()


if __name__ == "__main__":
    main()
