"""Train what decides: someone passes while the door is closed is an alarm (guard.onnx)."""

from pathlib import Path

import numpy as np
from skl2onnx import to_onnx
from sklearn.tree import DecisionTreeClassifier

rows = np.array([[objects, is_open] for objects in range(4) for is_open in (0, 1)], np.float32)
labels = ["alarm" if objects and not is_open else "fine" for objects, is_open in rows]
tree = DecisionTreeClassifier().fit(rows, labels)
Path("guard.onnx").write_bytes(to_onnx(tree, rows[:1], options={"zipmap": False}).SerializeToString())
