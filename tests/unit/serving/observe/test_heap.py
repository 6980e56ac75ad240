"""Memory of the process: what malloc keeps unused goes back, also if a run was under way the last time."""

from __future__ import annotations

import pytest

from gateway.serving.observe import heap


@pytest.fixture
def resident(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the resident sizes that the next readings give, first to last."""
    sizes: list[int] = []
    monkeypatch.setattr(heap, "_resident_bytes", lambda: sizes.pop(0))
    return sizes


@pytest.mark.parametrize(
    ("after_mib", "next_mib", "again"),
    [(100, 101, False), (100, 140, True)],
)
def test_memory_is_returned_after_growth_only(resident, monkeypatch, after_mib, next_mib, again):
    returned = []
    monkeypatch.setattr(heap, "trim", lambda: returned.append(1))
    trimming = heap.Trimming(bool)
    resident += [size << 20 for size in (120, after_mib, next_mib, after_mib)]
    trimming._trim()
    trimming._trim()
    assert len(returned) == 1 + again


@pytest.mark.asyncio
async def test_other_models_begin_another_measure(resident, monkeypatch):
    returned = []
    monkeypatch.setattr(heap, "trim", lambda: returned.append(1))
    trimming = heap.Trimming(bool)
    resident += [size << 20 for size in (120, 100, 101, 101, 300, 290, 290)]
    trimming._trim()
    trimming.soon(changed=True)
    trimming._trim()  # a model was unloaded: whatever is unused goes back
    trimming.soon(changed=True)
    trimming._trim()  # a large one was loaded
    trimming._trim()
    trimming._timer.cancel()
    assert len(returned) == 3


@pytest.mark.asyncio
async def test_nothing_is_returned_once_the_process_ends(monkeypatch):
    over = []
    trimming = heap.Trimming(lambda: bool(over))
    trimming.soon()
    first = trimming._timer
    over.append(1)
    trimming.soon()
    assert first is trimming._timer
    assert first.cancelled()


def test_a_time_that_left_more_is_not_the_measure(resident, monkeypatch):
    returned = []
    monkeypatch.setattr(heap, "trim", lambda: returned.append(1))
    trimming = heap.Trimming(bool)
    resident += [size << 20 for size in (120, 100, 300, 290, 290, 100)]  # a run was under way at the second
    for _ in range(3):
        trimming._trim()
    assert len(returned) == 3
