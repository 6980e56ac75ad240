"""Record what Transformers computes, for test_transformers: it needs PyTorch, which has gigabytes.

Run once in an environment with transformers and torch:
`python tests/unit/workshop/importing/make_transformers_values.py`.
The models are tiny and have random weights. What is recorded: their configurations, the pixels that the image
processors make of one image, the outputs of the models, and what the processors make of these outputs.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from PIL import Image

FILE = Path(__file__).with_name("transformers_values.npz")
LABELS = {number: f"thing {number}" for number in range(5)}
NAMED = {"id2label": LABELS, "label2id": {name: number for number, name in LABELS.items()}}
SCORE = 0.3
SQUARE = {"height": 64, "width": 64}
SMALL = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
RESNET = {"embedding_size": 8, "hidden_sizes": [8, 8, 8, 16], "depths": [1] * 4, "layer_type": "basic"}
DETR = {
    "use_timm_backbone": False,
    "use_pretrained_backbone": False,
    "backbone": None,
    "d_model": 16,
    "num_queries": 12,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 16,
    "decoder_ffn_dim": 16,
}
Results = Mapping[str, np.ndarray]


def picture() -> Image.Image:
    """Return an image of 160 by 120 pixels with soft edges."""
    coarse = (np.random.default_rng(0).random((9, 12, 3)) * 255).astype(np.uint8)
    return Image.fromarray(coarse).resize((160, 120), Image.Resampling.BICUBIC)


def stirred(model: Any, scale: float = 1.0) -> Any:
    """Return the model with weights for which different queries and pixels have different answers."""
    generator = torch.Generator().manual_seed(1)
    for name, weights in model.named_parameters():
        if weights.dim() > 1 and weights.numel():
            deviation = scale * (2.0 / weights[0].numel()) ** 0.5
            weights.data = torch.randn(weights.shape, generator=generator) * deviation
        elif "bias" in name:
            weights.data = torch.randn(weights.shape, generator=generator) * 0.2
    return model.eval()


def values_of(model: Any, processor: Any, results: Callable[[Any], Results]) -> dict[str, Any]:
    """Return what is recorded of a model."""
    image = picture()
    pixels = processor(images=image, return_tensors="pt")["pixel_values"]
    with torch.no_grad():
        outputs = model(pixel_values=pixels)
    with tempfile.TemporaryDirectory() as folder:
        processor.save_pretrained(folder)
        steps = (Path(folder) / "preprocessor_config.json").read_text()
    config = model.config.to_dict() | {"architectures": [type(model).__name__]}
    kept = {"config": json.dumps(config, default=str), "processor": steps, "pixel_values": pixels.numpy()}
    raw = {f"raw.{name}": outputs[name].numpy() for name in ("logits", "pred_boxes") if name in outputs}
    return kept | raw | {f"result.{name}": array for name, array in results(outputs).items()}


def classes(outputs: Any) -> Results:
    """Return the probabilities."""
    return {"probabilities": outputs["logits"].softmax(-1).numpy()}


def detections(processor: Any, **options: Any) -> Callable[[Any], Results]:
    """Return the function that makes detections of outputs."""

    def results(outputs: Any) -> Results:
        sizes = [picture().size[::-1]]
        (found,) = processor.post_process_object_detection(outputs, threshold=SCORE, target_sizes=sizes, **options)
        return {name: tensor.numpy() for name, tensor in found.items()}

    return results


def main() -> None:
    """Write the values that Transformers computes to FILE."""
    t, backbone = transformers, {"out_features": ["stage4"]}
    vit = t.ViTForImageClassification(t.ViTConfig(**SMALL, image_size=32, patch_size=8, **NAMED))
    resnet = t.ResNetForImageClassification(t.ResNetConfig(**RESNET, **NAMED))
    yolos = t.YolosForObjectDetection(
        t.YolosConfig(**SMALL, image_size=[48, 64], patch_size=16, num_detection_tokens=12, **NAMED)
    )
    detr = t.DetrForObjectDetection(t.DetrConfig(backbone_config=t.ResNetConfig(**RESNET, **backbone), **DETR, **NAMED))
    conditional = t.ConditionalDetrForObjectDetection(
        t.ConditionalDetrConfig(backbone_config=t.ResNetConfig(**RESNET, **backbone), **DETR, **NAMED)
    )
    segformer = t.SegformerForSemanticSegmentation(
        t.SegformerConfig(
            hidden_sizes=[8] * 4, depths=[1] * 4, num_attention_heads=[1, 1, 2, 2], decoder_hidden_size=8, **NAMED
        )
    )
    stretch = t.YolosImageProcessor(size={"height": 48, "width": 64}, do_pad=False)
    square = t.DetrImageProcessor(size=SQUARE, do_pad=False)
    squares = t.ConditionalDetrImageProcessor(size=SQUARE, do_pad=False)
    crop = t.MobileNetV2ImageProcessor(size={"shortest_edge": 36}, crop_size={"height": 32, "width": 32})
    share = t.ConvNextImageProcessor(size={"shortest_edge": 32}, crop_pct=0.875, resample=3)
    maps = t.SegformerImageProcessor(size=SQUARE)

    def classes_of_pixels(outputs: Any) -> Results:
        sizes = [picture().size[::-1]]
        return {"map": maps.post_process_semantic_segmentation(outputs, target_sizes=sizes)[0].numpy().astype(np.uint8)}

    recorded = {
        "vit": values_of(stirred(vit), t.ViTImageProcessor(size={"height": 32, "width": 32}), classes),
        "centre": values_of(stirred(resnet), crop, classes),
        "share": values_of(stirred(resnet), share, classes),
        "yolos": values_of(stirred(yolos, 2), stretch, detections(stretch)),
        "detr": values_of(stirred(detr, 2), square, detections(square)),
        "conditional": values_of(stirred(conditional, 2), squares, detections(squares, top_k=12)),
        "segformer": values_of(stirred(segformer), maps, classes_of_pixels),
    }
    flat = {f"{name}.{key}": value for name, values in recorded.items() for key, value in values.items()}
    np.savez_compressed(FILE, image=np.asarray(picture()), version=transformers.__version__, **flat)


if __name__ == "__main__":
    main()
