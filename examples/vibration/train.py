"""Train the two models of the pipeline on made recordings of a pump, and write what its sensor sends (bursts.jsonl).

A good pump hums at the speed of its shaft, with harmonics. Imbalance hums louder, a worn bearing also rings.
"""

import json
from pathlib import Path

import numpy as np
from onnx import TensorProto, helper, numpy_helper, save
from skl2onnx import to_onnx
from sklearn.ensemble import RandomForestClassifier
from sklearn.neural_network import MLPRegressor

SAMPLES, PER_S = 128, 1000.0
KINDS = ("good", "imbalance", "worn bearing")
chance = np.random.default_rng(7)


def recording(kind: str, wear: float) -> np.ndarray:
    """Return the acceleration in g [SAMPLES]; `wear` from 0 to 1 says how far a fault has come."""
    at_s, turns_per_s, phase = np.arange(SAMPLES) / PER_S, chance.uniform(24, 26), chance.uniform(0, 2 * np.pi)
    angle = 2 * np.pi * turns_per_s * at_s + phase
    wave = 0.3 * sum(np.sin(k * angle) / k for k in (1, 2, 3)) + chance.normal(0, 0.05, SAMPLES)
    if kind == "imbalance":
        wave += wear * np.sin(angle)
    if kind == "worn bearing":
        since_s = (angle / (2 * np.pi * turns_per_s)) % (1 / (3.6 * turns_per_s))
        wave += 1.5 * wear * np.exp(-300 * since_s) * np.sin(2 * np.pi * 310 * since_s)
    return wave.astype(np.float32)


def write_autoencoder(good: np.ndarray) -> None:
    """Write a network with 8 numbers in the middle, and print its error for one of 100 good bursts.

    What it cannot draw again is not a good pump. skl2onnx gives such a network one output in place of 128.
    """
    network = MLPRegressor(hidden_layer_sizes=(32, 8, 32), max_iter=300, random_state=0).fit(good, good)
    nodes, weights, name = [], [], "burst"
    for number, pair in enumerate(zip(network.coefs_, network.intercepts_, strict=True)):
        for value, kind in zip(pair, ("weight", "bias"), strict=True):
            weights.append(numpy_helper.from_array(value.astype(np.float32), f"{kind}_{number}"))
        last = number == len(network.coefs_) - 1
        out = "again" if last else f"layer_{number}"
        nodes.append(helper.make_node("Gemm", [name, f"weight_{number}", f"bias_{number}"], [out]))
        if not last:
            nodes.append(helper.make_node("Relu", [out], [name := f"relu_{number}"]))
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", SAMPLES]) for name in ("burst", "again")]
    graph = helper.make_graph(nodes, "hum", ends[:1], ends[1:], weights)
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), "hum.onnx")
    unseen = np.stack([recording("good", 0) for _ in range(1000)])
    errors = np.square(unseen - network.predict(unseen)).mean(axis=1)
    print(f"{np.quantile(errors, 0.99):.4f}")


def write_classifier() -> None:
    """Write 300 trees that know the faults."""
    kinds = np.repeat(KINDS, 500)
    waves = np.stack([recording(kind, chance.uniform(0.3, 1)) for kind in kinds])
    forest = RandomForestClassifier(300, random_state=0).fit(waves, kinds)
    Path("faults.onnx").write_bytes(to_onnx(forest, waves[:1], options={"zipmap": False}).SerializeToString())


write_autoencoder(np.stack([recording("good", 0) for _ in range(2000)]))
write_classifier()
faults = [("good", 0), ("good", 0), ("imbalance", 0.8), ("good", 0), ("worn bearing", 0.7), ("good", 0)]
lines = [json.dumps({"g": recording(kind, wear).round(4).tolist()}) for kind, wear in faults]
Path("bursts.jsonl").write_text("\n".join(lines) + "\n")
