"""Train a classifier of flowers with scikit-learn and export it: flowers.onnx, and rows to ask about: rows.npz."""

import numpy as np
from skl2onnx import to_onnx
from sklearn.datasets import load_iris
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

flowers = load_iris()
names = flowers.target_names[flowers.target]
known, asked, truth, expected = train_test_split(flowers.data.astype(np.float32), names, random_state=0)
model = make_pipeline(StandardScaler(), LogisticRegression()).fit(known, truth)

exported = to_onnx(model, known[:1], options={"zipmap": False})
with open("flowers.onnx", "wb") as file:
    file.write(exported.SerializeToString())
np.savez("rows.npz", X=asked[:5])
print("scikit-learn says:", *model.predict(asked[:5]))
