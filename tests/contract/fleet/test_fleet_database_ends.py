"""Connections do not outlive the end of the database, also if they are in use; nor a controller that fails to start."""

from __future__ import annotations

import socket
import sqlite3
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest

from fleet.controller.config import FleetConfig
from fleet.controller.database.engine import open_database
from fleet.controller.database.leader import candidate
from fleet.controller.database.place import read_place
from fleet.controller.database.settings import DatabaseSettings
from fleet.controller.monitoring.settings import AlertSettings
from gateway.common.domain.errors import ConfigurationError, RequestError
from tests.simulators import databases
from tests.simulators.constants import settings_with
from tests.simulators.controller import controlling
from tests.simulators.databases import KINDS, NOW, made

WAIT_S = 10.0


def is_closed(opened: Any) -> bool:
    """Return whether a connection of the driver is closed."""
    if isinstance(opened, psycopg.Connection):
        return opened.closed
    try:
        opened.execute("SELECT 1")
    except sqlite3.ProgrammingError:
        return True
    return False


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("way", ["glance", "read", "write"])
def test_what_is_given_back_after_the_end_is_closed(tmp_path: Path, kind: str, way: str) -> None:
    with made(kind, tmp_path) as database:
        with getattr(database, way)() as connection:
            opened = connection.connection.driver_connection
            database.close()
            assert not is_closed(opened)
        assert is_closed(opened)


@pytest.mark.parametrize("when", ["made", "started"])
def test_a_controller_that_does_not_start_leaves_no_connection(tmp_path: Path, when: str) -> None:
    with databases.url("postgresql", tmp_path) as url, socket.create_server(("127.0.0.1", 0)) as taken:
        config = FleetConfig()
        config = replace(config, database=replace(config.database, url=url))
        if when == "made":
            config = replace(config, alerts=AlertSettings(url="https://127.0.0.1:9", ca_file="none.pem"))
        port = taken.getsockname()[1] if when == "started" else 0
        with pytest.raises(ConfigurationError) as refused:  # what it holds keeps all that was open from being collected
            controlling(tmp_path / "publisher", config, port=port).__enter__()
        assert ("cannot listen" if when == "started" else "ca_file") in str(refused.value)
        assert others(url) == 0


def test_who_stands_for_an_office_in_vain_keeps_no_connection(tmp_path: Path) -> None:
    """PostgreSQL refuses to wait so long; what would then be kept would count as an office without a number."""
    with databases.url("postgresql", tmp_path) as url:
        with closing(
            open_database(read_place(url, tmp_path), settings_with(DatabaseSettings(), lease_s=1e7))
        ) as database:
            leader = candidate(database, "one")
            with pytest.raises(RequestError) as refused:
                leader.stand(NOW)
        assert "idle_session_timeout" in str(refused.value)
        assert others(url) == 0


def others(url: str) -> int:
    """Return the number of other connections to this database.

    One whose client has closed it ends a moment later: it is waited for.
    """
    statement = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> %s"
    ends_s = time.monotonic() + WAIT_S
    with psycopg.connect(url, autocommit=True) as connection:
        while True:
            found = connection.execute(statement, [connection.info.backend_pid]).fetchone()
            assert found
            if not found[0] or time.monotonic() > ends_s:
                return int(found[0])
            time.sleep(0.02)
