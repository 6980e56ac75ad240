"""Print the samples of one recorded window, a JSON array in each line: python3 samples.py GOLDEN.npz [WINDOW]."""

import json
import sys

import numpy as np

file, window = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 0
with np.load(file) as golden:
    for sample in golden["input.motion"][window]:
        print(json.dumps([round(float(value), 6) for value in sample]))
