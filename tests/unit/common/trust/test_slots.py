"""Releases that may take a slot: models by slot, owner and policy, and tensors by what clients send and read."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import product
from typing import Any

import pytest

from gateway.common.domain.manifest import Artifact, ModelManifest
from gateway.common.domain.manifest_toml import read_manifest
from gateway.common.domain.policy import Policy
from gateway.common.domain.signed_release import SignedRelease, SignedVariant
from gateway.common.trust.distrust import Distrust, Reason
from gateway.common.trust.slots import check_signature, check_slot, incompatibility

SLOT = "meter-reader"
FILE = Artifact("manifest.toml", "ab" * 32, 3)
IMAGE = {"name": "image", "datatype": "FP32", "shape": [-1, 3, -1, 64], "layout": "NCHW"}
SCORES = {"name": "scores", "datatype": "FP32", "shape": [-1, -1]}
BOXES = {"name": "boxes", "datatype": "INT64", "shape": [-1, 4]}
JPEG = {"preprocess": {"decode": ["jpeg", "png"], "resize": [32, 64]}}
NV12 = {"preprocess": {"decode": ["nv12"], "frame": [48, 64], "resize": [32, 64]}}
VARIANT = f"""[[variant]]
name = "only"
runtime = "reference"
precision = "fp32"
artifacts = [{{path = "m.npz", sha256 = "{"ab" * 32}", bytes = 3}}]
"""


def text_of(value: object) -> str:
    """Return a value as TOML writes it."""
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key} = {text_of(one)}' for key, one in value.items())}}}"
    if isinstance(value, bool):
        return str(value).lower()
    return repr(value).replace("'", '"')


def manifest(
    inputs: list[dict[str, Any]], outputs: list[dict[str, Any]], version: str = "2", **top: Any
) -> ModelManifest:
    """Return a manifest that was read as devices read it."""
    lines = [f"{key} = {text_of(one)}" for key, one in {"schema": 1, "name": "m", "version": version, **top}.items()]
    for head, tables in (("input", inputs), ("output", outputs)):
        for table in tables:
            lines += [f"[[{head}]]", *(f"{key} = {text_of(one)}" for key, one in table.items())]
    return read_manifest("\n".join([*lines, VARIANT]), "manifest.toml")


BEFORE = manifest([IMAGE], [SCORES, BOXES], "1")
FORMS: dict[str, tuple[ModelManifest, str]] = {
    "the same": (manifest([IMAGE], [SCORES, BOXES]), ""),
    "other labels, task and golden set": (manifest([IMAGE], [SCORES, BOXES], labels=["a", "b"], task="detection"), ""),
    "an input that takes more": (manifest([{**IMAGE, "shape": [-1, 3, -1, -1]}], [SCORES, BOXES]), ""),
    "an output that varies less": (manifest([IMAGE], [{**SCORES, "shape": [-1, 10]}, BOXES]), ""),
    "one more output": (manifest([IMAGE], [SCORES, BOXES, {**BOXES, "name": "more"}]), ""),
    "outputs in another order": (manifest([IMAGE], [BOXES, SCORES]), ""),
    "images besides tensors": (manifest([IMAGE | JPEG], [SCORES, BOXES]), ""),
    "rows that are not joined": (manifest([IMAGE], [SCORES, BOXES], batch=False), ""),
    "another input's name": (manifest([{**IMAGE, "name": "frame"}], [SCORES, BOXES]), "requires the input frame"),
    "one more input": (
        manifest([IMAGE, {**BOXES, "name": "roi"}], [SCORES, BOXES]),
        "requires the input roi INT64[-1,4]",
    ),
    "another input's datatype": (
        manifest([{**IMAGE, "datatype": "UINT8"}], [SCORES, BOXES]),
        "its input is image UINT8[-1,3,-1,64] NCHW, that of 1 is image FP32[-1,3,-1,64] NCHW",
    ),
    "an input of other sizes": (manifest([{**IMAGE, "shape": [-1, 3, -1, 32]}], [SCORES, BOXES]), "its input is image"),
    "an input that takes less": (
        manifest([{**IMAGE, "shape": [-1, 3, 64, 64]}], [SCORES, BOXES]),
        "its input is image",
    ),
    "an input of one row": (manifest([{**IMAGE, "shape": [1, 3, -1, 64]}], [SCORES, BOXES]), "its input is image"),
    "an input of fewer dimensions": (
        manifest([{"name": "image", "datatype": "FP32", "shape": [-1, 3, -1]}], [SCORES, BOXES]),
        "its input is image",
    ),
    "an input of another layout": (
        manifest([{**IMAGE, "layout": "NHWC"}], [SCORES, BOXES]),
        "its input is image FP32[-1,3,-1,64] NHWC, that of 1 is image FP32[-1,3,-1,64] NCHW",
    ),
    "an input that refuses NaN": (manifest([{**IMAGE, "finite": True}], [SCORES, BOXES]), "refuses NaN and infinity"),
    "fewer rows": (manifest([IMAGE], [SCORES, BOXES], max_batch_rows=8), "it takes 8 rows at most"),
    "one output less": (manifest([IMAGE], [SCORES]), "it has no output boxes"),
    "another output's name": (
        manifest([IMAGE], [{**SCORES, "name": "probabilities"}, BOXES]),
        "it has no output scores",
    ),
    "another output's datatype": (
        manifest([IMAGE], [SCORES, {**BOXES, "datatype": "FP32"}]),
        "its output is boxes FP32",
    ),
    "an output of other sizes": (manifest([IMAGE], [SCORES, {**BOXES, "shape": [-1, 6]}]), "its output is boxes"),
    "an output that varies more": (manifest([IMAGE], [SCORES, {**BOXES, "shape": [-1, -1]}]), "its output is boxes"),
    "an output of more dimensions": (
        manifest([IMAGE], [SCORES, {**BOXES, "shape": [-1, 4, 1]}]),
        "its output is boxes",
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_tensors_that_fit_the_running_release_and_those_that_do_not(form: str) -> None:
    after, said = FORMS[form]
    found = incompatibility(BEFORE, after)
    assert said in found if said else not found, found


LESS: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "a kind of image": (JPEG, {"preprocess": {"decode": ["png"], "resize": [32, 64]}}, "refuses images of jpeg"),
    "all images": (JPEG, {}, "refuses images of jpeg, png"),
    "raw frames of this size": (
        NV12,
        {"preprocess": {"decode": ["nv12"], "frame": [96, 64], "resize": [32, 64]}},
        "takes raw frames of [height, width] [96, 64]",
    ),
}


SOUND = {"name": "sound", "datatype": "FP32", "shape": [-1, -1]}
WAV = {"decode": ["wav", "s16le"], "rate_hz": 16000, "source_rate_hz": 48000}
LESS_SOUND: dict[str, tuple[dict[str, Any], str]] = {
    "no encoding is lost": (WAV | {"limit_s": 90}, ""),
    "an encoding": (WAV | {"decode": ["s16le"]}, "refuses recordings of wav"),
    "a rate of raw samples": (WAV | {"source_rate_hz": 44100}, "takes raw samples of 44100 Hz and 1 channels"),
    "a duration": (WAV | {"limit_s": 5}, "refuses recordings of more than 5 s"),
}


@pytest.mark.parametrize("what", LESS_SOUND)
def test_recordings_are_taken_as_before(what: str) -> None:
    after, said = LESS_SOUND[what]
    told = incompatibility(manifest([SOUND | {"audio": WAV}], [SCORES]), manifest([SOUND | {"audio": after}], [SCORES]))
    assert said in told if said else not told
    assert "refuses recordings of s16le, wav" in incompatibility(
        manifest([SOUND | {"audio": WAV}], [SCORES]), manifest([SOUND], [SCORES])
    )


@pytest.mark.parametrize("what", LESS)
def test_encoded_images_are_taken_as_before(what: str) -> None:
    before, after, said = LESS[what]
    told = incompatibility(manifest([IMAGE | before], [SCORES]), manifest([IMAGE | after], [SCORES]))
    assert said in told


@pytest.mark.parametrize(("before", "after", "fits"), [(8, 8, True), (8, 16, True), (8, 0, True), (8, 4, False)])
def test_rows_of_a_request_are_taken_as_before(before: int, after: int, fits: bool) -> None:
    first, second = (manifest([IMAGE], [SCORES], max_batch_rows=most) for most in (before, after))
    assert (not incompatibility(first, second)) is fits


def release(model: str = SLOT, owner: str = "acme", slots: tuple[str, ...] = (), **changes: bool) -> SignedRelease:
    variant = SignedVariant("only", "reference", "fp32", ("cpu",), (FILE,))
    at = datetime(2030, 1, 1, tzinfo=UTC)
    return SignedRelease(owner, model, "1", "1", at, FILE, None, (variant,), slots, **changes)


@pytest.mark.parametrize(("running", "coming"), [*product((False, True), repeat=2)])
def test_one_offline_signature_of_both_releases_lets_the_tensors_change(running: bool, coming: bool) -> None:
    other, _ = FORMS["another input's name"]
    present, new = release(changes_signature=running), release(changes_signature=coming)
    if running or coming:
        check_signature(new, other, present, BEFORE)
        return
    with pytest.raises(Distrust) as caught:
        check_signature(new, other, present, BEFORE)
    assert caught.value.reason is Reason.INCOMPATIBLE


NAMING = Policy(slots=((SLOT, ("acme/meter-reader", "globex/pose")),))
OTHER_SLOT = Policy(slots=(("door", ("acme/door",)),))
RULES: dict[str, tuple[SignedRelease, SignedRelease | None, tuple[Policy, ...], bool]] = {
    "the same model": (release(), release(), (), True),
    "the same model, signed for other slots": (release(slots=("door",)), release(), (), False),
    "another model of the owner": (release("pose"), release(), (), False),
    "another model of the owner, signed for the slot": (release("pose", slots=(SLOT,)), release(), (), True),
    "another model of the owner, signed for other slots": (release("pose", slots=("door",)), release(), (), False),
    "another owner's model": (release("pose", "globex"), release(), (), False),
    "another owner's model of that name": (release(owner="globex"), release(), (), False),
    "another owner's model, signed for the slot by that owner": (
        release("pose", "globex", (SLOT,)),
        release(),
        (),
        False,
    ),
    "another owner's model that the policy names": (release("pose", "globex"), release(), (NAMING,), True),
    "… and its owner signed for other slots": (release("pose", "globex", ("door",)), release(), (NAMING,), False),
    "another owner's model that the policy does not name": (release("gate", "globex"), release(), (NAMING,), False),
    "another model of the owner that the policy does not name": (
        release("pose", slots=(SLOT,)),
        release(),
        (NAMING,),
        False,
    ),
    "a policy that names another slot": (release("pose", "globex"), release(), (OTHER_SLOT,), False),
    "one of two policies does not name it": (
        release("pose", "globex"),
        release(),
        (NAMING, Policy(slots=((SLOT, ("acme/meter-reader",)),))),
        False,
    ),
    "any model in an empty slot": (release("pose", "globex"), None, (), True),
    "a model in an empty slot that it is not signed for": (release(slots=("door",)), None, (), False),
    "a model in an empty slot that the policy does not name": (release("gate", "globex"), None, (NAMING,), False),
}


@pytest.mark.parametrize("rule", RULES)
def test_what_is_signed_offline_says_which_model_a_slot_takes(rule: str) -> None:
    new, running, policies, taken = RULES[rule]
    if taken:
        check_slot(SLOT, new, running, policies)
        return
    with pytest.raises(Distrust) as caught:
        check_slot(SLOT, new, running, policies)
    assert caught.value.reason is Reason.WRONG_SLOT
