"""`edge-fleet verify`: check a whole published repository, file by file; 1 on findings."""

from __future__ import annotations

import argparse
from pathlib import Path

from fleet.cli.common import byte_progress, now, workspace
from fleet.publisher.verify import Expiry, Report, stated_bytes, verify
from gateway.common.domain.errors import ConfigurationError
from gateway.common.domain.release_form import TIME_FORMAT
from gateway.common.terminal.tables import counted, mark, print_json, print_table


def command(arguments: argparse.Namespace) -> int:
    """Print expiries and findings. Return 1 if there are findings."""
    work = workspace(arguments)
    folder = Path(arguments.folder) if arguments.folder else work.public
    if not folder.is_dir():
        raise ConfigurationError("is not a folder; name a published repository", file=str(folder))
    with byte_progress("hashing", stated_bytes(folder, work.settings)) as advance:
        report = verify(folder, now(), work.settings, advance)
    if arguments.json:
        print_json(report_json(report))
    else:
        rows = [
            (e.what, str(e.version), mark(e.days > 0), f"{e.expires:%Y-%m-%d %H:%M}", f"{e.days:.1f}")
            for e in report.expiries
        ]
        if rows:
            print_table(("document", "version", "valid", "until (UTC)", "days left"), rows)
            print()
        print(f"{counted(report.files, 'file')} hashed, {counted(report.size_bytes, 'byte')}")
        if report.findings:
            print()
            print_table(
                ("where", "what is wrong", "what to do"), [(f.where, f.problem, f.remedy) for f in report.findings]
            )
        else:
            print("every signature, threshold, version, digest and expiry is correct")
    return 1 if report.findings else 0


def report_json(report: Report) -> dict[str, object]:
    """Return the document that `--json` prints."""
    return {
        "ok": not report.findings,
        "findings": [{"where": f.where, "problem": f.problem, "remedy": f.remedy} for f in report.findings],
        "expiries": [expiry_json(expiry) for expiry in report.expiries],
        "files": report.files,
        "bytes": report.size_bytes,
    }


def expiry_json(expiry: Expiry) -> dict[str, object]:
    """Return the expiry of one document as a JSON object."""
    expires = expiry.expires.strftime(TIME_FORMAT)
    return {"what": expiry.what, "version": expiry.version, "expires": expires, "days_left": round(expiry.days, 2)}
