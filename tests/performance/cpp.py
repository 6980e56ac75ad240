"""C++ programs of the bench, built once per content of their sources: a real gRPC client, and a plain server."""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path

from tests.simulators.daemon import ROOT

HERE, BUILT = Path(__file__).parent, ROOT / ".bench"
PROTO = ROOT / "gateway/serving/frontends/grpc_v2/codec/inference.proto"
COMPILE = ("g++", "-std=c++17", "-O2", "-Wl,--copy-dt-needed-entries")
GRPC = ("-lgrpc++", "-lgrpc")
PLUGIN = "/usr/bin/grpc_cpp_plugin"
ONNX_RUNTIME = "libonnxruntime.so.1"


def caller() -> Path:
    """Build caller.cc: C-core's C++ client."""
    program = _program(HERE / "caller.cc")
    if not program.exists():
        _run(*COMPILE, str(HERE / "caller.cc"), "-o", str(program), *GRPC)
    return program


def plain() -> Path:
    """Build plain.cc: a server of C-core's C++ API, protobuf, and the ONNX Runtime that Python has."""
    library, program = _onnx_runtime(), _program(HERE / "plain.cc", PROTO)
    if not program.exists():
        protoc = ("protoc", f"-I{PROTO.parent}", PROTO.name)
        _run(*protoc, f"--cpp_out={BUILT}", f"--grpc_out={BUILT}", f"--plugin=protoc-gen-grpc={PLUGIN}")
        generated = [str(BUILT / f"{PROTO.stem}{kind}.pb.cc") for kind in ("", ".grpc")]
        words = (f"-I{BUILT}", *generated, *GRPC, "-lprotobuf", str(library), "-Wl,-rpath,$ORIGIN")
        _run(*COMPILE, str(HERE / "plain.cc"), "-o", str(program), *words)
    return program


def _onnx_runtime() -> Path:
    """Link to the library in Python's package, under the name that programs look for."""
    import onnxruntime

    (library,) = (Path(onnxruntime.__file__).parent / "capi").glob("libonnxruntime.so.*")
    BUILT.mkdir(exist_ok=True)
    link = BUILT / ONNX_RUNTIME
    link.unlink(missing_ok=True)
    link.symlink_to(library)
    return link


def _program(*sources: Path) -> Path:
    """Return the place of a program, which changes with its sources."""
    BUILT.mkdir(exist_ok=True)
    content = b"".join(source.read_bytes() for source in sources)
    return BUILT / f"{sources[0].stem}-{hashlib.sha256(content).hexdigest()[:12]}"


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{command[0]} failed; run `make debian-test`:\n{done.stderr}")
