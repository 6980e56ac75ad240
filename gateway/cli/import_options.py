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
    parser.add_argument(
        "--into", type=named, default=None, metavar="DIR", help="model directory (default: --models, [models] dir)"
    )
    parser.add_argument(
        "--from", dest="kind", choices=KINDS, default=None, help="kind of the source (default: recognised)"
    )
    for option, what in (("--name", "name of the model"), ("--version", "its version (default: 1)")):
        parser.add_argument(option, type=named, default=None, help=f"{what}, if the source has only one")
    parser.add_argument("--dry-run", action="store_true", default=False, help="show what would be written")
    parser.add_argument(
        "--skip",
        action="store_true",
        default=False,
        help="exit 0 although some models cannot be served and are skipped",
    )
