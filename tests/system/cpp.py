"""The C++ client of `peers/client.cc`, built once per content with Debian's gRPC and kept in the user's cache."""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.system.installation import REPOSITORY, run

SOURCE = Path(__file__).with_name("peers") / "client.cc"
PROTOS = [REPOSITORY / "gateway/serving/frontends/grpc_v2/codec" / f"{name}.proto" for name in ("inference", "health")]
COMPILE = ("g++", "-std=c++17", "-O0", "-c")  # 13 s of one core; -O2 takes several times as long
LINK = ("-Wl,--copy-dt-needed-entries", "-lgrpc++", "-lgrpc", "-lprotobuf")
PROGRAMS = ("g++", "protoc", "grpc_cpp_plugin")


@functools.cache
def client() -> Path:
    """Return the program, compiled if necessary; its usage stands at the head of its source."""
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    assert not missing, f"{', '.join(missing)} missing: run `make debian-test`"
    version = run("protoc", "--version").stdout
    told = hashlib.sha256(b"".join([version.encode(), *(file.read_bytes() for file in (SOURCE, *PROTOS))]))
    home = os.environ.get("XDG_CACHE_HOME") or str(Path("~/.cache").expanduser())
    program = Path(home) / "edge-inference-gateway" / f"client-{told.hexdigest()[:12]}"
    if not program.exists():
        program.parent.mkdir(parents=True, exist_ok=True)
        _build(program)
    return program


def _build(program: Path) -> None:
    with tempfile.TemporaryDirectory(dir=program.parent) as folder:
        scratch = Path(folder)
        plugin = f"--plugin=protoc-gen-grpc={shutil.which('grpc_cpp_plugin')}"
        outputs = (f"--cpp_out={scratch}", f"--grpc_out={scratch}", plugin)
        run("protoc", f"--proto_path={PROTOS[0].parent}", *outputs, *PROTOS)
        sources = [SOURCE, *scratch.glob("*.cc")]
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(functools.partial(_compile, scratch), sources))
        run("g++", *scratch.glob("*.o"), *LINK, "-o", scratch / "client")
        (scratch / "client").rename(program)


def _compile(scratch: Path, source: Path) -> None:
    run(*COMPILE, f"-I{scratch}", source, "-o", scratch / f"{source.stem}.o")
