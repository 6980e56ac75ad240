"""Source of frames as the command line names it: a file, the URL of a camera, or a V4L2 device. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from gateway.common.domain.errors import ConfigurationError
from gateway.common.domain.redaction import IN_PATH, without_secrets

SCHEMES = ("rtsp", "rtsps", "http", "https", "udp", "tcp")
DEVICES = "/dev/"
VIDEO_FORMATS = (
    *("mov", "matroska", "avi", "mpegts", "mpeg", "mpegvideo", "mxf", "nut", "ogg", "asf", "flv", "ivf", "obu"),
    *("mjpeg", "mpjpeg", "h264", "hevc", "m4v", "gif", "yuv4mpegpipe"),
)
"""FFmpeg's demuxers of videos: they read one file or stream. Others draw texts, or open files that an input names."""
FILE_OPTIONS = {"protocol_whitelist": "file", "format_whitelist": ",".join(VIDEO_FORMATS)}
CAMERA_OPTIONS = {
    "protocol_whitelist": "rtp,srtp,udp,tcp,tls,http,https,httpproxy",
    "format_whitelist": ",".join((*VIDEO_FORMATS, "rtsp", "rtp")),
}
"""FFmpeg's options for cameras."""
PLAYLIST_OPTIONS = {**CAMERA_OPTIONS, "format_whitelist": f"{CAMERA_OPTIONS['format_whitelist']},hls"}
"""FFmpeg's options for playlists (HLS). They name no file of this machine, but any address of the network."""
RTSP_OPTIONS = {**CAMERA_OPTIONS, "rtsp_flags": "prefer_tcp"}
"""FFmpeg's options for RTSP: TCP first, for packets that UDP loses would be frames with errors."""
_ADDRESS = re.compile(r"(?<=://)[^\s]*@")
_SECRET = re.compile(r"(?<=://)[^/\s]*@")
_PATH = re.compile(r"(?<=://)([^/\s]*)(/\S*)")


@dataclass(frozen=True, slots=True)
class VideoSource:
    """Source of frames. `live`: it has its own pace and does not end. `format`: FFmpeg's, "" if it is detected."""

    address: str
    live: bool = False
    format: str = ""
    options: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        """Return the address without what is secret in it."""
        return without_secrets(without_secret(self.address)) if self.live else self.address


def file_source(name: str) -> VideoSource:
    """Return the source of a file. It is read as a file whatever its name, and as a video whatever its content."""
    return VideoSource(str(Path(name).absolute()), options=FILE_OPTIONS)


def camera_source(text: str, file: str = "a file is named with --video") -> VideoSource:
    """Read the URL or device of a camera; `file` says how a file is named. Raises ConfigurationError."""
    if text.startswith(DEVICES):
        return VideoSource(text, live=True, format="v4l2")
    try:
        parts = urlsplit(text)
        known = parts.scheme in SCHEMES and parts.hostname and (parts.port or True)
    except ValueError:
        known = ""
    if not known:
        shown = _ADDRESS.sub("…", text)  # a password with "/" or "#" in it makes no URL, and must not be shown
        raise ConfigurationError(
            f"{shown!r:.120} is no camera; write rtsp://host/path, another URL ({', '.join(SCHEMES)}), "
            f"or a device such as /dev/video0; {file}",
            key="--camera",
        )
    is_playlist = parts.path.lower().endswith(".m3u8")
    other = PLAYLIST_OPTIONS if is_playlist else CAMERA_OPTIONS
    return VideoSource(text, live=True, options=RTSP_OPTIONS if parts.scheme.startswith("rtsp") else other)


def without_secret(text: str) -> str:
    """Return text with user name and password of URLs left out, also where they are a part of the path."""
    return _PATH.sub(lambda found: found[1] + IN_PATH.sub("…", found[2]), _SECRET.sub("", text))
