"""Train the models of the recipes fraud and digits, write them to models/, and rows to ask about as rows.npz."""

from pathlib import Path

import numpy as np
from skl2onnx import to_onnx
from sklearn.datasets import load_digits, make_classification
from sklearn.ensemble import GradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler


def write(name: str, model: object, rows: np.ndarray) -> None:
    """Write a classifier as ONNX whose second output has the probability of each class."""
    folder = Path("models", name, "1")
    folder.mkdir(parents=True, exist_ok=True)
    exported = to_onnx(model, rows[:1], options={"zipmap": False}, target_opset=18)
    (folder / "model.onnx").write_bytes(exported.SerializeToString())


# Payments: 12 features, one of 20 is fraud. The quick model has 13 numbers, the deep one 100 trees.
payments, is_fraud = make_classification(4000, 12, weights=[0.95], flip_y=0.01, class_sep=1.2, random_state=3)
payments = payments.astype(np.float32)
known, asked, truth, expected = train_test_split(payments, is_fraud, random_state=0)
write("fraud-quick", make_pipeline(StandardScaler(), LogisticRegression()).fit(known, truth), known)
write("fraud-deep", GradientBoostingClassifier(n_estimators=100, random_state=0).fit(known, truth), known)
amount = np.random.default_rng(0).uniform(1, 5000, len(asked)).astype(np.float32)
np.savez("payments.npz", features=asked[:20], amount=amount[:20])

# Digits of 8 x 8 pixels: three classifiers of different kinds.
pixels, digit = load_digits(return_X_y=True)
known, asked, truth, expected = train_test_split(pixels.astype(np.float32), digit, random_state=0)
for name, model in (
    ("digits-linear", LogisticRegression(max_iter=500)),
    ("digits-network", MLPClassifier((64,), max_iter=300, random_state=0)),
    ("digits-neighbours", KNeighborsClassifier(3)),
):
    write(name, model.fit(known, truth), known)
np.savez("digits.npz", pixels=asked[:200])
np.save("digits-truth.npy", expected[:200])
