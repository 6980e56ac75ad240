"""Child process that loads each named library and reports the result. Run by path: it imports nothing of the product.

Vendor libraries print, hang and crash when loaded. So answers use a descriptor of their own, one line each, at once.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys


def main(names: list[str]) -> None:
    """Write one JSON object {"name", "problem"} per library; an empty problem means that it loaded."""
    answers = os.dup(1)
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    for name in names:
        try:
            ctypes.CDLL(name)
            problem = ""
        except OSError as error:
            problem = str(error)
        os.write(answers, json.dumps({"name": name, "problem": problem}).encode() + b"\n")


if __name__ == "__main__":
    main(sys.argv[1:])
