"""Parts that the steps of a run share: models and verdicts on disk, servers that are up, requests, counted costs."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.performance import load, networks, servers
from tests.performance.load import Body, Figures, Posting
from tests.performance.servers import SERVER_CORE, Server, core_busy_s

WARM_UP_S = 0.25


class Rig:
    """Context of one pass: servers start when a step asks for them and end with the pass."""

    def __init__(self, folder: Path, names: set[str], seconds: float) -> None:
        self.folder, self.seconds = folder, seconds
        self.networks = networks.built() | {"meter-reader": networks.meter_reader()}
        self.models = servers.model_directory(folder, names)
        self.chosen: dict[str, str] = {}
        self._running: dict[tuple[str, bool], Server] = {}
        self._replies: dict[Posting, int] = {}

    def try_variants(self, tell: Callable[[str], None]) -> None:
        """Run the trials of all models, kept for every start that follows."""
        for model in sorted(path.name for path in self.models.iterdir()):
            tell(model)
            self.chosen[model] = servers.chosen_variant(self.folder, self.models, model)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for server in self._running.values():
            server.stop()
        self._running.clear()
        self._replies.clear()

    # ---- parts ---------------------------------------------------------------------------------------------------
    def server(self, name: str, *, tls: bool = False) -> Server:
        """Return the server of this pass, with all models."""
        if (name, tls) not in self._running:
            folder = self.folder / f"{name}{'-tls' if tls else ''}"
            started = servers.start(name, folder, self.models, tls=self._certificate() if tls else None)
            started.settle()  # HTTP and what it imports come up after READY=1
            self._running[name, tls] = started
        return self._running[name, tls]

    def body(self, model: str, region: str = "", *, rows: int = 1, typed: bool = False) -> Body:
        """Return one request of one row, or of several; `typed`: in InferTensorContents."""
        return load.request(self.folder, self.networks[model], region, rows, typed=typed)

    def _certificate(self) -> Path:
        """Return the path without suffix of a certificate of `localhost`, by an authority of this run.

        The files are .pem and .key; ca.pem lies in the same folder.
        """
        from tests.simulators.authority import Authority

        path = self.folder / "localhost"
        if not path.with_suffix(".pem").exists():
            authority = Authority()
            certificate, key = authority.issue("localhost")
            path.with_suffix(".pem").write_bytes(certificate)
            path.with_suffix(".key").write_bytes(key)
            path.with_name("ca.pem").write_bytes(authority.pem)
        return path

    # ---- measuring -----------------------------------------------------------------------------------------------
    def post(self, *postings: Posting) -> list[Figures]:
        """Run h2load's postings to one server at once, each warm; the server's costs are those of all together."""
        replies = [self._warm(posting) for posting in postings]
        return self.costed(postings[0].server, lambda: load.h2load(postings, self.seconds, replies))

    def _warm(self, posting: Posting) -> int:
        """Return the bytes of a reply, learnt by one call of a real client; then apply a little load, unmeasured."""
        if posting not in self._replies:
            roots = (self.folder / "ca.pem").read_bytes() if posting.server.tls else b""
            reply = load.ask_once(posting.server, posting.body, unix=posting.unix, roots=roots)
            load.post([posting], WARM_UP_S, [reply])
            posting.server.settle()
            self._replies[posting] = reply
        return self._replies[posting]

    def costed(self, server: Server, measure: Callable[[], list[Figures]]) -> list[Figures]:
        """Return what `measure` says, and what it took.

        `cpu_us` of the server per request, `load_busy`: share of a core that the load's tools took (where they do not
        say so themselves), `others`: share of the server's core that went to neither the server nor to idling.
        """
        began, cpu, core, tools = time.monotonic(), server.cpu_s(), core_busy_s(SERVER_CORE), _children_s()
        figures = measure()
        wall, taken = time.monotonic() - began, server.cpu_s() - cpu
        others = max(0.0, core_busy_s(SERVER_CORE) - core - taken) / wall
        busy = (_children_s() - tools) / wall
        server.settle()
        requests = sum(each["requests"] for each in figures)
        return [{"load_busy": busy, **each, "cpu_us": taken * 1e6 / requests, "others": others} for each in figures]


def _children_s() -> float:
    """Time of this process's children that have ended: while servers run, those are the tools of the load."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def single(figures: list[Figures]) -> Mapping[str, Figures]:
    """Return one row of figures, under the step's own name."""
    return {"": figures[0]}
