"""Make what this example needs: two models (pose.onnx, action.onnx), and the video of a figure (room.mp4).

The figure stands, waves, falls and lies. The classifier is trained on figures of other sizes and speeds.
"""

import av
import numpy as np
from onnx import TensorProto, checker, helper, numpy_helper, save
from PIL import Image, ImageDraw
from sklearn.neural_network import MLPClassifier

WIDTH, HEIGHT, PER_S, WINDOW = 320, 240, 10, 10
POINTS = ("neck", "hip", "left_wrist", "right_wrist", "left_ankle", "right_ankle")
ACTIONS = ("falling", "lying", "nobody", "standing", "waving")
COLOURS = ((255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 0), (0, 255, 255), (255, 0, 255))
"""The figure has a mark of its own colour at each of its points, and nothing else in the picture is bright."""
chance = np.random.default_rng(7)


# ---- the figure ------------------------------------------------------------------------------------------------------
def figure(lean: float, wave: float | None, swing: float = 0.0) -> dict[str, np.ndarray]:
    """Return places of points in lengths of the torso from the ankles, y down.

    `lean` is in radians from upright, `wave` the angle of a lifted forearm (None: the arm hangs), `swing` that of arms
    and legs that walk.
    """
    right, left = (0.4 + 0.5 * np.sin(swing), -1.6), (-0.4 - 0.5 * np.sin(swing), -1.6)
    if wave is not None:
        right = (0.6 + 0.6 * np.sin(wave), -2.7 - 0.6 * np.cos(wave))
    upright = {
        "head": (0, -3.1),
        "neck": (0, -2.6),
        "hip": (0, -1.6),
        "left_wrist": left,
        "right_wrist": right,
        "left_ankle": (-0.25 - 0.3 * np.sin(swing), 0),
        "right_ankle": (0.25 + 0.3 * np.sin(swing), 0),
    }
    turn = np.array([[np.cos(lean), -np.sin(lean)], [np.sin(lean), np.cos(lean)]])
    return {name: turn @ np.array(place, float) for name, place in upright.items()}


def lean_at(since_s: float, takes_s: float) -> float:
    """Return how far a figure has fallen some seconds after it began to."""
    return np.pi / 2 * np.clip(since_s / takes_s, 0, 1) ** 2


# ---- a model of its points: any other one with key points takes its place --------------------------------------------
def make_pose() -> None:
    """Write a model that finds the marks: input 0..1 [n, 3, HEIGHT, WIDTH], output a box, score, class and points."""
    colours = np.array(COLOURS) / 255
    constants = {
        "weights": np.where(colours > 0, 1 / colours.sum(1, keepdims=True), -1).astype(np.float32)[:, :, None, None],
        "bias": np.full(len(POINTS), -0.6, np.float32),
        "columns": np.arange(0.5, WIDTH).astype(np.float32)[:, None],
        "rows": np.arange(0.5, HEIGHT).astype(np.float32)[:, None],
        "axis1": np.array([1], np.int64),
        "axis2": np.array([2], np.int64),
        "axis3": np.array([3], np.int64),
        "as_points": np.array([0, 1, -1], np.int64),
        "least": np.float32(1e-3),
        "sure": np.float32(0.2),
        "zero": np.float32(0),
        "one": np.float32(1),
    }
    node = helper.make_node
    nodes = [
        node("Conv", ["images", "weights", "bias"], ["likeness"]),
        node("Relu", ["likeness"], ["marks"]),
        node("ReduceSum", ["marks", "axis2"], ["by_column"], keepdims=0),
        node("ReduceSum", ["marks", "axis3"], ["by_row"], keepdims=0),
        node("MatMul", ["by_column", "columns"], ["x_sum"]),
        node("MatMul", ["by_row", "rows"], ["y_sum"]),
        node("ReduceSum", ["by_row", "axis2"], ["mass"]),
        node("Max", ["mass", "least"], ["some"]),
        node("Concat", ["x_sum", "y_sum"], ["sums"], axis=2),
        node("Div", ["sums", "some"], ["centres"]),  # of each mark, in pixels [n, points, 2]
        node("Mul", ["mass", "sure"], ["seen"]),
        node("Clip", ["seen", "zero", "one"], ["scores"]),
        node("ReduceMin", ["centres", "axis1"], ["top_left"]),
        node("ReduceMax", ["centres", "axis1"], ["bottom_right"]),
        node("ReduceMin", ["scores", "axis1"], ["score"]),
        node("Mul", ["score", "zero"], ["class"]),
        node("Concat", ["centres", "scores"], ["points"], axis=2),
        node("Reshape", ["points", "as_points"], ["every_point"]),
        node("Concat", ["top_left", "bottom_right", "score", "class", "every_point"], ["detections"], axis=2),
    ]
    write(nodes, constants, ("images", [3, HEIGHT, WIDTH]), ("detections", [1, 6 + 3 * len(POINTS)]), "pose")


