"""`python -m tests.simulators.killed_pull FOLDER URL DIGEST`: pulls, each killed before another changing system call.

After each kill the pull is repeated. Prints JSON: the number of kills, and what was wrong after which.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.simulators.pulling import digest, pull
from tests.simulators.syscalls import Traced


def main() -> None:
    """Run the command that the module describes."""
    folder, url, pin = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    problems: dict[int, str] = {}
    calls = 0
    while _killed(folder / str(calls), url, pin, calls):
        problems[calls] = _problem(folder / str(calls), url, pin)
        calls += 1
    found = {number: problem for number, problem in problems.items() if problem}
    sys.stdout.write(json.dumps({"kills": calls, "problems": found}))


def _killed(models: Path, url: str, pin: str, calls: int) -> bool:
    """Pull, and kill the process before its changing call number `calls`. Return False if it made fewer."""
    traced = Traced(lambda: [pull(url, models, pin=pin), None][1])
    for number, _ in enumerate(traced):
        if number == calls:
            traced.kill()
            return True
    return False


def _problem(models: Path, url: str, pin: str) -> str:
    """Return what is wrong after a kill, and after the pull was repeated; "" for nothing."""
    file = models / "model" / "1" / "model.onnx"
    if file.exists() and digest(file.read_bytes()) != pin:
        return "an unverified file is in the model directory"
    pull(url, models, pin=pin)
    if digest(file.read_bytes()) != pin:
        return "the repeated pull made another file"
    left = [path.name for path in (models / ".pull").iterdir() if path.name not in {"lock", "sha256"}]
    return f"left behind: {left}" if any(name.startswith(".tmp-") for name in left) else ""


if __name__ == "__main__":
    main()
