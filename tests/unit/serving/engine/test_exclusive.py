"""Turns on an accelerator that one process at a time can hold."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gateway.common.domain.errors import VariantError
from gateway.common.domain.selection import Candidate
from gateway.serving.engine import exclusive, loader
from gateway.serving.engine.exclusive import ExclusiveUse
from tests.simulators.engine_rig import Rig, manifest


def candidate(accelerator: str, runtime: str = "litert") -> Candidate:
    return cast(Candidate, SimpleNamespace(accelerator=accelerator, variant=SimpleNamespace(runtime=runtime)))


def session() -> Any:
    return SimpleNamespace(close=lambda: None, lends=True, run=lambda inputs: inputs)


def test_a_trial_waits_for_its_turn_and_none_starts_while_a_session_is_open() -> None:
    async def run() -> None:
        use, coral = ExclusiveUse(), candidate("coral-usb")
        async with use.turn(coral):
            second = asyncio.create_task(use.turn(coral).__aenter__())
            async with use.turn(candidate("coral-pcie")), use.turn(candidate("cpu")):
                await asyncio.sleep(0)
            assert not second.done()
        await second

    asyncio.run(run())


def test_a_held_accelerator_names_its_holders_until_all_are_closed() -> None:
    use, coral = ExclusiveUse(), candidate("coral-usb")
    assert use.obstacle(coral) == ""
    first, second = use.opened(coral, "door/1", session), use.opened(coral, "gate/2", session)
    assert first.lends
    assert use.obstacle(coral).startswith("coral-usb is held by door/1, gate/2, and one process at a time")
    first.close()
    first.close()
    assert "by gate/2," in use.obstacle(coral)
    second.close()
    assert use.obstacle(coral) == ""


def test_an_accelerator_is_held_while_a_session_opens_and_free_if_that_fails() -> None:
    use, coral = ExclusiveUse(), candidate("coral-usb")
    seen = []

    def refused() -> Any:
        seen.append(use.obstacle(coral))
        raise OSError("no chip")

    with pytest.raises(OSError, match="no chip"):
        use.opened(coral, "door/1", refused)
    assert seen[0].startswith("coral-usb is held by door/1,")
    assert use.obstacle(coral) == ""


def test_other_accelerators_are_never_held() -> None:
    use, cpu = ExclusiveUse(), candidate("cpu")
    opened = session()
    assert use.opened(cpu, "door/1", lambda: opened) is opened
    assert use.obstacle(cpu) == use.obstacle(candidate("coral-usb", "unknown")) == ""


@pytest.mark.asyncio
@pytest.mark.parametrize("tried", [False, True])
async def test_an_opening_that_hangs_holds_the_accelerator_and_nobody_waits_for_it(
    monkeypatch: pytest.MonkeyPatch, tried: bool
) -> None:
    monkeypatch.setattr(exclusive, "_exclusive", lambda _: "coral-usb")
    monkeypatch.setattr(loader, "TURN_S", 0.05)
    rig = Rig()
    rig.runtime.gate.clear()
    first = asyncio.create_task(rig.stage(manifest("door")))
    try:
        await asyncio.to_thread(rig.runtime.opening.acquire)
        rig.verdicts.broken = not tried
        with pytest.raises(VariantError, match=r"coral-usb is held by door/1, (whose|and)") as refused:
            await asyncio.wait_for(rig.stage(manifest("gate")), 30)
        assert refused.value.transient
        assert rig.tried == ["a"]
    finally:
        rig.runtime.gate.set()
        await first
        await rig.repository.close()
