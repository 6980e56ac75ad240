"""Generator of `descriptors.binpb` from the .proto files: `python -m gateway.serving.frontends.grpc_v2.codec.generate`.

It needs grpcio-tools, which only developers install.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from gateway.serving.frontends.grpc_v2.codec.protocol import DESCRIPTORS

PROTOS = ("health.proto", "inference.proto", "reflection_v1.proto", "reflection_v1alpha.proto")


def compile_protos() -> bytes:
    """Return the serialized FileDescriptorSet of PROTOS. Raises RuntimeError if protoc refuses one of them."""
    from grpc_tools import protoc  # type: ignore[import-untyped]

    folder = str(Path(__file__).parent)
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch) / "set"
        status = protoc.main(["protoc", f"--proto_path={folder}", f"--descriptor_set_out={out}", *PROTOS])
        if status:
            raise RuntimeError(f"protoc exited with {status}; see its messages above")
        return out.read_bytes()


if __name__ == "__main__":
    DESCRIPTORS.write_bytes(compile_protos())
