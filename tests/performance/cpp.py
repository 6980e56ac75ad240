"""C++ programs of the bench, built once per content of their sources: a real gRPC client, and a plain server."""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path

from tests.simulators.daemon import ROOT

HERE, BUILT = Path(__file__).parent, ROOT / ".bench"
PROTOS = ROOT / "gateway" / "frontends" / "grpc_v2"
COMPILE = ("g++", "-std=c++17", "-O2", "-Wl,--copy-dt-needed-entries")
GRPC = ("-lgrpc++", "-lgrpc")
PLUGIN = "/usr/bin/grpc_cpp_plugin"
ONNX_RUNTIME = "libonnxruntime.so.1"


def caller() -> Path:
    """Build caller.cc: C-core's C++ client."""
    return _built(HERE / "caller.cc", *GRPC)


def plain() -> Path:
    """Build plain.cc: a server of C-core's C++ API, protobuf, and the ONNX Runtime that Python has."""
    protoc = ("protoc", f"-I{PROTOS}", "inference.proto")
    _run(*protoc, f"--cpp_out={_folder()}", f"--grpc_out={BUILT}", f"--plugin=protoc-gen-grpc={PLUGIN}")
    generated = [str(BUILT / f"inference{kind}.pb.cc") for kind in ("", ".grpc")]
    library = _onnx_runtime()
    return _built(HERE / "plain.cc", f"-I{BUILT}", *generated, *GRPC, "-lprotobuf", str(library), "-Wl,-rpath,$ORIGIN")


def _onnx_runtime() -> Path:
    """Link to the library in Python's package, under the name that programs look for."""
    import onnxruntime

    (library,) = (Path(onnxruntime.__file__).parent / "capi").glob("libonnxruntime.so.*")
    link = _folder() / ONNX_RUNTIME
    link.unlink(missing_ok=True)
    link.symlink_to(library)
    return link


def _folder() -> Path:
    BUILT.mkdir(exist_ok=True)
    return BUILT


def _built(source: Path, *words: str) -> Path:
    program = _folder() / f"{source.stem}-{hashlib.sha256(source.read_bytes()).hexdigest()[:12]}"
    if not program.exists():
        _run(*COMPILE, str(source), "-o", str(program), *words)
    return program


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{command[0]} failed; run `make debian-test`:\n{done.stderr}")
