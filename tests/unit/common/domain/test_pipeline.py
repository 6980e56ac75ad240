"""Document of a pipeline: what it declares, and each refusal with file and line."""

from __future__ import annotations

import pytest

from gateway.common.domain.errors import ConfigurationError
from gateway.common.domain.manifest import StreamLimits
from gateway.common.domain.pipeline import (
    CountStep,
    MatchStep,
    MergeStep,
    ModelStep,
    RuleStep,
    SelectStep,
    TileStep,
    TrackStep,
)
from gateway.common.domain.pipeline_toml import read_pipeline
from gateway.common.domain.tensor import Datatype

WHOLE = """schema = 1
name = "chain"
version = "1"
[input]
image = "image"
words = "text"
x = "FP32[4, -1]"
n = "INT64[]"
[[step]]
name = "parts"
tile = "image"
size = [64, 32]
overlap = 0.2
[[step]]
name = "cars"
model = "find@2"
of = "parts.image"
[[step]]
name = "all"
merge = ["cars"]
nms_iou = 0.5
[[step]]
name = "best"
select = "all"
where = "score > 0.5"
by = "score"
top = 3
[[step]]
name = "face"
match = "people.npz"
of = "x"
least = 0.7
unknown = "nobody"
[[step]]
name = "policy"
rule = { ok = "n > 1" }
[[step]]
name = "large"
model = "big"
inputs = { "a:0" = "n", b = "x" }
when = "policy.ok"
else = "cars"
deadline_s = 0.5
fallback = { y = 1.5, label = "none", ok = true }
[output]
number = "count(best)"
things = { box = "best.box", kind = "best.label" }
"""


def test_everything_that_may_be_declared_is_read() -> None:
    pipeline = read_pipeline(WHOLE, "pipeline.toml")
    assert [(each.name, each.kind, each.shape) for each in pipeline.inputs] == [
        ("image", "image", ()),
        ("words", "text", ()),
        ("x", "tensor", (4, -1)),
        ("n", "tensor", ()),
    ]
    assert pipeline.inputs[3].datatype is Datatype.INT64
    kinds = [TileStep, ModelStep, MergeStep, SelectStep, MatchStep, RuleStep, ModelStep]
    assert [type(step) for step in pipeline.steps] == kinds
    assert pipeline.models == (("find", "2"), ("big", ""))
    assert pipeline.galleries == ("people.npz",)
    large = pipeline.steps[-1]
    assert isinstance(large, ModelStep)
    assert list(large.inputs) == ["a:0", "b"]
    assert (large.otherwise, large.deadline_s, large.fallback) == ("cars", 0.5, {"y": 1.5, "label": "none", "ok": True})
    assert list(pipeline.outputs) == ["number", "things"]


def step(*lines: str) -> str:
    """Return a document whose second step begins at line 10."""
    head = (
        'schema = 1\nname = "c"\nversion = "1"\n[input]\nx = "FP32[4]"\n[[step]]\nname = "a"\nmodel = "m"\nof = "x"\n'
    )
    return head + "\n".join(("[[step]]", *lines)) + '\n[output]\ny = "a.y"\n'


ZONE = "[[0, 0], [1, 0], [0, 1]]"


def counting(*lines: str) -> str:
    """Return a document with a step that counts, whose lines and zones begin at line 14."""
    return step('name = "b"', 'count = "a"', 'image = "x"', *lines)


def test_steps_with_state_are_read() -> None:
    lines = "lines = { door = [0.1, 0.5, 0.9, 0.5] }", "zones = { yard = [[0.1, 0.1], [0.9, 0.1], [0.5, 0.9]] }"
    text = counting(*lines).replace(
        "[output]", '[[step]]\nname = "t"\ntrack = "a"\nhigh = 0.6\nlow = 0.2\nlost = 9\n[output]'
    )
    pipeline = read_pipeline(text + "[state]\nkeys = 7\nidle_s = 9.5\nkeep_on_disk = true\n", "p")
    count, track = pipeline.steps[1:]
    door, yard = ((0.1, 0.5), (0.9, 0.5)), ((0.1, 0.1), (0.9, 0.1), (0.5, 0.9))
    assert count == CountStep("b", "a", "x", {"door": door}, {"yard": yard})
    assert count.columns == ["door_in", "door_out", "door_in_total", "door_out_total", "yard", "yard_s"]
    assert track == TrackStep("t", "a", 0.6, 0.2, 9)
    assert pipeline.state == StreamLimits(7, 9.5, keep_on_disk=True)
    assert read_pipeline(text, "p").state is None


