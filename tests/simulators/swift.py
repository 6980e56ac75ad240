"""OpenStack Swift, all servers in one process: `python -m tests.simulators.swift FOLDER USER KEY`.

Its `s3api` is a production S3 implementation. It prints its address, and serves until it is killed.
"""

from __future__ import annotations

import sys
from pathlib import Path

import eventlet

eventlet.monkey_patch()

from eventlet import wsgi  # noqa: E402  patch before Swift's imports
from paste.deploy import loadapp  # noqa: E402
from swift.common.ring import RingBuilder  # noqa: E402
from swift.common.storage_policy import reload_storage_policies  # noqa: E402
from swift.common.utils import set_swift_dir  # noqa: E402
from swift.common.wsgi import SwiftHttpProtocol  # noqa: E402

HOST, DEVICE = "127.0.0.1", "disk"
PARTS = ("account", "container", "object")
SHARED = """
[swift-hash]
swift_hash_path_suffix = tests
[storage-policy:0]
name = one
default = yes
"""
SERVER = """
[DEFAULT]
swift_dir = {folder}
devices = {folder}
mount_check = false
"""
PART = """
[app:main]
use = egg:swift#{kind}
"""
PROXY = """
[pipeline:main]
pipeline = catch_errors s3api tempauth slo proxy-server
[app:proxy-server]
use = egg:swift#proxy
account_autocreate = true
[filter:catch_errors]
use = egg:swift#catch_errors
[filter:s3api]
use = egg:swift#s3api
location = us-east-1
min_segment_size = 1
[filter:tempauth]
use = egg:swift#tempauth
user_{user} = {key} .admin
[filter:slo]
use = egg:swift#slo
"""


def main() -> None:
    """Run the servers."""
    folder, user, key = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    (folder / DEVICE).mkdir()
    (folder / "swift.conf").write_text(SHARED)
    set_swift_dir(str(folder))
    reload_storage_policies()
    listeners = {kind: eventlet.listen((HOST, 0)) for kind in (*PARTS, "proxy")}
    for kind in PARTS:
        _placed(folder, kind, listeners[kind].getsockname()[1])
        (folder / f"{kind}.conf").write_text((SERVER + PART).format(folder=folder, kind=kind))
    (folder / "proxy.conf").write_text((SERVER + PROXY).format(folder=folder, user=user.replace(":", "_"), key=key))
    servers = [_serving(folder, kind, listener) for kind, listener in listeners.items()]
    print(f"http://{HOST}:{listeners['proxy'].getsockname()[1]}", flush=True)
    servers[0].wait()


def _placed(folder: Path, kind: str, port: int) -> None:
    """Write the ring: all data are on one disk."""
    ring = RingBuilder(part_power=1, replicas=1, min_part_hours=1)
    ring.add_dev({"region": 1, "zone": 1, "weight": 1.0, "ip": HOST, "port": port, "device": DEVICE})
    ring.rebalance()
    ring.get_ring().save(str(folder / f"{kind}.ring.gz"))


def _serving(folder: Path, kind: str, listener: eventlet.greenio.GreenSocket) -> eventlet.greenthread.GreenThread:
    application = loadapp(f"config:{folder / kind}.conf")
    return eventlet.spawn(wsgi.server, listener, application, protocol=SwiftHttpProtocol, log_output=False)


if __name__ == "__main__":
    main()
