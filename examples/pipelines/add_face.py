"""Write a gallery of one person: the first face in an answer of `face-vectors`, its name, and the file."""

import json
import sys
from pathlib import Path

import numpy as np

answer, name, file = sys.argv[1:]
outputs = {output["name"]: output["data"] for output in json.loads(Path(answer).read_text())["outputs"]}
face = json.loads(outputs["result"][0])["faces"][0]
np.savez(file, vectors=[face["vector"]], labels=[name])
