"""Wait of a command for a gateway that starts, and for a model that is read or loads, with a line on stderr."""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from glob import escape
from pathlib import Path, PurePath
from typing import Any, TypeVar

from gateway.common.domain.access import Address
from gateway.common.domain.errors import ConfigurationError, Fault, RequestError, UnreachableError, suggest
from gateway.serving.cli.http_client import GatewayAddress, GatewayClient, Keys, NoListenerError
from gateway.serving.cli.remote import read_array
from gateway.serving.config import load_config, models_folders

Answer = TypeVar("Answer")
Found = TypeVar("Found")
PAUSE_S = 0.2
START_S = 60.0
"""Time that a start takes at most until it listens: vendor libraries and runtimes are asked before. The time also
for which a model that was put into a folder may be unknown."""
ENDS = ("", ".*", "/**/*")
"""Patterns of a model in a folder, after its name: a folder, a bare file, and what the folder holds."""


class ModelWait:
    """One wait of at most `limit_s`. `config`: --config of the command, by which it finds a gateway that starts."""

    def __init__(self, model: str, limit_s: float, config: str | None) -> None:
        self._model, self._limit_s, self._config, self._began_s = model, limit_s, config, time.monotonic()
        self._line = ""

    def gateway(self, find: Callable[[], Found | str]) -> Found | str:
        """Return the gateway that `find` finds, else why there is none: it is repeated while one starts."""
        found = find()
        while isinstance(found, str):
            # in this order: it may listen since the last question
            starting, found = is_starting(self._config), find()
            if not (isinstance(found, str) and starting and self.pause("the gateway starts")):
                break
        return found

    def answer(self, place: GatewayAddress, keys: Keys, question: Callable[[], Answer]) -> Answer:
        """Return the first answer to `question`, which is repeated while its model loads.

        Raises its last error; for an unknown model one that names those that the gateway has.
        """
        starting = again = True
        while True:
            try:
                answer = question()
            except NoListenerError:
                # it may listen since the question, so that one more follows
                before, starting = starting, is_starting(self._config)
                if not (before or starting) or (starting and not self.pause("the gateway starts")):
                    raise
            except RequestError as error:
                stage = self._stage(place, keys, error.fault)
                # it may have loaded since the question, so that one more follows
                once, again = again and error.fault is Fault.UNAVAILABLE, bool(stage)
                if not (self.pause(stage) if stage else once):
                    raise self._explained(error, place, keys) from None
            else:
                self._clear()
                return answer

    def pause(self, stage: str) -> bool:
        """Show what is waited for, and wait a moment; return False if the time is over."""
        waited_s = time.monotonic() - self._began_s
        if waited_s >= self._limit_s:
            self._clear()
            return False
        line = f"waiting for model '{self._model}', at most {self._limit_s:g} s: {stage}"
        if sys.stderr.isatty():
            print(f"\r\x1b[K{line} ({waited_s:.0f} s)", end="", file=sys.stderr, flush=True)
        elif not self._line:
            print(line, file=sys.stderr, flush=True)
        self._line = line
        time.sleep(PAUSE_S)
        return True

    def _clear(self) -> None:
        if self._line and sys.stderr.isatty():
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)

    def _stage(self, place: GatewayAddress, keys: Keys, fault: Fault) -> str:
        """Return what a model waits for that loads, or that was put into a folder a moment ago; "" if neither."""
        if not (fault is Fault.UNAVAILABLE or (fault is Fault.NOT_FOUND and self._is_new(place))):
            return ""
        try:
            lines = [line for line in _index(place, keys) if line["name"] == self._model]
        except (RequestError, UnreachableError):
            return ""
        stages = [line["reason"] for line in lines if line["state"] == "LOADING"]
        return stages[-1] if stages else "" if lines else "the gateway reads its models"

    def _is_new(self, place: GatewayAddress) -> bool:
        """Return True if the model was put a moment ago into a folder that a gateway on this device serves."""
        if not (place.unix or Address(place.host).private):
            return False
        try:
            config = load_config(Path(self._config) if self._config else None)
            folders = (*models_folders(config), *_named_folders())
            found = (folder.glob(f"{escape(self._model)}{end}") for folder in folders for end in ENDS)
            return any(time.time() - entry.stat().st_ctime < START_S for entry in itertools.chain(*found))
        except (ConfigurationError, OSError, ValueError, NotImplementedError):  # the name is no path in a folder
            return False

    def _explained(self, error: RequestError, place: GatewayAddress, keys: Keys) -> RequestError:
        """Return the refusal; for an unknown model with the names of those that the gateway has."""
        if error.fault is not Fault.NOT_FOUND:
            return error
        try:
            names = sorted({line["name"] for line in _index(place, keys)})
        except (RequestError, UnreachableError):
            return error
        if self._model in names:
            return error
        problem = f"{place} has no model {self._model!r:.120}{suggest(self._model, names)}"
        return RequestError(error.fault, f"{problem}; it has {', '.join(names) or 'none'}")


def _index(place: GatewayAddress, keys: Keys) -> list[Any]:
    with GatewayClient(place, keys) as client:
        return read_array(*client.exchange("POST", "/v2/repository/index"))


def is_starting(config: str | None) -> bool:
    """Return True if `edge-gateway run` was begun here a moment ago, with this --config, and does not listen yet."""
    import psutil

    for process, words in _gateways():
        of_config = next((file for option, file in words if option == "--config"), None) == config
        if of_config and time.time() - process.info["create_time"] < START_S:
            with suppress(psutil.NoSuchProcess):  # it ended
                # None: of another user, such as the service's. Where it was asked, nothing listens yet
                if all(
                    one.status != psutil.CONN_LISTEN
                    for one in process.as_dict(["net_connections"])["net_connections"] or ()
                ):
                    return True
    return False


def _named_folders() -> Iterator[Path]:
    """Yield the folders of models that running gateways were given on their command lines."""
    for process, words in _gateways():
        for option, folder in words:
            if option == "--models":
                yield Path(process.info["cwd"] or "/", folder)  # the working directory is None for another user's


def _gateways() -> Iterator[tuple[Any, Sequence[tuple[str, str]]]]:
    """Yield the processes of `edge-gateway run` on this device, with the pairs of words of their command lines."""
    import psutil

    for process in psutil.process_iter(["cmdline", "create_time", "cwd"]):
        line = (word.split("=", 1) if word.startswith("--") else [word] for word in process.info["cmdline"] or ())
        words = [*itertools.pairwise(itertools.chain(*line))]
        if any(PurePath(name).name in {"edge-gateway", "gateway"} and verb == "run" for name, verb in words):
            yield process, words
