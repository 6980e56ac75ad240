"""How the tests are shared by the processes of `make test`: a file is one process's; properties' settings; and what no
test leaves to the next."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from xdist.scheduler import LoadFileScheduling

INSTALLATION = ("tests/system/test_install", "tests/system/test_systemd")
"""Files with these beginnings share one installation, as long to make as a hundred tests: one process has them all."""

settings.register_profile("here", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("here")  # a busy machine is no finding


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    """A program that is run within a test sets logging up for its whole process."""
    level, handlers = logging.root.level, logging.root.handlers.copy()
    yield
    logging.root.setLevel(level)
    logging.root.handlers[:] = handlers


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadFileScheduling | None:
    """None: as pytest-xdist does it, where something else than files is shared."""
    if config.getvalue("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return "installation" if nodeid.startswith(INSTALLATION) else str(super()._split_scope(nodeid))

    return Scheduling(config, log)


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """A test has one name in all processes, whatever bytes it is given: those of gzip tell when they were made."""
    return argname if isinstance(val, bytes) and not (val.isascii() and val.decode().isprintable()) else None
