"""Options and examples of the verbs that draft models, programs, settings, profiles and policies."""

from __future__ import annotations

import argparse

from fleet.cli.options import Options, drafting_options
from gateway.common.terminal.program import Verb, named


def _software(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "action", choices=("add", "withdraw"), help="add: check each DIR and draft the release; withdraw: draft its end"
    )
    parser.add_argument(
        "wheels",
        metavar="DIR|RELEASE",
        nargs="+",
        help="add: wheels for one kind of device, pip's own among them; withdraw: @software/PROGRAM/VERSION",
    )
    parser.add_argument("--floor", type=named, metavar="V", help="the oldest version still allowed (default: as it is)")
    parser.add_argument("--python", type=named, metavar="3.N", help="Python of the devices, if no wheel names it")
    parser.add_argument("--machine", type=named, metavar="M", help="x86_64 or aarch64, if no wheel names it")
    parser.add_argument("--edge-software", type=named, metavar="PATH", help="the program that checks wheels")
    drafting_options(parser)


def _settings(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "action", choices=("add", "withdraw"), help="add: check FILE and draft the release; withdraw: draft its end"
    )
    parser.add_argument(
        "what",
        metavar="FILE|RELEASE",
        help="add: a part of edge-gateway.toml (empty: removes the settings); withdraw: @settings/NAME/VERSION",
    )
    parser.add_argument(
        "--name", type=named, metavar="NAME", help="add: a site or a class of devices; each name has its own versions"
    )
    parser.add_argument("--version", type=named, metavar="V", help="add: its version (default: the next whole number)")
    parser.add_argument("--floor", type=named, metavar="V", help="the oldest version still allowed (default: as it is)")
    _edge_gateway(parser)
    drafting_options(parser)


def _edge_gateway(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--edge-gateway",
        type=named,
        metavar="PATH",
        help="the program that checks (default: in this one's folder, else in PATH)",
    )


def _model(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "action", choices=("add", "withdraw"), help="add: check DIR and draft its release; withdraw: draft its end"
    )
    parser.add_argument(
        "what",
        metavar="DIR|RELEASE",
        help="add: folder …/NAME/VERSION with manifest.toml or pipeline.toml; withdraw: OWNER/MODEL/VERSION",
    )
    parser.add_argument("--owner", type=named, metavar="O", help="add: the owner, who signs it")
    parser.add_argument(
        "--slot",
        type=named,
        metavar="S",
        action="append",
        default=[],
        help="add: a slot that the release is for, so that it may follow another model there; repeatable",
    )
    parser.add_argument(
        "--changes-signature",
        action="store_true",
        help="add: let it follow a release with other inputs or outputs; clients have to be ready for that",
    )
    parser.add_argument(
        "--remove",
        action="store_true",
        help="withdraw: order each device that runs it to stop at once, whatever its policy; for emergencies",
    )
    parser.add_argument("--floor", type=named, metavar="V", help="the oldest version still allowed (default: as it is)")
    _edge_gateway(parser)
    drafting_options(parser)


def _file(kind: str) -> Options:
    def options(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("action", choices=("add",), help=f"add: check FILE and draft the role {kind}")
        parser.add_argument("file", metavar="FILE", help="the file; its name is kept")
        parser.set_defaults(kind=kind)
        drafting_options(parser)

    return options


RELEASE_VERBS = (
    Verb(
        "model",
        "model",
        "check a model's folder (digests, golden sets) and draft its release for the owner; or withdraw a release",
        "  edge-fleet model add models/meter-reader/2 --owner acme\n"
        "  edge-fleet model add models/meter-reader/3 --owner acme --floor 2\n"
        "  edge-fleet model add models/meter-reader/4 --owner acme \\\n"
        "      --url https://fleet.example:8443        # at the controller, as from CI\n"
        "  edge-fleet model withdraw acme/meter-reader/2    # never offered again\n"
        "  edge-fleet model withdraw acme/meter-reader/2 --remove  # stopped at once",
        _model,
    ),
    Verb(
        "software",
        "software",
        "check folders of wheels and draft them as a new version of the programs on devices; or withdraw one",
        "  edge-fleet software add wheels\n  edge-fleet software add wheels-x86_64 wheels-aarch64 --floor 0.2.0\n"
        "  edge-fleet software withdraw @software/edge-gateway/0.3.0",
        _software,
    ),
    Verb(
        "settings",
        "settings",
        "check settings for devices, a part of edge-gateway.toml, and draft them as a release; or withdraw one",
        "  edge-fleet settings add site.toml --name berlin\n"
        "  edge-fleet settings add site.toml --name berlin --version 7 --floor 5\n"
        "  edge-fleet settings withdraw @settings/berlin/7",
        _settings,
    ),
    Verb(
        "profile",
        "files",
        "check a device profile and draft it",
        "  edge-fleet profile add device_profiles/jetson-orin.toml",
        _file("profiles"),
    ),
    Verb("policy", "files", "check a policy and draft it", "  edge-fleet policy add hours.json", _file("policy")),
)
