"""Take models of packages on the way of their users: `python -m tests.world.journeys`.

Each model is served as a bare file, described by `models new`, quantized by `models quantize`, and served again.
Answers must be those of the package's own code, within the bounds of each journey. Exit code 1 if one is not.
"""

from __future__ import annotations

import argparse
import json
import shutil
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.simulators.daemon import ROOT
from tests.world.journeys import hands, ocr, sounds, tables, vision
from tests.world.journeys.record import Journey
from tests.world.journeys.report import document, markdown, print_outcomes
from tests.world.journeys.steps import JourneyError, Outcome, travel

JOURNEYS = (*ocr.JOURNEYS, *vision.JOURNEYS, *hands.JOURNEYS, *sounds.JOURNEYS, *tables.JOURNEYS)


def main() -> int:
    """Run the journeys, and print what they found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(each.name for each in JOURNEYS)}")
    parser.add_argument("--packages", type=Path, default=ROOT / ".venv" / "world", help="folder of the packages")
    parser.add_argument("--folder", type=Path, help="keep models and logs in this folder, which is emptied first")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the table for a document")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything for programs")
    arguments = parser.parse_args()
    chosen = [each for each in JOURNEYS if not arguments.names or each.name in arguments.names]
    if unknown := set(arguments.names) - {each.name for each in JOURNEYS}:
        parser.error(f"no journey is called {', '.join(sorted(unknown))}")
    with TemporaryDirectory() as temporary:
        outcomes, failed = _run(chosen, arguments.packages.resolve(), arguments.folder or Path(temporary))
    print_outcomes(outcomes, arguments.packages)
    if arguments.markdown:
        arguments.markdown.write_text(markdown(outcomes, arguments.packages))
    if arguments.json:
        arguments.json.write_text(json.dumps([document(each) for each in outcomes], indent=2, ensure_ascii=False))
    return int(failed or any(each.problems for each in outcomes))


def _run(journeys: list[Journey], packages: Path, folder: Path) -> tuple[list[Outcome], bool]:
    """Return the outcomes, and whether a journey ended early."""
    outcomes, failed = list[Outcome](), False
    for journey in journeys:
        place, begin_s = folder / journey.name, time.monotonic()
        shutil.rmtree(place, ignore_errors=True)
        try:
            outcomes.append(travel(journey, packages, place))
        except JourneyError as error:
            failed = True
            print(f"{journey.name}: {error}", flush=True)
            continue
        problems = "; ".join(outcomes[-1].problems) or "fine"
        print(f"{journey.name}: {time.monotonic() - begin_s:.0f} s, {problems}", flush=True)
    return outcomes, failed


if __name__ == "__main__":
    raise SystemExit(main())
