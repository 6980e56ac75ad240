"""Which gateway a command waits for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from gateway.common.domain.errors import Fault, RequestError
from gateway.serving.cli.http_client import GatewayAddress, Keys
from gateway.serving.cli.waiting import ModelWait

HIDDEN = "import ctypes, sys; ctypes.CDLL(None).prctl(4, 0, 0, 0, 0); print(flush=True); sys.stdin.read()"
"""A process that is not dumpable (PR_SET_DUMPABLE): others see its command line, and not its sockets."""
ASKS = "import sys; from gateway.serving.cli.waiting import is_starting; print(is_starting(sys.argv[1]))"


@pytest.mark.parametrize(("asked", "starts"), [("own", "True"), ("other", "False")])
def test_a_gateway_of_another_user_is_waited_for(asked: str, starts: str, tmp_path: Path) -> None:
    """Such is the installed service, just started: its caller cannot see whether it listens."""
    words = [sys.executable, "-c", HIDDEN, "edge-gateway", "run", "--config", str(tmp_path / "own")]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout
        assert child.stdout.readline()
        asking = ["unshare", "--map-root-user", sys.executable, "-c", ASKS, str(tmp_path / asked)]
        done = subprocess.run(asking, capture_output=True, text=True, check=False)
        child.communicate()
    assert (done.stdout.strip(), done.stderr) == (starts, "")


def test_a_gateway_that_starts_is_looked_for_again(tmp_path: Path) -> None:
    words = [sys.executable, "-c", HIDDEN, "edge-gateway", "run", "--config", str(tmp_path / "own")]
    found = ["it listens", *5 * ["none"]]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout
        assert child.stdout.readline()
        assert ModelWait("door", 60.0, str(tmp_path / "other")).gateway(found.pop) == "none"
        assert len(found) == 4
        wait = ModelWait("door", 60.0, str(tmp_path / "own"))
        assert wait.gateway(lambda: found.pop() if len(found) > 1 else tmp_path) == tmp_path
        child.communicate()


def test_a_model_that_loads_between_the_question_and_the_look_is_asked_again(tmp_path: Path) -> None:
    nowhere, refused = GatewayAddress(unix=str(tmp_path / "none")), RequestError(Fault.UNAVAILABLE, "it loads")
    answers = [refused]

    def question() -> str:
        if answers:
            raise answers.pop()
        return "answer"

    assert ModelWait("door", 5.0, None).answer(nowhere, Keys(), question) == "answer"
    answers += 9 * [refused]
    with pytest.raises(RequestError, match="it loads"):
        ModelWait("door", 5.0, None).answer(nowhere, Keys(), question)
    assert len(answers) == 7
