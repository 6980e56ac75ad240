"""The strict reader of YAML."""

import pytest
import yaml

from gateway.common.domain.errors import ConfigurationError
from gateway.workshop.importing.yaml_document import read_yaml


def test_documents_of_tools_are_read_as_they_meant_them():
    document = {
        "task": "detect",
        "imgsz": [640, 480],
        "stride": 32,
        "names": {0: "person", 1: "traffic light: red", 2: "it's", 3: "no", 4: "12", 5: "ελ"},
        "args": {"half": False, "nms": True, "conf": 0.25, "none": None, "empty": {}, "list": []},
        "text": "word " * 60,
        "date": "2026-11-20 10:11:12",
    }
    text = yaml.safe_dump(document, sort_keys=False, allow_unicode=True)
    assert read_yaml(text, "m.yaml") == document | {
        "names": {str(key): name for key, name in document["names"].items()}
    }


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("~", None),
        ("True", True),
        ("-7", -7),
        ("1e3", 1000.0),
        (".5", 0.5),
        ("'1'", "1"),
        ("0x1f", "0x1f"),
        ("1_0", "1_0"),
    ],
)
def test_plain_values(text, value):
    found = read_yaml(f"key: {text}", "m.yaml")["key"]
    assert (found, type(found)) == (value, type(value))


def test_a_number_of_too_many_digits_stays_text():
    assert read_yaml(f"key: {'9' * 5000}", "m.yaml")["key"] == "9" * 5000


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a: &x\n  b: *x", "m.yaml:1: anchors and aliases"),
        ("a: 1\nb: *x", "m.yaml:2: "),
        ("&x a: 1", "m.yaml:1: "),
        ("a: !!python/name:os.system ''", "m.yaml:1: the tag"),
        ("a: 1\nb: 2\na: 3", "m.yaml:3: the key 'a' is given twice"),
        ("? [1]\n: 2", "m.yaml:1: a key must be plain text"),
        ("a: [1,\n", "m.yaml:2: not valid YAML"),
        ("a: 1\n---\nb: 2", "m.yaml:2: a second document"),
        ("a: " + "[" * 5000, "m.yaml:1: has more than 16 levels"),
        ("- a", "must be a mapping"),
        ("", "must be a mapping"),
        ("a: \x00", "not valid YAML"),
        ("a: [" + "1," * 100_001 + "]", "100000 values"),
    ],
)
def test_what_is_refused(text, problem):
    with pytest.raises(ConfigurationError, match=problem.replace("[", r"\[")):
        read_yaml(text, "m.yaml")
