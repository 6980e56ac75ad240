"""Actions of `edge-gateway models`: options and examples."""

from __future__ import annotations

import argparse
from functools import partial

from gateway.common.terminal.numbers import positive, share, size, whole
from gateway.common.terminal.program import EXIT_CODES, named
from gateway.workshop.making.choices import DEFAULT_RANGE, VALUE_RANGES, VARIANT_KINDS

STYLES = ("path", "virtual")
PULL_EXAMPLES = (
    "  edge-gateway models pull oci://registry.example/models/detector@sha256:DIGEST --into models\n"
    "  edge-gateway models pull https://files.example/detector.onnx#sha256=DIGEST --into models --name detector\n"
    "  edge-gateway models pull s3://models/detector-2.tar.gz --digest sha256:DIGEST --into models --json"
)


KINDS = ("triton", "mlflow", "ovms", "ultralytics", "huggingface", "sklearn")
"""Kinds of sources (gateway.workshop.importing.sources), which the parser does not import."""
EXAMPLES = (
    "  edge-gateway models import /srv/triton/model_repository --into models\n"
    "  edge-gateway models import yolo11n.onnx --into models --name parking --dry-run\n"
)


def add_actions(parser: argparse.ArgumentParser) -> None:
    """Add the actions of the verb. Options of the verb itself may stand before or behind the action."""
    actions = parser.add_subparsers(title="actions", metavar="ACTION", dest="action")
    check = _action(
        actions,
        "check",
        "serving.cli.models",
        "check files, digests and golden sets of releases, as a device would",
        "  edge-gateway models check models/meter-reader/1\n  edge-gateway models check DIR --json",
    )
    check.add_argument(
        "dir", nargs="?", metavar="DIR", default=None, help="a version's, a model's or a whole model directory"
    )
    check.add_argument("--state", type=named, metavar="DIR", help="where verdicts are kept")
    _shared(check)
    _new(
        _action(
            actions,
            "new",
            "workshop.cli.models_new",
            "make a version of a model, with its manifest, from model files",
            "  edge-gateway models new yolov8n.onnx --models models\n"
            "  edge-gateway models new --pipeline plates plate-finder plate-reader --models models\n"
            "  edge-gateway models new model.onnx model.tflite --name meter --labels labels.txt --models models\n"
            "  edge-gateway models new resnet.onnx --range imagenet --yes --json --models models",
        )
    )
    _quantize(
        _action(
            actions,
            "quantize",
            "workshop.cli.models_quantize",
            "make variants in fewer bits from a float one, measure them, and keep those that are good",
            "  edge-gateway models quantize models/meter/1 --calibration photos\n"
            "  edge-gateway models quantize models/wrist/2 --calibration wrist.csv --only onnx-int8 --max-loss 0.02\n"
            "  edge-gateway models quantize models/meter/1 --calibration data.npz --plot variants.svg --json",
        )
    )
    _golden(actions)
    _pull(
        _action(
            actions,
            "pull",
            "workshop.cli.pull",
            "get a release from a registry, a web server or a bucket, pinned by its digest",
            PULL_EXAMPLES,
        )
    )
    _import(
        _action(
            actions,
            "import",
            "workshop.cli.models_import",
            "make releases of models that were laid out for other servers and tools",
            EXAMPLES.rstrip("\n"),
        )
    )


def _action(
    actions: argparse._SubParsersAction[argparse.ArgumentParser], name: str, module: str, text: str, examples: str
) -> argparse.ArgumentParser:
    """Add an action with its module. Options without a default of their own keep the value in front of the action."""
    parser = actions.add_parser(
        name,
        help=text,
        description=f"{text[0].upper()}{text[1:]}.",
        epilog=f"examples:\n{examples}\n\n{EXIT_CODES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        argument_default=argparse.SUPPRESS,
    )
    parser.set_defaults(module=module)
    return parser


