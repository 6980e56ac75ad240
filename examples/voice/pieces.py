"""Print 16-bit samples of stdin, mono at 16 kHz, in pieces of 80 ms: a JSON array in each line."""

import sys
from array import array

while piece := sys.stdin.buffer.read(2 * 1280):
    print(array("h", piece[: len(piece) // 2 * 2]).tolist(), flush=True)
