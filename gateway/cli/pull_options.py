"""Options of `edge-gateway models pull`."""

from __future__ import annotations

import argparse
from functools import partial

from gateway.terminal.numbers import positive
from gateway.terminal.program import named

STYLES = ("path", "virtual")
PULL_EXAMPLES = (
    "  edge-gateway models pull oci://registry.example/models/detector@sha256:DIGEST --into models\n"
    "  edge-gateway models pull https://files.example/detector.onnx#sha256=DIGEST --into models --name detector\n"
    "  edge-gateway models pull s3://models/detector-2.tar.gz --digest sha256:DIGEST --into models --json"
)


def pull_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `models pull`."""
    add = partial(parser.add_argument, default=None)
    add("--into", type=named, metavar="DIR", help="the model directory that gets the release")
    add("--name", type=named, help="name of a bare model (default: that of its file)")
    add("--version", type=named, help="its version (default 1)")
    add("--digest", type=named, metavar="sha256:…", help="digest of the file or manifest")
    add("--accept-tag", action="store_true", default=False, help="take what the tag names now, and print its digest")
    add("--credentials-file", type=named, metavar="FILE", help="Docker's config.json or, for s3, Amazon's credentials")
    add("--limit-bytes", type=positive, default=0, metavar="N", help="largest release (default 16 GiB)")
    add("--endpoint", type=named, metavar="URL", help="s3: the service, if not Amazon's")
    add("--region", type=named, metavar="R", help="s3: the region (default us-east-1)")
    add("--style", choices=STYLES, default="", help="s3: where a URL names the bucket")
