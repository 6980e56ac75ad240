"""`python -m models.recipes [NAME...]`: train, write every variant, judge them, write golden set, manifest and card."""

from __future__ import annotations

import argparse
import logging
import os
import subprocess
import sys
import warnings
from pathlib import Path

MODELS = Path(__file__).resolve().parents[1]


def main(arguments: list[str]) -> int:
    """Rebuild the named models, or all; exit status 1 when a variant loses more accuracy than allowed."""
    parser = argparse.ArgumentParser(prog="python -m models.recipes", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="models to rebuild (default: all)")
    parser.add_argument("--out", type=Path, default=MODELS, metavar="DIR", help="where to write (default: models/)")
    parser.add_argument("--cross-validate", action="store_true", help="only judge training on its own part of the data")
    options = parser.parse_args(arguments)
    _quieten()
    from models.recipes import activity, meter_reader
    from models.recipes.build import build, validate

    known = {recipe.name: recipe for recipe in (meter_reader.RECIPE, activity.RECIPE)}
    unknown = set(options.names) - set(known)
    if unknown:
        parser.error(f"no recipe named {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    chosen = [known[name] for name in options.names or known]
    if options.cross_validate:
        for recipe in chosen:
            validate(recipe)
        return 0
    if len(chosen) > 1:
        return max(_alone(recipe.name, options.out) for recipe in chosen)
    return 0 if build(chosen[0], options.out) else 1


def _alone(name: str, out: Path) -> int:
    """Build one model in a process of its own: OpenVINO numbers nodes per process, and the files would differ."""
    return subprocess.run([sys.executable, "-m", "models.recipes", name, "--out", str(out)], check=False).returncode


def _quieten() -> None:
    """Let progress be readable; must run before TensorFlow is imported."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
    logging.getLogger().setLevel(logging.ERROR)
    warnings.simplefilter("ignore", DeprecationWarning)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
