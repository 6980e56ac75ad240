"""Options of `edge-gateway models import`."""

from __future__ import annotations

import argparse

from gateway.terminal.program import named

KINDS = ("triton", "mlflow", "ovms", "ultralytics", "huggingface", "sklearn")
"""Kinds of sources (gateway.importing.sources), which the parser does not import."""
EXAMPLES = (
    "  edge-gateway models import /srv/triton/model_repository --into models\n"
    "  edge-gateway models import yolo11n.onnx --into models --name parking --dry-run\n"
)


def add_import_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the action `import`."""
    group = parser.add_argument_group("import: releases from models that were laid out for other servers and tools")
    group.add_argument("--into", type=named, metavar="DIR", help="model directory (default: --models, [models] dir)")
    group.add_argument("--from", dest="kind", choices=KINDS, help="kind of the source (default: recognised)")
    group.add_argument("--name", type=named, metavar="NAME", help="name of the model, if the source has only one")
    group.add_argument(
        "--version", type=named, metavar="V", help="its version, if the source has only one (default: 1)"
    )
    group.add_argument("--dry-run", action="store_true", help="show what would be written")
    group.add_argument(
        "--skip", action="store_true", help="exit 0 although some models cannot be served and are skipped"
    )
