"""`make fuzz`: every target in turn, for FUZZ_S seconds in all (120).

With atheris (requirements/fuzz.txt; not for every Python and machine) what was reached leads to what is tried next;
without it bytes are spoilt by chance. What broke a promise is kept in .fuzz/, named by its target.
"""

from __future__ import annotations

import importlib.util
import os
import random
import subprocess
import sys
import time
from pathlib import Path

FOUND = Path(".fuzz")
RSS_LIMIT_MB = 1024
INPUT_LIMIT_BYTES = 8192


def main() -> int:
    """Fuzz all targets, each in a process of its own, or, given a target and seconds, that one."""
    if len(sys.argv) > 2:
        return fuzz(sys.argv[1], float(sys.argv[2]), sys.argv[:1])
    from tests.fuzz.targets import TARGETS

    seconds = float(os.environ.get("FUZZ_S", "120")) / len(TARGETS)
    FOUND.mkdir(exist_ok=True)
    ends = [subprocess.call([sys.executable, "-m", "tests.fuzz.run", name, str(seconds)]) for name in TARGETS]
    print("fuzz:", "a promise was broken, see .fuzz/" if any(ends) else "nothing found")
    return int(any(ends))


def fuzz(name: str, seconds: float, program: list[str]) -> int:
    """Fuzz one target."""
    if importlib.util.find_spec("atheris") is None:
        return by_chance(name, seconds)
    return by_coverage(name, seconds, program)


def by_chance(name: str, seconds: float) -> int:
    """Fuzz with malformed bytes, each time others."""
    from tests.fuzz.mutation import SEEDS, spoil
    from tests.fuzz.targets import TARGETS

    seed = time.time_ns()
    chance, seeds, count, ends_s = random.Random(seed), SEEDS[name](), 0, time.monotonic() + seconds
    while time.monotonic() < ends_s:
        words = spoil(chance.choice(seeds), chance, seeds)
        try:
            TARGETS[name](words)
        except BaseException:
            (FOUND / f"{name}-{seed}").write_bytes(words)
            raise
        count += 1
    print(f"{name}: {count} inputs in {seconds:.0f} s, by chance")
    return 0


def by_coverage(name: str, seconds: float, program: list[str]) -> int:
    """Fuzz with atheris; half of the time the mutations are ours."""
    import atheris

    with atheris.instrument_imports(include=["gateway.serving.frontends.grpc_v2"]):
        from tests.fuzz.targets import TARGETS
    from tests.fuzz.mutation import SEEDS, spoil

    corpus, seeds = FOUND / f"corpus-{name}", SEEDS[name]()
    corpus.mkdir(parents=True, exist_ok=True)
    for number, words in enumerate(seeds):
        (corpus / f"seed-{number}").write_bytes(words)

    def mutate(words: bytes, limit: int, seed: int) -> bytes:
        chance = random.Random(seed)
        own = chance.random() < 0.5
        return spoil(words, chance, seeds)[:limit] if own else atheris.Mutate(words, limit)

    options = [
        f"-max_total_time={max(int(seconds), 1)}",
        f"-max_len={INPUT_LIMIT_BYTES}",
        f"-rss_limit_mb={RSS_LIMIT_MB}",
        f"-artifact_prefix={FOUND}/{name}-",
        "-verbosity=0",
        "-print_final_stats=1",
        str(corpus),
    ]
    atheris.Setup([*program, *options], TARGETS[name], custom_mutator=mutate)
    atheris.Fuzz()
    return 0


if __name__ == "__main__":
    sys.exit(main())
