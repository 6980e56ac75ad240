"""A constant of a settings class: a file that sets it is refused with its name; tests give it other values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pytest

from gateway.common.domain.document import read_document
from gateway.common.domain.errors import ConfigurationError
from gateway.common.domain.settings import read_settings
from tests.simulators import constants


@dataclass(frozen=True, slots=True)
class Inner:
    """A table in a table."""

    depth: int = 1
    retries: ClassVar[int] = 3


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings with constants."""

    limit: int = 5
    pause_s: ClassVar[float] = 2.0
    inner: Inner = Inner()


TEXT = "[one]\nlimit = 6\npause_s = 0.5\n[one.inner]\ndepth = 2\nretries = 9\n"


def test_a_constant_in_a_file_is_refused_with_its_name_and_value() -> None:
    table = read_document("[one]\npause_s = 2.0\n", "a.toml").table("one")
    assert table is not None
    with pytest.raises(ConfigurationError) as caught:
        read_settings(Settings, table)
    what = f"is not a setting but the constant {__name__}.Settings.pause_s (2.0); take this key out"
    assert str(caught.value) == f"a.toml:2: one.pause_s: {what}"


def test_a_test_takes_the_constants_out_of_a_text() -> None:
    text, taken = constants.take(TEXT, {"one": Settings})
    assert text == "[one]\nlimit = 6\n[one.inner]\ndepth = 2\n"
    assert taken == {(__name__, "Settings", "pause_s"): 0.5, (__name__, "Inner", "retries"): 9}


def test_a_copy_of_settings_has_other_constants() -> None:
    changed = constants.settings_with(Settings(7), pause_s=0.1, inner=Inner(3))
    assert (changed.limit, changed.pause_s, changed.inner.depth, Settings.pause_s) == (7, 0.1, 3, 2.0)
