"""`edge-fleet releases` and `rollouts`: options and examples."""

from __future__ import annotations

import argparse

from fleet.cli.options import Options, VerbAction, actions, limit_option
from fleet.cli.rollouts_options import WAVES, day, digest, duration, waves
from gateway.common.terminal.numbers import number, positive, whole
from gateway.common.terminal.program import Verb, named

STATES = ("draft", "approved", "running", "paused", "standing", "finished", "aborted")
DEVICE_STATES = ("pending", "offered", "downloading", "probation", "committed", "rolled_back", "failed", "silent")


def _releases_list(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", type=named, metavar="MODEL", help="only releases of this model")
    limit_option(parser)


def _releases_show(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("release", metavar="OWNER/MODEL/VERSION", type=named, help="such as acme/meter-reader/2")


def _spec(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--spec", type=named, metavar="FILE", help="a specification, .json or .toml; options change it")
    what = parser.add_argument_group("what, and for which devices")
    what.add_argument("--target", type=named, metavar="OWNER/MODEL/VERSION", help="the release")
    what.add_argument("--slot", type=named, metavar="SLOT", help="the model's name on the device (default: MODEL)")
    what.add_argument("--name", type=named, metavar="NAME", help="of the rollout (default: SLOT-VERSION)")
    what.add_argument("--query", type=named, metavar="QUERY", help="which devices, as 'tag = pilot' (default: all)")
    later = what.add_mutually_exclusive_group()
    later.add_argument("--static", action="store_true", help="devices that match later do not join")
    later.add_argument(
        "--standing", action="store_true", help="stay the target after the end: devices that match later get it, too"
    )
    how = parser.add_argument_group("how fast (TIME is 90s, 15m, 2h or 1d)")
    how.add_argument(
        "--waves",
        type=waves,
        metavar="W,W,…",
        help=f"N%% reached, or N more; '!' needs approval (default {WAVES.replace('%', '%%')})",
    )
    how.add_argument("--canary", type=positive, metavar="N", help="devices of each kind of accelerators go first")
    for option, what_for in (
        ("--canary-soak", "how long canaries are watched (default: as --soak)"),
        ("--soak", "how long a wave is watched before the next (default 1h)"),
        ("--silence", "a device that is silent for so long has failed (default 1d)"),
        ("--deadline", "a device that is not done so long after its offer has failed (default 7d)"),
        ("--backoff", "pause before a failed device tries again, then doubling (default 1h)"),
    ):
        how.add_argument(option, type=duration, metavar="TIME", dest=f"{option[2:].replace('-', '_')}_s", help=what_for)
    how.add_argument(
        "--retries", type=positive, metavar="N", help="how often a failed device tries again (default: never)"
    )
    judged = parser.add_argument_group("when a wave has passed, and when the rollout halts")
    judged.add_argument(
        "--success-percent", type=number, metavar="P", help="percent of a wave's devices that must commit (default 95)"
    )
    judged.add_argument("--success-sample", type=positive, metavar="N", help="and at least so many devices (default 1)")
    judged.add_argument(
        "--failed-percent", type=number, metavar="P", help="percent; halt if more failed, beyond doubt (default 5)"
    )
    judged.add_argument(
        "--failed-sample", type=positive, metavar="N", help="no halt before so many are done (default 5)"
    )
    judged.add_argument(
        "--rollback",
        choices=("offered", "forced"),
        help="after a halt: an operator decides (the default), or all go back",
    )


def _create(parser: argparse.ArgumentParser) -> None:
    _spec(parser)
    parser.add_argument("--start", action="store_true", help="approve and start it at once")


def _revise(parser: argparse.ArgumentParser) -> None:
    _one(parser)
    _spec(parser)
    seen = "spec digest that you saw (`rollouts show`): refuse if another operator revised the draft since"
    parser.add_argument("--replaces", metavar="DIGEST", help=seen)


def _list(parser: argparse.ArgumentParser) -> None:
    states = f"only rollouts in this state: {', '.join(STATES)}"
    parser.add_argument("--state", choices=STATES, metavar="STATE", help=states)
    parser.add_argument("--archived", action="store_true", help="also archived ones")
    limit_option(parser)


def _archive(parser: argparse.ArgumentParser) -> None:
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("rollout", metavar="ROLLOUT", nargs="?", type=named, help="its id, as the list shows it")
    what.add_argument("--before", type=day, metavar="DATE", help="all that ended before it: 2027-01-31, or a time")


def _one(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("rollout", metavar="ROLLOUT", type=named, help="its id, as the list shows it")


def _why(parser: argparse.ArgumentParser) -> None:
    _one(parser)
    parser.add_argument("--because", type=named, metavar="WHY", help="reason, for the record")


def _approve(parser: argparse.ArgumentParser) -> None:
    _one(parser)
    parser.add_argument("--spec", type=digest, metavar="DIGEST", help="approve this specification only: no question")
    parser.add_argument("--yes", action="store_true", help="do not ask")


def _approve_wave(parser: argparse.ArgumentParser) -> None:
    _one(parser)
    parser.add_argument("wave", metavar="WAVE", type=positive, help="its number: the first after the canary is 1")


def _devices(parser: argparse.ArgumentParser) -> None:
    _one(parser)
    states = f"only devices in this state: {', '.join(DEVICE_STATES)}"
    parser.add_argument("--state", choices=DEVICE_STATES, metavar="STATE", help=states)
    parser.add_argument("--wave", type=whole, metavar="N", help="only devices of this wave; 0 is the canary")
    limit_option(parser)


def _watch(parser: argparse.ArgumentParser) -> None:
    _one(parser)
    parser.add_argument("--timeout", type=duration, metavar="TIME", help="give up after that: 3 (default: never)")


RELEASES = Verb(
    "releases",
    "releases",
    "published and verified releases, from which rollouts are made",
    "  edge-fleet releases list --model meter-reader\n  edge-fleet releases show acme/meter-reader/2",
    actions(
        VerbAction("list", "releases by path", "  edge-fleet releases list --json", _releases_list),
        VerbAction(
            "show",
            "one release, and whether it may be rolled out",
            "  edge-fleet releases show acme/meter-reader/2",
            _releases_show,
        ),
    ),
)


def _simple(name: str, what: str, options: Options = _one, example: str = "") -> VerbAction:
    return VerbAction(name, what, f"  edge-fleet rollouts {name} r261121-114500-a1b2c3{example}", options)


ROLLOUTS = Verb(
    "rollouts",
    "rollouts",
    "bring a release to devices in waves: draft, approve, start, watch, pause, abort",
    "  edge-fleet rollouts preview --target acme/meter-reader/2 --query 'tag=pilot'\n"
    "  edge-fleet rollouts create --target acme/meter-reader/2 --query 'tag=pilot' \\\n"
    "      --canary 1 --waves 5%,25%,100%\n"
    "  edge-fleet rollouts approve r261121-114500-a1b2c3\n"
    "  edge-fleet rollouts start r261121-114500-a1b2c3\n"
    "  edge-fleet rollouts watch r261121-114500-a1b2c3",
    actions(
        VerbAction(
            "create",
            "draft a rollout; nothing happens before it is approved and started",
            "  edge-fleet rollouts create --spec meter-reader-2.toml\n"
            "  edge-fleet rollouts create --target acme/meter-reader/2 --rollback forced \\\n"
            "      --query 'site=berlin' --canary 2 --waves 5%,25%!,100% --soak 2h\n"
            "  edge-fleet rollouts create --target acme/meter-reader/2 --standing \\\n"
            "      --query 'tag=pilot'",
            _create,
        ),
        _simple("revise", "replace the specification of a draft", _revise, " --spec meter-reader-2.toml"),
        VerbAction(
            "preview",
            "which devices a specification would reach; nothing is created",
            "  edge-fleet rollouts preview --target acme/meter-reader/2 --canary 1",
            _spec,
        ),
        VerbAction("list", "rollouts, oldest first", "  edge-fleet rollouts list --state running", _list),
        _simple("show", "one rollout: its specification, and the state of its waves"),
        _simple("approve", "approve a draft: the one shown, or the one that --spec names", _approve, " --yes"),
        _simple("start", "offer the release, as waves and windows allow"),
        _simple("pause", "offer nothing until it is resumed", _why, " --because holidays"),
        _simple("resume", "continue; failures until now no longer count"),
        _simple("abort", "end it permanently, and withdraw its offers", _why, " --because superseded"),
        _simple("rollback", "after an abort: all devices get back what they had"),
        _simple("approve-wave", "let a wave begin that needs approval", _approve_wave, " 2"),
        VerbAction(
            "archive",
            "hide rollouts that are over from lists; nothing is deleted",
            "  edge-fleet rollouts archive r261121-114500-a1b2c3\n  edge-fleet rollouts archive --before 2027-01-31",
            _archive,
        ),
        _simple("restore", "show an archived rollout in lists again"),
        _simple("devices", "its devices and their states", _devices, " --state failed"),
        _simple("watch", "show its waves until it is over: 0 finished or standing, 1 aborted or halted", _watch),
        _simple("replay", "check that each recorded decision follows from the facts: 1 if not"),
    ),
)

ROLLOUT_VERBS = (RELEASES, ROLLOUTS)
