"""Options of `edge-gateway infer`."""

from __future__ import annotations

import argparse
import math

from gateway.common.terminal.numbers import number, positive, span
from gateway.common.terminal.program import named

INFER_EXAMPLES = (
    "  edge-gateway infer meter-reader --image digit.png\n"
    "  edge-gateway infer detector --image street.jpg --draw found.png\n"
    "  edge-gateway infer activity --npz window.npz --output json\n"
    "  edge-gateway infer smollm2 --text 'Name three colours.'\n"
    "  edge-gateway infer meter-reader --json request.json --url 127.0.0.1:8000\n"
    "  edge-gateway infer meter-reader --image digit.png --url https://camera-7.lan --token-file token\n"
    "  edge-gateway infer detector --video street.mp4 --draw found.mp4\n"
    "  edge-gateway infer detector --video street.mp4 --rate max --output json\n"
    "  edge-gateway infer detector --camera rtsp://camera-7.lan/stream --rate 5\n"
    "  edge-gateway infer detector --camera /dev/video0 --seconds 60"
)
FASTEST = math.inf
"""Value of `--rate max`."""
RATE_MIN_PER_S, RATE_MAX_PER_S = 0.01, 1_000.0
WAIT_S = 180.0
"""Longest wait for a gateway that starts and a model that loads, unless --wait is given."""

MAX_TOKENS = 256


def infer_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `infer` that are not about the gateway."""
    parser.add_argument("model", metavar="MODEL", help="a model's name")
    parser.add_argument("--model-version", metavar="V", default="", help="the version (default: the newest)")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--image", metavar="F", action="append", help="a JPEG or PNG file; repeatable")
    source.add_argument("--npz", metavar="F", help="arrays by input name (or input.<name>, as in a golden set)")
    source.add_argument("--json", metavar="F", help="an Open Inference Protocol request body; - reads standard input")
    source.add_argument(
        "--text",
        metavar="TEXT",
        action="append",
        help="a text, repeatable; a language model takes one, the question of a chat, and answers word by word",
    )
    source.add_argument("--video", type=named, metavar="F", help="a video file, for the gateway that runs")
    source.add_argument(
        "--camera", type=named, metavar="URL", help="rtsp://…, another URL, or /dev/video0, for the gateway that runs"
    )
    parser.add_argument(
        "--max-tokens",
        type=positive,
        metavar="N",
        default=MAX_TOKENS,
        help=f"longest answer of a language model to --text (default: {MAX_TOKENS})",
    )
    parser.add_argument("--output", choices=("table", "json"), help="default: json with --json, else table")
    parser.add_argument(
        "--draw",
        type=named,
        metavar="F",
        help="draw boxes, masks, keypoints and labels into copies of the images; of a video into a .png with the last "
        "frame, or a .mp4 with all that were answered",
    )
    parser.add_argument(
        "--wait",
        type=number,
        metavar="S",
        default=WAIT_S,
        help=f"longest wait for a gateway that starts and a model that loads (default: {WAIT_S:g}; 0: none)",
    )
    video = parser.add_argument_group("with --video and --camera")
    video.add_argument(
        "--rate",
        type=rate,
        metavar="FPS",
        help="most frames per second (default: all that the source has); max: --video as fast as frames are answered, "
        "none is skipped",
    )
    video.add_argument("--frames", type=positive, metavar="N", help="end after N frames were sent")
    video.add_argument("--seconds", type=span, metavar="S", help="end after S seconds")


def rate(text: str) -> float:
    """Parse frames per second, or `max`."""
    if text == "max":
        return FASTEST
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not RATE_MIN_PER_S <= found <= RATE_MAX_PER_S:
        limits = f"from {RATE_MIN_PER_S:g} to {RATE_MAX_PER_S:g} frames per second, or max"
        raise argparse.ArgumentTypeError(f"must be {limits}, not {text!r:.40}")
    return found