@pytest.mark.parametrize(
    ("document", "line", "problem"),
    [
        (
            WHOLE.replace("[output]", '[output]\nresult = "x"'),
            WHOLE[: WHOLE.index("[output]")].count("\n") + 2,
            "the document",
        ),
        (WHOLE.replace("schema = 1", "schema = 2"), 1, "must be between 1 and 1"),
        (WHOLE.replace('name = "chain"', 'name = "../chain"'), 2, "must be 1 to 128 letters"),
        (WHOLE.replace('"FP32[4, -1]"', '"FP32[4"'), 7, "a datatype with the shape of a row"),
        (WHOLE.replace('"FP32[4, -1]"', '"FP31[4]"'), 7, "a datatype with the shape of a row"),
        (WHOLE.replace('"FP32[4, -1]"', '"BYTES[4]"'), 7, "a datatype with the shape of a row"),
        (WHOLE.replace('"FP32[4, -1]"', '"FP32[4,]"'), 7, "write sizes with commas"),
        (WHOLE.replace('"FP32[4, -1]"', '"FP32[0]"'), 7, "sizes must be positive"),
        (WHOLE.replace('"FP32[4, -1]"', '"FP32[-2]"'), 7, "sizes must be positive"),
        (WHOLE.replace('x = "FP32', 'X-1 = "FP32'), 7, "the name 'X-1' must be"),
        (WHOLE.replace('x = "FP32', 'for = "FP32'), 7, "no word of expressions"),
        (WHOLE.replace('words = "text"', 'name = "text"\n_B = "text"'), 7, "the name '_B' must be"),
        (step('name = "b"', 'rule = { p = "1" }', 'more = "1"'), 13, "unknown key"),
        (step('name = "a"', 'rule = { p = "1" }'), 11, "is the name of another step or input"),
        (step('name = "x"', 'rule = { p = "1" }'), 11, "is the name of another step or input"),
        (step('name = "class"', 'rule = { p = "1" }'), 11, "no word of expressions"),
        (step('name = "B"', 'rule = { p = "1" }'), 11, "must be 1 to 32 lower-case letters"),
        (
            step('name = "b"'),
            11,
            "must have one of model, rule, select, merge, tile, match, track, count, window, python; it has none",
        ),
        (step('name = "b"', 'model = "m"', "rule = {}"), 11, "it has model and rule"),
        (step('name = "b"', 'model = "m"'), None, "missing"),
        (step('name = "b"', 'model = "m m"', 'of = "x"'), 12, "must be 1 to 128 letters"),
        (step('name = "b"', 'model = "m@"', 'of = "x +"'), 13, "is no expression"),
        (step('name = "b"', 'model = "m@/"', 'of = "x"'), 12, "must be 1 to 128 letters"),
        (step('name = "b"', 'model = "m"', 'of = "x"', 'inputs = { y = "x" }'), 13, "unknown key"),
        (step('name = "b"', 'model = "m"', 'of = "x"', 'else = "a"'), 14, "is for rows that 'when' skips"),
        (step('name = "b"', 'model = "m"', 'of = "x"', 'when = "a.y > 1"', 'else = "c"'), 15, "is no earlier step"),
        (step('name = "b"', 'model = "m"', 'of = "x"', 'when = "a.y > 1"', 'else = "b"'), 15, "is no earlier step"),
        (step('name = "b"', 'model = "m"', 'of = "x"', "deadline_s = -1"), 14, "must be between"),
        (step('name = "b"', 'model = "m"', 'of = "x"', "fallback = { y = [1] }"), 14, "a number, a text or a flag"),
        (step('name = "b"', "rule = {}"), 12, "must name 1 to 64 values"),
        (step('name = "b"', 'rule = { "P p" = "1" }'), 12, "the name 'P p' must be"),
        (step('name = "b"', 'rule = { p = "1 ** 2" }'), 12, "not part of an expression"),
        (step('name = "b"', 'select = "c"'), 12, "is no earlier step; a step reads inputs and steps above it"),
        (step('name = "b"', 'select = "b"'), 12, "is no earlier step"),
        (step('name = "b"', 'select = "a"', 'by = "score"'), 13, "orders the rows of which 'top' remain"),
        (step('name = "b"', 'select = "a"', "top = 1001"), 13, "must be between 0 and 1000"),
        (step('name = "b"', "merge = []"), 12, "must name each step once"),
        (step('name = "b"', 'merge = ["a", "a"]'), 12, "must name each step once"),
        (step('name = "b"', 'merge = ["c"]'), 12, "is no earlier step"),
        (step('name = "b"', 'merge = ["a"]', "nms_iou = 1.5"), 13, "must be between"),
        (step('name = "b"', 'tile = "x"', "size = [0, 5]"), 13, "must be \\[height, width\\]"),
        (step('name = "b"', 'tile = "x"', "size = [5]"), 13, "must be \\[height, width\\]"),
        (step('name = "b"', 'tile = "x"', "size = [9000, 5]"), 13, "must be \\[height, width\\]"),
        (step('name = "b"', 'tile = "x"', "size = [5, 5]", "overlap = 1.0"), 14, "must be between"),
        (step('name = "b"', 'model = "m"', 'ask = "x"', 'of = "x"'), 14, "has one of 'ask', 'of' and 'inputs'"),
        (step('name = "b"', 'model = "m"', 'ask = "x"', 'answer = { a = "texts" }'), 14, "must be 'text', 'number'"),
        (step('name = "b"', 'model = "m"', 'ask = "x"', 'answer = { a = ["on", "on"] }'), 14, "different texts"),
        (step('name = "b"', 'model = "m"', 'ask = "x"', "answer = { a = [] }"), 14, "1 to 64 different texts"),
        (step('name = "b"', 'model = "m"', 'ask = "x"', 'answer = { A = "text" }'), 14, "the name 'A' must be"),
        (step('name = "b"', 'model = "m"', 'ask = "x"', f'system = "{"s" * 16_385}"'), 14, "at most 16384 are read"),
        (step('name = "b"', 'model = "m"', 'ask = "x"', "max_tokens = 0"), 14, "must be between"),
        (step('name = "b"', 'model = "m"', 'of = "x"', "max_tokens = 5"), 14, "unknown key"),
        (step('name = "b"', 'match = "../people.npz"', 'of = "x"'), 12, "must name an .npz file of this folder"),
        (step('name = "b"', 'match = "people.csv"', 'of = "x"'), 12, "must name an .npz file of this folder"),
        (step('name = "b"', 'match = "people.npz"', 'of = "x"', "least = 2"), 14, "must be between"),
        (step('name = "b"', 'track = "c"'), 12, "is no earlier step"),
        (step('name = "b"', 'track = "a"', "high = 1.5"), 13, "must be between"),
        (step('name = "b"', 'track = "a"', "high = nan"), 13, "must be between"),
        (step('name = "b"', 'track = "a"', "low = 0.6"), 13, "must be at most 'high', which is 0.5"),
        (step('name = "b"', 'track = "a"', "lost = -1"), 13, "must be between"),
        (step('name = "b"', 'track = "a"', "top = 1"), 13, "unknown key"),
        (step('name = "b"', 'count = "a"', 'image = "y"'), 13, "is no earlier step"),
        (step('name = "b"', 'count = "a"', 'image = "x"'), 12, "needs 1 to 64 lines and zones"),
        (counting("lines = { in = [0, 0, 1, 1] }"), 14, "no word of expressions"),
        (counting("lines = { d = [0.5, 0.5, 0.5, 0.5] }"), 14, "has 2 points, of which 1 are equal to others"),
        (counting("lines = { d = [0, 0, 1] }"), 14, "must be \\[x1, y1, x2, y2\\], in shares"),
        (counting("lines = { d = [0, 0, 1, 1.01] }"), 14, "in shares of the picture from 0 to 1"),
        (counting("lines = { d = [0, 0, 1, nan] }"), 14, "in shares of the picture"),
        (counting("lines = { d = [0, 0, 1, true] }"), 14, "in shares of the picture"),
        (counting("lines = { d = [0, 0, 1, 0x" + "f" * 5000 + "] }"), 14, "in shares of the picture"),
        (counting('lines = { d = "0, 0, 1, 1" }'), 14, "must be \\[x1, y1, x2, y2\\]"),
        (counting("zones = { z = [[0, 0], [1, 1]] }"), 14, "must be 3 to 64 points"),
        (counting(f"zones = {{ z = {[[n / 65, 0] for n in range(65)]} }}"), 14, "must be 3 to 64 points"),
        (counting("zones = { z = [[0, 0], [1, 1], [0, 0]] }"), 14, "has 3 points, of which 1 are equal"),
        (counting("zones = { z = [[0, 0], [1, 1], 3] }"), 14, "must be 3 to 64 points"),
        (counting("zones = { z = [[0, 0], [1, -0.1], [0, 1]] }"), 14, "in shares of the picture"),
        (counting("lines = { a = [0, 0, 1, 1] }", f"zones = {{ a_in = {ZONE} }}"), 12, "two columns .* 'a_in'"),
        (counting(f"zones = {{ a = {ZONE}, a_s = {ZONE} }}"), 12, "two columns with the name 'a_s'"),
        (step('name = "b"', 'track = "a"', "[state]", "keys = 0"), 14, "must be between 1 and 100000"),
        (step('name = "b"', 'track = "a"', "[state]", "keys = 100001"), 14, "must be between 1 and 100000"),
        (step('name = "b"', 'track = "a"', "[state]", "idle_s = 0.5"), 14, "must be between"),
        (step('name = "b"', 'track = "a"', "[state]", "keep = 5"), 14, "unknown key"),
        (WHOLE.replace('number = "count(best)"', '9umber = "1"'), 46, "the name '9umber' must be"),
        (WHOLE.replace("kind =", '"k k" ='), 47, "the name 'k k' must be"),
        (WHOLE + "more = 1\n", 48, "must be a string|unknown key"),
        ("schema = 1\nschema = 1", 2, "written twice"),
        ("[", None, "not valid TOML"),
    ],
)
def test_each_refusal_names_file_and_line(document: str, line: int | None, problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem) as caught:
        read_pipeline(document, "chain/1/pipeline.toml")
    assert caught.value.file == "chain/1/pipeline.toml"
    assert caught.value.line == line


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        ('schema = 1\nname = "c"\nversion = "1"\n[input]\nx = "text"\n[output]\ny = "x"', "runs at least one model"),
        (step('name = "b"', 'model = "m"', 'of = "x"').replace("[input]\nx", "[inputs]\nx"), "input: missing"),
        (step('name = "b"', 'rule = { p = "1" }').replace('y = "a.y"', ""), "must name 1 to 64 outputs"),
        (step('name = "b"', 'rule = { p = "1" }').replace('x = "FP32[4]"', ""), "must name 1 to 64 inputs"),
    ],
)
def test_what_is_missing_is_named(document: str, problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        read_pipeline(document, "pipeline.toml")


def test_sixty_four_steps_are_read_and_one_more_is_refused() -> None:
    def of(count: int) -> str:
        steps = "".join(f'[[step]]\nname = "s{n}"\nmodel = "m"\nof = "x"\n' for n in range(count))
        return f'schema = 1\nname = "c"\nversion = "1"\n[input]\nx = "text"\n{steps}[output]\ny = "s0.y"\n'

    assert len(read_pipeline(of(64), "p").steps) == 64
    with pytest.raises(ConfigurationError, match="65 steps; at most 64"):
        read_pipeline(of(65), "p")


def test_a_fallback_without_values_is_none_that_is_missing() -> None:
    steps = read_pipeline(step('name = "b"', 'model = "m"', 'of = "x"', "fallback = {}"), "p").steps
    assert [each.fallback for each in steps if isinstance(each, ModelStep)] == [None, {}]
