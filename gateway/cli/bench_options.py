"""Options of `edge-gateway bench`."""

from __future__ import annotations

import argparse

from gateway.terminal.numbers import interval, positive
from gateway.terminal.program import named

BENCH_EXAMPLES = (
    "  edge-gateway bench meter-reader\n"
    "  edge-gateway bench meter-reader --seconds 10 --frontends grpc,shm --concurrency 1,4,16\n"
    "  edge-gateway bench detector --models models --npz frame.npz --plot detector.svg\n"
    "  edge-gateway bench meter-reader --address 127.0.0.1:8000 --grpc-address 127.0.0.1:8001 --json"
)
DEFAULT_FRONT_ENDS, DEFAULT_CONCURRENCY, DEFAULT_SECONDS = "grpc,http,shm", "1,8", 5.0


def bench_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `bench`."""
    parser.add_argument("model", metavar="MODEL", help="a model's name")
    parser.add_argument("--model-version", metavar="V", default="", help="the version (default: the newest)")
    parser.add_argument(
        "--seconds", type=interval, metavar="S", default=DEFAULT_SECONDS, help="of each measurement (default 5)"
    )
    parser.add_argument(
        "--frontends", type=named, metavar="A,B", default=DEFAULT_FRONT_ENDS, help="of grpc, http, shm, mqtt"
    )
    parser.add_argument(
        "--concurrency", type=counts, metavar="N,M", default=DEFAULT_CONCURRENCY, help="connections (default 1,8)"
    )
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--image", type=named, metavar="F", help="a JPEG or PNG file (default: generated inputs)")
    source.add_argument("--npz", type=named, metavar="F", help="arrays by input name, as in a golden set")
    broker = "mqtt: the broker, mqtt://host:1883"
    parser.add_argument("--mqtt", type=named, dest="broker_url", metavar="URL", help=broker)
    parser.add_argument("--address", type=named, metavar="ADDR", help="a running gateway: host:port of its HTTP")
    parser.add_argument("--grpc-address", type=named, metavar="ADDR", help="and host:port of its gRPC")
    parser.add_argument("--token-file", type=named, metavar="FILE", help="with --address: file with the caller's token")
    parser.add_argument("--plot", type=named, metavar="FILE", help="write histograms as SVG")


def counts(text: str) -> tuple[int, ...]:
    """Parse whole numbers above 0, separated by commas; each once."""
    return tuple(dict.fromkeys(positive(part) for part in text.split(",")))
