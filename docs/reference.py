"""Reference pages that are made from the code and from the sample configurations."""

from __future__ import annotations

import argparse
from pathlib import Path

from docs.terminal import PROGRAMS, parsers
from gateway.common.domain.problem import HTTP_STATUS, WAITING_HELPS
from gateway.serving.frontends.grpc_v2.transport.replies import GRPC_STATUS

SAMPLES = {
    "edge-gateway-reference.toml": "The gateway",
    "edge-agent.toml": "The update agent",
    "edge-software.toml": "The installer of new versions",
    "fleet.toml": "The fleet controller",
}


def commands(_root: Path) -> str:
    """Return the help of every verb of the four programs."""
    parts = ["# Commands", "What each program says with `--help`."]
    for program in PROGRAMS.values():
        parts += [text for parser in parsers(program.parser()) for text in _command(parser)]
    return "\n\n".join(parts)


def _command(parser: argparse.ArgumentParser) -> tuple[str, str]:
    return f"{'#' * min(4, parser.prog.count(' ') + 2)} {parser.prog}", _block(parser.format_help())


def settings(root: Path) -> str:
    """Return the sample configurations, which name every setting with its default and unit."""
    parts = [
        "# Settings",
        "Every setting with its default and its unit. `edge-gateway config check FILE` checks a file.",
    ]
    for name, title in SAMPLES.items():
        parts += [f"## {title}: {name}", _block((root / "packaging" / name).read_text("utf-8"), "toml")]
    return "\n\n".join(parts)


def errors(_root: Path) -> str:
    """Return the table of faults and their status on each protocol."""
    rows = [
        f"| {fault.name} | {GRPC_STATUS[fault]} | {status} | {'yes' if fault in WAITING_HELPS else 'no'} |"
        for fault, status in HTTP_STATUS.items()
    ]
    head = ["| fault | gRPC | HTTP | a later attempt may succeed |", "| --- | --- | --- | --- |"]
    text = "Refusals of gRPC, HTTP and MQTT. A refusal that waiting helps against says after which time to try again."
    return "\n".join(["# Errors", text, "", *head, *rows])


def _block(text: str, language: str = "text") -> str:
    return f"```{language}\n{text.rstrip()}\n```"
