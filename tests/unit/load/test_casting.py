"""Assignment of roles to simulated devices follows from the seed, and shares are whole devices."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.common.domain.errors import ConfigurationError
from gateway.common.domain.inventory import ACCELERATOR_KINDS
from tests.load.casting import HARDWARE, Behaviour, cast, inventory
from tests.load.settings import BehaviourShares, Settings

URL = "https://localhost"
percent = st.floats(0.0, 20.0)


@given(st.integers(1, 400), st.integers(), st.builds(BehaviourShares, percent, percent, percent, percent, percent))
def test_every_device_has_a_name_and_a_part_of_its_own(count: int, seed: int, shares: BehaviourShares) -> None:
    settings = Settings(URL, count, seed=seed, shares=shares)
    played = cast(settings)
    assert len({character.name for character in played}) == count
    assert [character.number for character in played] == list(range(count))
    assert played == cast(settings)


def test_shares_are_exact() -> None:
    shares = BehaviourShares(lying=1.0, replaying=2.0, flooding=0.5, failing=10.0, silent=3.5)
    parts = Counter(character.part for character in cast(Settings(URL, 200, shares=shares)))
    assert parts == {
        Behaviour.LYING: 2,
        Behaviour.REPLAYING: 4,
        Behaviour.FLOODING: 1,
        Behaviour.FAILING: 20,
        Behaviour.SILENT: 7,
        Behaviour.HONEST: 166,
    }


def test_another_seed_is_another_play() -> None:
    one, other = (cast(Settings(URL, 200, seed=seed, shares=BehaviourShares(failing=10.0))) for seed in (1, 2))
    assert [c.part for c in one] != [c.part for c in other]
    assert [c.hardware for c in one] != [c.hardware for c in other]


def test_all_hardware_is_met_and_known_to_the_gateway() -> None:
    played = cast(Settings(URL, 2000))
    assert {character.hardware for character in played} == set(HARDWARE)
    assert sum(hardware.percent for hardware in HARDWARE) == 100
    for character in played:
        found = inventory(character)
        assert found["profile"] == character.hardware.profile
        assert {entry["kind"] for entry in found["accelerators"]} <= set(ACCELERATOR_KINDS)


@pytest.mark.parametrize("wrong", [{"lying": -1.0}, {"silent": 101.0}, {"lying": 60.0, "failing": 50.0}])
def test_what_is_no_share_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigurationError, match="percent"):
        BehaviourShares(**wrong)


@pytest.mark.parametrize("wrong", [{"devices": 0}, {"devices": 1, "at_once": 0}, {"devices": 1, "poll_s": -1.0}])
def test_what_cannot_be_played_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigurationError, match="--"):
        Settings(URL, **wrong)  # type: ignore[arg-type]
