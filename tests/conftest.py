"""Distribution of the tests over the processes of `make test`, settings of properties, and isolation of tests."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

import tests.python310  # noqa: F401 - before the modules of tests

if TYPE_CHECKING:
    from xdist.scheduler import LoadFileScheduling

INSTALLATION = ("tests/system/test_install", "tests/system/test_systemd")
"""Files with these beginnings share one installation, as long to make as a hundred tests: one process has them all."""

# A client of grpcio that an earlier test left open would let children of later tests abort: its handlers of fork(2)
# run in each child that a thread of this process forks. Read when grpc is imported.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "false"
# Tests import ONNX Runtime before the product does: its reporter looks up hosts, starts threads, and may abort the end.
os.environ["ORT_DISABLE_TELEMETRY"] = "1"

# "quick" draws the same examples each time, as Hypothesis does by itself where CI is set: a change is judged by what it
# changes. "thorough", of `make test-long`, draws others each time.
for profile, count in (("quick", 25), ("thorough", 100)):
    slow = [HealthCheck.too_slow]  # a busy machine is no finding
    settings.register_profile(
        profile, deadline=None, max_examples=count, suppress_health_check=slow, derandomize=profile == "quick"
    )
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    """Restore logging: a program that is run within a test sets it up for its whole process."""
    level, handlers = logging.root.level, logging.root.handlers.copy()
    yield
    logging.root.setLevel(level)
    logging.root.handlers[:] = handlers


class Failures:
    """Reporter that names each failed test as it fails: a run that dies has told of every failure before."""

    def __init__(self, config: pytest.Config) -> None:
        self._plugins = config.pluginmanager

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Print the test and the last line of its error."""
        terminal = self._plugins.getplugin("terminalreporter")
        if report.failed and terminal is not None:
            why = (report.longreprtext.strip().splitlines() or [""])[-1]
            terminal.write_line(f"\nFAILED so far: {report.nodeid} ({report.when}): {why}")


def pytest_configure(config: pytest.Config) -> None:
    """Name failures at once where one process starts the others."""
    if config.getoption("numprocesses", None):
        config.pluginmanager.register(Failures(config))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadFileScheduling | None:
    """Return None, which means pytest-xdist's own scheduler, where something else than files is shared."""
    if config.getvalue("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return "installation" if nodeid.startswith(INSTALLATION) else str(super()._split_scope(nodeid))

    return Scheduling(config, log)


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Return an id that is the same in all processes, whatever bytes a test is given: those of gzip hold a time."""
    return argname if isinstance(val, bytes) and not (val.isascii() and val.decode().isprintable()) else None
