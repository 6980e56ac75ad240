"""Wrong input to verbs that ask a controller: one line that says what is wrong, and the exit code for it.

No request is sent.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from fleet.cli.parser import PROGRAM
from gateway.common.terminal.program import Program
from tests.load.__main__ import PROGRAM as SIMULATION
from tests.simulators.controller import free_port

WRONG = (
    ("devices show camera-7/inventory", 2, "'camera-7/inventory' is not a name"),
    ("devices revoke ..", 2, "'..' is not a name"),
    ("devices list --limit -3", 2, "must be a whole number above 0, not '-3'"),
    ("devices list --target meter-reader", 2, "write OWNER/MODEL/VERSION"),
    ("devices diagnose camera-7 --wait nan", 2, "must be a number from 0 on, not 'nan'"),
    ("devices token --hours inf", 2, "must be a number above 0, not 'inf'"),
    ("devices token --out nothere/camera-7.token", 2, "nothere/camera-7.token: is in a folder that does not exist"),
    ("rollouts create --target acme/meter-reader", 2, "write OWNER/MODEL/VERSION"),
    ("rollouts create --target acme/meter-reader/2 --failed-percent nan", 2, "must be a number from 0 on"),
    ("rollouts create --spec large.toml", 2, "large.toml: is larger than the 262144 bytes"),
    ("rollouts approve r1 --spec abc", 2, "write the whole spec digest"),
    ("rollouts devices r1 --wave -1", 2, "must be a whole number from 0 on, not '-1'"),
    ("releases show acme/meter-reader/..", 2, "write OWNER/MODEL/VERSION"),
)
WRONG_SIMULATIONS = (
    ("run --devices 0 --url https://localhost", 2, "must be a whole number above 0"),
    ("run --devices 1 --url https://localhost --poll nan", 2, "must be a number from 0 on"),
    ("run --devices 1 --url https://localhost --operator noise", 2, "noise: is not a text file"),
    ("run --devices 1 --url https://localhost --ca noise", 2, "noise: is not a text file"),
)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EDGE_FLEET_URL", f"http://127.0.0.1:{free_port()}")
    monkeypatch.setenv("EDGE_FLEET_TOKEN", "eft_x")
    (tmp_path / "noise").write_bytes(b"\xff" * 100)
    (tmp_path / "large.toml").write_bytes(b"a" * 10_000_000)


@pytest.mark.parametrize(
    ("program", "words", "code", "said"),
    [(program, *row) for program, rows in ((PROGRAM, WRONG), (SIMULATION, WRONG_SIMULATIONS)) for row in rows],
)
def test_wrong_input_is_said_in_one_line(
    program: Program, words: str, code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        found = program.main(words.split())
    except SystemExit as ended:  # by argparse
        found = int(ended.code or 0)
    out, err = capsys.readouterr()
    assert (found, out, said in err, err.count("\n")) == (code, "", True, 1), err


def test_a_simulation_that_nobody_answers_ends_with_3(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        SIMULATION.main(["run", "--devices", "1", "--url", f"https://localhost:{free_port()}", "--seconds", "0.2"]) == 3
    )
    assert "0 rows acknowledged" in capsys.readouterr().out
