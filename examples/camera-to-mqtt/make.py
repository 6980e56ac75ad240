"""Make what this example needs: a detector of one bright object (detector.onnx), and a video of one (door.mp4)."""

import av
import numpy as np
from onnx import TensorProto, checker, helper, numpy_helper, save

WIDTH, HEIGHT, SIDE, FRAMES, BRIGHT = 320, 240, 48, 60, 0.6


def make_detector() -> None:
    """Write a model whose only box is drawn around all bright pixels; its score is the brightness of the brightest.

    The input has values 0..1 [n, 3, HEIGHT, WIDTH], the output rows x1, y1, x2, y2, score, class [n, 1, 6]: the head
    `end-to-end`. A trained detector has the same form.
    """
    count = {"w": np.arange(WIDTH), "h": np.arange(HEIGHT)}
    constants = {
        "bright": np.float32(BRIGHT),
        "one": np.array([1], np.int64),
        "shape": np.array([-1, 1, 1], np.int64),
        "zero": np.float32(0),
        "columns": (count["w"] + 1).astype(np.float32),
        "columns_left": (WIDTH - count["w"]).astype(np.float32),
        "rows": (count["h"] + 1).astype(np.float32),
        "rows_left": (HEIGHT - count["h"]).astype(np.float32),
        "width": np.float32(WIDTH),
        "height": np.float32(HEIGHT),
        "axis2": np.array([2], np.int64),
        "axis12": np.array([1, 2], np.int64),
    }
    node = helper.make_node
    nodes = [
        node("ReduceMean", ["images", "one"], ["grey"], keepdims=0),
        node("Greater", ["grey", "bright"], ["is_bright"]),
        node("Cast", ["is_bright"], ["mask"], to=TensorProto.FLOAT),
        node("ReduceMax", ["mask", "one"], ["by_column"], keepdims=0),
        node("ReduceMax", ["mask", "axis2"], ["by_row"], keepdims=0),
        node("ReduceMax", ["grey", "axis12"], ["score"], keepdims=0),
        node("Reshape", ["score", "shape"], ["score_3"]),
        node("Mul", ["score_3", "zero"], ["class_3"]),
    ]
    for name, flat, weight, last in (
        ("x1", "by_column", "columns_left", "width"),
        ("y1", "by_row", "rows_left", "height"),
        ("x2", "by_column", "columns", ""),
        ("y2", "by_row", "rows", ""),
    ):
        nodes += [
            node("Mul", [flat, weight], [f"{name}_all"]),
            node("ReduceMax", [f"{name}_all", "one"], [f"{name}_most"], keepdims=0),
            *([node("Sub", [last, f"{name}_most"], [f"{name}_flat"])] if last else []),
            node("Reshape", [f"{name}_flat" if last else f"{name}_most", "shape"], [name]),
        ]
    nodes.append(node("Concat", ["x1", "y1", "x2", "y2", "score_3", "class_3"], ["detections"], axis=2))
    graph = helper.make_graph(
        nodes,
        "bright-object",
        [helper.make_tensor_value_info("images", TensorProto.FLOAT, ["n", 3, HEIGHT, WIDTH])],
        [helper.make_tensor_value_info("detections", TensorProto.FLOAT, ["n", 1, 6])],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    checker.check_model(model, full_check=True)
    save(model, "detector.onnx")


def make_video() -> None:
    """Write a video in which a bright square moves from left to right."""
    with av.open("door.mp4", "w") as video:
        stream = video.add_stream("libx264", rate=5)
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "yuv420p"
        for number in range(FRAMES):
            pixels = np.full((HEIGHT, WIDTH, 3), 30, np.uint8)
            left = 16 + 4 * number
            pixels[96 : 96 + SIDE, left : left + SIDE] = 230
            for packet in stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")):
                video.mux(packet)
        for packet in stream.encode():
            video.mux(packet)


if __name__ == "__main__":
    make_detector()
    make_video()