# ---- what the points do ----------------------------------------------------------------------------------------------
def example(action: str) -> np.ndarray:
    """Return the points of a window [WINDOW, points, x, y, score] in pixels, as the camera's frames have them."""
    every_s, turns_per_s, size_px = chance.uniform(0.15, 0.3), chance.uniform(0.7, 1.6), chance.uniform(20, 60)
    phase, side, place = chance.uniform(0, 6.3), chance.choice([-1, 1]), chance.uniform(0, 240, 2)
    begins, takes_s = chance.uniform(1, WINDOW - 3), chance.uniform(0.4, 1.0)
    walks = chance.random() < 0.5
    frames = []
    for number in range(WINDOW):
        angle = phase + 2 * np.pi * turns_per_s * number * every_s
        lean = {"falling": lean_at((number - begins) * every_s, takes_s), "lying": np.pi / 2}.get(action, 0.0)
        wave = 0.7 * np.sin(angle) if action == "waving" else None
        swing = 0.6 * np.sin(angle) if walks and action in {"standing", "falling"} and not lean else 0.0
        found = figure(lean + chance.normal(0, 0.03), wave, swing)
        points = np.array([found[name] for name in POINTS]) * (side, 1) * size_px + place
        frames.append(np.column_stack((points + chance.normal(0, 0.02 * size_px, points.shape), np.ones(len(points)))))
    window = np.array(frames, np.float32)
    if action == "nobody":
        window[chance.random(WINDOW) < chance.uniform(0.5, 1.0)] = 0
    return window


def features(windows: np.ndarray) -> np.ndarray:
    """Return the places from the hip, in lengths of the torso [n, WINDOW · points · 2]: `make_action` has the same."""
    from_hip = windows[..., :2] - windows[:, :, 1:2, :2]
    torso = np.sqrt(np.square(from_hip[:, :, :1]).sum(3, keepdims=True)).max(1, keepdims=True)
    return (from_hip / np.maximum(torso, 1)).reshape(len(windows), -1)


def make_action() -> None:
    """Train a classifier of windows, write it, and print how often it is right for windows that it has not seen."""
    names = np.repeat(ACTIONS, 300)
    windows = np.stack([example(name) for name in names])
    network = MLPClassifier((32,), max_iter=200, tol=1e-3, random_state=0).fit(features(windows), names)
    unseen = np.repeat(ACTIONS, 100)
    print(f"right: {network.score(features(np.stack([example(name) for name in unseen])), unseen):.3f}")
    constants = {
        "xy": np.array([0, 1], np.int64),
        "hip": np.array([1], np.int64),
        "neck": np.array([0], np.int64),
        "axis1": np.array([1], np.int64),
        "axis3": np.array([3], np.int64),
        "least": np.float32(1),
        **{f"weight_{n}": weight.astype(np.float32) for n, weight in enumerate(network.coefs_)},
        **{f"bias_{n}": bias.astype(np.float32) for n, bias in enumerate(network.intercepts_)},
    }
    node = helper.make_node
    nodes = [
        node("Gather", ["window", "xy"], ["places"], axis=3),
        node("Gather", ["places", "hip"], ["hips"], axis=2),
        node("Sub", ["places", "hips"], ["from_hip"]),
        node("Gather", ["from_hip", "neck"], ["torso"], axis=2),
        node("ReduceL2", ["torso", "axis3"], ["lengths"]),
        node("ReduceMax", ["lengths", "axis1"], ["longest"]),
        node("Max", ["longest", "least"], ["length"]),
        node("Div", ["from_hip", "length"], ["scaled"]),
        node("Flatten", ["scaled"], ["features"]),
        node("Gemm", ["features", "weight_0", "bias_0"], ["layer"]),
        node("Relu", ["layer"], ["hidden"]),
        node("Gemm", ["hidden", "weight_1", "bias_1"], ["logits"]),
        node("Softmax", ["logits"], ["action"]),
    ]
    write(nodes, constants, ("window", [WINDOW, len(POINTS), 3]), ("action", [len(ACTIONS)]), "action")


def write(nodes: list, constants: dict, given: tuple, found: tuple, name: str) -> None:
    """Write NAME.onnx, whose input and output have open rows."""
    ends = [helper.make_tensor_value_info(key, TensorProto.FLOAT, ["n", *shape]) for key, shape in (given, found)]
    values = [numpy_helper.from_array(np.asarray(value), key) for key, value in constants.items()]
    graph = helper.make_graph(nodes, name, ends[:1], ends[1:], values)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    checker.check_model(model, full_check=True)
    save(model, f"{name}.onnx")


# ---- the video -------------------------------------------------------------------------------------------------------
def draw(found: dict[str, np.ndarray]) -> Image.Image:
    """Return a picture of the figure, with its marks."""
    picture = Image.new("RGB", (WIDTH, HEIGHT), (40, 40, 44))
    pen, at = ImageDraw.Draw(picture), {name: tuple(place * 50 + (125, 205)) for name, place in found.items()}
    for one, other, width in (("neck", "hip", 22), ("hip", "left_ankle", 11), ("hip", "right_ankle", 11)):
        pen.line((at[one], at[other]), (96, 96, 110), width)
    for wrist in ("left_wrist", "right_wrist"):
        pen.line((at["neck"], at[wrist]), (120, 100, 90), 9)
    pen.circle(at["head"], 17, (120, 100, 90))
    for name, colour in zip(POINTS, COLOURS, strict=True):
        pen.circle(at[name], 5, colour)
    return picture


def make_video() -> None:
    """Write a video: two seconds of walking on the spot, four of waving, two of standing, a fall, four of lying."""
    with av.open("room.mp4", "w") as video:
        stream = video.add_stream("libx264", rate=PER_S)
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "yuv420p"
        for number in range(12 * PER_S):
            at_s = number / PER_S
            wave = 0.7 * np.sin(2 * np.pi * 1.1 * at_s) if 2 <= at_s < 6 else None
            swing = 0.5 * np.sin(2 * np.pi * at_s) if at_s < 2 else 0.0
            picture = draw(figure(lean_at(at_s - 8, 0.7), wave, swing))
            video.mux(stream.encode(av.VideoFrame.from_image(picture)))
        video.mux(stream.encode())


if __name__ == "__main__":
    make_pose()
    make_action()
    make_video()