def _shared(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", type=named, metavar="FILE", help="TOML configuration")
    parser.add_argument("--models", type=named, metavar="DIR", help="model directory")
    parser.add_argument("--json", action="store_true", help="print JSON for programs")


def _new(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "files",
        nargs="+",
        metavar="FILE",
        help="an .onnx, .tflite, .xml or .gguf file; several are variants of a model, and a .gguf with an adapter "
        "(LoRA) is one of the language model that is named, too; with --pipeline names of models",
    )
    parser.add_argument(
        "--pipeline",
        type=named,
        default=None,
        metavar="NAME",
        help="draft a pipeline that runs models of the model directory, in this order",
    )
    parser.add_argument("--name", type=named, default=None, help="name of the model (default: that of the first file)")
    parser.add_argument("--version", type=named, default=None, help="version (default: the next number)")
    parser.add_argument(
        "--labels",
        type=named,
        default=None,
        metavar="FILE",
        help="labels, one in each line, or JSON (default: the file's)",
    )
    parser.add_argument(
        "--task", type=named, default=None, metavar="KIND", help="task, as in docs/pages/reference/tasks.md"
    )
    parser.add_argument(
        "--set",
        type=named,
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="key of the table [task]; repeat it for several (--task anomaly-detection --set score=scores --set "
        "threshold=0.5 --set anomalous=above)",
    )
    parser.add_argument(
        "--keypoints",
        type=named,
        default=None,
        metavar="FILE",
        help="names of the model's key points, as for --labels (default: of 17 points those of COCO)",
    )
    parser.add_argument(
        "--range",
        choices=tuple(VALUE_RANGES),
        default=None,
        help="values of black to white pixels: unit 0 to 1, signed-unit -1 to 1, pixels 0 to 255, signed-pixels -128 "
        f"to 127, imagenet: its mean and deviation (default: {DEFAULT_RANGE}, unless the file tells)",
    )
    parser.add_argument(
        "--size",
        type=size,
        default=None,
        metavar="HxW",
        help="height and width in pixels to which images are resized, where the files take any (such as 320x320)",
    )
    parser.add_argument("--yes", action="store_true", default=False, help="ask nothing: take what can be inferred")
    _shared(parser)


def _pull(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("dir", nargs="?", default=None, metavar="SOURCE", help="oci://…, https://… or s3://…")
    parser.add_argument("--state", type=named, metavar="DIR", help="where verdicts are kept")
    pull_options(parser)
    _shared(parser)


def _import(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("dir", nargs="?", default=None, metavar="SOURCE", help="a folder or a model file")
    add_import_options(parser)
    _shared(parser)


def _golden(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    text = "make the golden set of a model or a pipeline: samples with the answers that devices must reach"
    examples = (
        "  edge-gateway models golden models/plates/1 --calibration photos\n"
        "  edge-gateway models golden models/meter/1 --calibration data.npz --json"
    )
    parser = _action(actions, "golden", "workshop.cli.models_quantize", text, examples)
    parser.set_defaults(annotations=None, only=None, max_loss=None, seed=0, plot=None)
    _samples(parser, "a version's folder, with a pipeline, or with a manifest and a float variant")
    _shared(parser)


def _samples(parser: argparse.ArgumentParser, folder: str) -> None:
    parser.add_argument("dir", metavar="DIR", help=folder)
    parser.add_argument(
        "--calibration",
        required=True,
        type=named,
        metavar="PATH",
        help="samples: images, .npz, .csv, or recorded requests in .jsonl; a file, or a folder, which may have a "
        "folder for each class",
    )


def _quantize(parser: argparse.ArgumentParser) -> None:
    _samples(parser, "a version's folder, with a manifest and a float variant")
    parser.add_argument(
        "--annotations",
        type=named,
        default=None,
        metavar="PATH",
        help="truth of images: COCO .json, labels.csv, or a folder of YOLO .txt or of masks (default: next to them)",
    )
    parser.add_argument(
        "--only",
        type=named,
        action="append",
        default=None,
        metavar="NAMES",
        help=f"of {', '.join(kind.name for kind in VARIANT_KINDS)} (default: those that device profiles ask for)",
    )
    parser.add_argument(
        "--max-loss",
        type=share,
        default=None,
        metavar="SHARE",
        help="greatest loss of accuracy, 0 to 1 (default: max_accuracy_loss of the manifest)",
    )
    parser.add_argument(
        "--seed", type=whole, default=0, metavar="N", help="seed of the division of samples (default 0)"
    )
    parser.add_argument(
        "--plot", type=named, default=None, metavar="FILE", help="write a diagram: accuracy, time and size, as .svg"
    )
    _shared(parser)


def add_import_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the action `import`."""
    parser.add_argument(
        "--into", type=named, default=None, metavar="DIR", help="model directory (default: --models, [models] dir)"
    )
    parser.add_argument(
        "--from", dest="kind", choices=KINDS, default=None, help="kind of the source (default: recognised)"
    )
    for option, what in (("--name", "name of the model"), ("--version", "its version (default: 1)")):
        parser.add_argument(option, type=named, default=None, help=f"{what}, if the source has only one")
    parser.add_argument("--dry-run", action="store_true", default=False, help="show what would be written")
    parser.add_argument(
        "--skip",
        action="store_true",
        default=False,
        help="exit 0 although some models cannot be served and are skipped",
    )


def pull_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `models pull`."""
    add = partial(parser.add_argument, default=None)
    add("--into", type=named, metavar="DIR", help="the model directory that gets the release")
    add("--name", type=named, help="name of a bare model (default: that of its file)")
    add("--version", type=named, help="its version (default 1)")
    add("--digest", type=named, metavar="sha256:…", help="digest of the file or manifest")
    add("--accept-tag", action="store_true", default=False, help="take what the tag names now, and print its digest")
    add("--credentials-file", type=named, metavar="FILE", help="Docker's config.json or, for s3, Amazon's credentials")
    add("--limit-bytes", type=positive, default=0, metavar="N", help="largest release (default 16 GiB)")
    add("--endpoint", type=named, metavar="URL", help="s3: the service, if not Amazon's")
    add("--region", type=named, metavar="R", help="s3: the region (default us-east-1)")
    add("--style", choices=STYLES, default="", help="s3: where a URL names the bucket")
