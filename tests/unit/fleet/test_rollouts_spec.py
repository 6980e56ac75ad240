"""Specifications from options and files: what is sent is what the controller reads, and what an approver is shown."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.cli.parser import PROGRAM
from fleet.cli.rollouts_options import duration, waves
from fleet.cli.rollouts_spec import specification, time_words, words
from fleet.controller.rollouts.spec import Rollback, Spec
from fleet.controller.rollouts.spec_form import read_spec, spec_document
from gateway.common.domain.errors import ConfigurationError

TARGET = "models/acme/meter-reader/2/release"
RESOLVED = {"path": TARGET, "size_bytes": 10, "sha256": "ab" * 32}
TOML = """
target = "acme/meter-reader/2"
query = "tag = pilot"
waves = [{percent = 10}, {percent = 100, needs_approval = true}]
blackouts = [{start = 2027-12-20T00:00:00Z, end = "2028-01-03T00:00:00Z"}]
[success]
min_sample = 3
min_percent = 80
[abort]
min_sample = 9
max_failed_percent = 2.5
[[windows]]
start = "22:00"
end = "05:00"
"""


def document(*options: str) -> dict:
    return specification(PROGRAM.parser().parse_args(["rollouts", "create", *options]))


def read(*options: str) -> Spec:
    """Return the spec that the controller reads, once it has looked the release up."""
    said = document(*options)
    assert said["target"] in {TARGET, "acme/meter-reader/2"}
    return read_spec({**said, "target": RESOLVED})


def test_a_release_is_enough() -> None:
    spec = read("--target", "acme/meter-reader/2")
    assert (spec.name, spec.slot, spec.query) == ("meter-reader-2", "meter-reader", "all")
    assert [wave.percent for wave in spec.waves] == [5, 25, 100]
    assert (spec.canary, spec.rollback, spec.dynamic) == (None, Rollback.OFFERED, True)


@pytest.mark.parametrize(
    ("release", "name", "slot"),
    [("@settings/berlin/3", "berlin-3", "@settings"), ("@software/edge-gateway/0.3", "edge-gateway-0.3", "@software")],
)
def test_releases_of_reserved_slots_take_them(release: str, name: str, slot: str) -> None:
    said = document("--target", release)
    kind, *parts = release.removeprefix("@").split("/")
    assert (said["name"], said["slot"], said["target"]) == (name, slot, f"{kind}/{'/'.join(parts)}/release")
    assert read_spec({**said, "target": {**RESOLVED, "path": said["target"]}}).slot == slot


def test_every_option_says_its_value() -> None:
    spec = read(
        *("--target", TARGET, "--slot", "reader", "--name", "n", "--query", "site = berlin", "--static"),
        *("--waves", "5%,200!,100%", "--canary", "2", "--canary-soak", "30m", "--soak", "2h", "--silence", "1d"),
        *("--deadline", "2d", "--retries", "3", "--backoff", "90s", "--success-percent", "80", "--success-sample", "7"),
        *("--failed-percent", "1.5", "--failed-sample", "9", "--rollback", "forced"),
    )
    assert (spec.name, spec.slot, spec.query, spec.dynamic) == ("n", "reader", "site = berlin", False)
    assert [(wave.percent, wave.count, wave.needs_approval) for wave in spec.waves] == [
        (5, None, False),
        (None, 200, True),
        (100, None, False),
    ]
    assert spec.canary is not None
    assert (spec.canary.per_accelerator, spec.canary.soak_s) == (2, 1800)
    assert (spec.soak_s, spec.silence_s, spec.deadline_s) == (7200, 86_400, 172_800)
    assert (spec.retries.limit, spec.retries.backoff_s) == (3, 90)
    assert (spec.success.min_percent, spec.success.min_sample) == (80, 7)
    assert (spec.abort.max_failed_percent, spec.abort.min_sample) == (1.5, 9)
    assert spec.rollback is Rollback.FORCED


def test_a_rollout_stands_by_an_option_or_a_file(tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_text(f"standing = true\n{TOML}")
    for options in (("--target", TARGET, "--standing"), ("--spec", str(tmp_path / "s.toml"))):
        assert read(*options).standing
        assert any(name == "standing" for name, _ in words(spec_document(read(*options))))
    assert "standing" not in document("--target", TARGET)


def test_options_change_single_values_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "s.toml"
    file.write_text(TOML)
    spec = read("--spec", str(file), "--failed-percent", "7", "--query", "all")
    assert (spec.abort.max_failed_percent, spec.abort.min_sample, spec.query) == (7, 9, "all")
    assert (spec.success.min_percent, spec.waves[1].needs_approval, spec.name) == (80, True, "meter-reader-2")
    assert spec.blackouts[0].start.isoformat() == "2027-12-20T00:00:00+00:00"
    (tmp_path / "s.json").write_text(json.dumps(document("--spec", str(file))))
    assert document("--spec", str(tmp_path / "s.json")) == document("--spec", str(file))


@pytest.mark.parametrize(
    ("name", "text"),
    [("s.toml", "x = = 1"), ("s.json", "{"), ("s.json", "[]"), ("s.json", "[" * 100_000), ("s.json", "\xff")],
)
def test_a_file_that_is_no_specification(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text, encoding="latin-1")
    with pytest.raises(ConfigurationError, match=name):
        document("--spec", str(tmp_path / name))


def test_no_release_is_said() -> None:
    with pytest.raises(ConfigurationError, match="no release is named"):
        document("--query", "all")


@pytest.mark.parametrize("text", ["", "x", "5%,", "5%%", "-5%", "5%?", "!", "5 %"])
def test_what_are_no_waves(text) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="write waves as"):
        waves(text)


@pytest.mark.parametrize("text", ["", "h", "1w", "-1s", "1h30m", "1e3"])
def test_what_is_no_time(text) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="write a time as"):
        duration(text)


@pytest.mark.parametrize(
    ("text", "seconds", "said"), [("90", 90, "90 s"), ("90m", 5400, "90 min"), ("2d", 172_800, "2 d")]
)
def test_times_are_said_exactly(text, seconds, said) -> None:
    assert duration(text) == seconds
    assert time_words(seconds) == said


def test_an_approver_is_shown_everything_that_binds(tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_text(TOML)
    options = (
        "--spec",
        str(tmp_path / "s.toml"),
        "--canary",
        "2",
        "--retries",
        "1",
        "--static",
        "--rollback",
        "forced",
    )
    shown = "\n".join(f"{name}: {value}" for name, value in words(spec_document(read(*options))))
    for said in (
        "release: acme/meter-reader/2 into the slot meter-reader",
        f"digest: {'ab' * 32}",
        "devices: tag = pilot; devices that match later do not join",
        "canary: 2 of each kind of accelerators first, watched for 1 h",
        "waves: 10 %, 100 % (needs approval); 1 h between",
        "through: 80 % of a wave committed, 3 devices at least",
        "halts: above 2.5 % failed, 95 % sure, judged from 9 devices on",
        "failed: also silent for 1 d, or not done in 7 d",
        "retries: 1 for a device that failed, after 1 h and then longer",
        "window: mon, tue, wed, thu, fri, sat, sun 22:00-05:00 (UTC)",
        "blackout: 2027-12-20T00:00:00Z to 2028-01-03T00:00:00Z",
        "after a halt: all go back by themselves",
    ):
        assert said in shown


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["path", "min_sample", "x"]), inner),
    max_leaves=4,
)
KEYS = st.sampled_from(["target", "slot", "name", "query", "waves", "canary", "success", "abort", "retries", "odd"])


@given(st.dictionaries(KEYS, VALUES, max_size=6))
def test_whatever_a_file_holds_is_sent_or_refused(tmp_path_factory, held) -> None:
    file = tmp_path_factory.getbasetemp() / "held.json"
    file.write_text(json.dumps(held))
    try:
        said = document("--spec", str(file), "--failed-sample", "3")
    except ConfigurationError:
        return
    assert said["abort"]["min_sample"] == 3
    assert set(held) <= set(said)


def test_canaries_are_watched_as_long_as_waves_where_nothing_else_is_said() -> None:
    spec = read("--target", "acme/meter-reader/2", "--canary", "1", "--soak", "2h")
    assert spec.canary is not None
    assert (spec.canary.soak_s, spec.soak_s) == (7200, 7200)
