"""Any order of loads, routes, leases, commits, unloads and requests.

Each request is answered once, by a version that was there for it; what a caller gets never depends on the shadow.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Coroutine
from typing import Any

from hypothesis import event, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from gateway.common.domain.errors import Fault, RequestError
from gateway.serving.domain.infer import InferResponse
from gateway.serving.domain.sharing import WHOLE
from tests.simulators.engine_rig import Rig, limits_with, manifest, measured, request, values
from tests.simulators.examples import examples
from tests.simulators.session import SimulatedSession

VERSIONS = ("1", "2", "3")
ONE = st.sampled_from(VERSIONS)
ANY = st.permutations(VERSIONS)
DIGESTS = st.sampled_from(["d1", "d1", "d2"])
LEASE_S = 60.0


class Clock(asyncio.SelectorEventLoop):
    """A loop whose timers think that more time has passed."""

    ahead_s = 0.0

    def time(self) -> float:
        return super().time() + self.ahead_s


class Fleet(RuleBasedStateMachine):
    """State machine in which version v answers v times its input, with a plain model of what ought to be served."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = Clock()
        self.committed: str | None = None
        self.staged: dict[str, str] = {}
        self.digest = ""
        self.weights: dict[str, int] = {}
        self.shadow = ""
        self.asked: list[tuple[asyncio.Future[InferResponse], str]] = []
        self.rig = self.do(self.build())

    def do(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(work)

    def fault_of(self, work: Coroutine[Any, Any, Any]) -> Fault | None:
        try:
            self.do(work)
        except RequestError as error:
            return error.fault
        return None

    async def build(self) -> Rig:
        rig = Rig(limits_with(drain_s=5.0, staged_versions=2))
        for version in VERSIONS:
            rig.runtime.factors[f"v{version}"] = float(version)
            rig.trials[f"v{version}"] = measured(10.0 if version == "2" else 1000.0)
        return rig

    def sessions(self, version: str) -> list[SimulatedSession]:
        runtime = self.rig.runtime
        return [
            session for name, session in zip(runtime.opened, runtime.sessions, strict=True) if name == f"v{version}"
        ]

    def loaded(self) -> set[str]:
        return {*self.staged, *([self.committed] if self.committed else [])}

    def heal(self) -> None:
        """Drop versions that are gone; a route to the default alone is no route any more."""
        self.weights = {v: weight for v, weight in self.weights.items() if weight and v in self.loaded()}
        self.shadow = self.shadow if self.weights and self.shadow in self.loaded() else ""
        if list(self.weights) == [self.shadow]:
            self.shadow = ""
        if not self.shadow and list(self.weights) == [self.committed]:
            self.weights = {}

    def shares(self) -> dict[str, int]:
        return self.weights or ({self.committed: WHOLE} if self.committed else {})

    @rule(version=ONE, digest=DIGESTS)
    def stage(self, version: str, digest: str) -> None:
        served = (version, digest) == (self.committed, self.digest)
        full = version not in self.staged and len(self.staged) == 2 and not served
        fault = self.fault_of(self.rig.stage(manifest(version=version, variants=(f"v{version}",)), digest))
        assert fault is (Fault.OVERLOADED if full else None)
        if not (full or served):
            self.staged[version] = digest

    @rule(version=ONE, digest=DIGESTS)
    def commit(self, version: str, digest: str) -> None:
        self.do(self.rig.commit(manifest(version=version, variants=(f"v{version}",)), digest=digest))
        if (self.committed, self.digest) != (version, digest) and self.staged.get(version) == digest:
            del self.staged[version]
        self.committed, self.digest = version, digest
        self.heal()

    @rule(version=ONE)
    def unstage(self, version: str) -> None:
        fault = self.fault_of(self.rig.repository.unstage("m", version, 5.0))
        is_all = version == self.committed and version not in self.staged
        assert fault is (Fault.DENIED if is_all else None)
        self.staged.pop(version, None)
        self.heal()

    @rule(
        order=ANY,
        part=st.sampled_from([0, 5, 50]),
        shadow=st.sampled_from(["", *VERSIONS]),
        known=st.sampled_from("yyyn"),
    )
    def route(self, order: list[str], part: int, shadow: str, known: str) -> None:
        """Route between two versions, as a rule loaded ones."""
        among = [v for v in order if known == "n" or v in self.loaded()] or order
        weights = {among[0]: WHOLE - part, among[-1]: part} if part and len(among) > 1 else {among[0]: WHOLE}
        loaded = {*weights, *([shadow] if shadow else [])} <= self.loaded()
        alone = list(weights) == [shadow]
        fault = self.fault_of(self.routed(weights, shadow))
        assert fault is (Fault.NOT_FOUND if not loaded else Fault.INVALID if alone else None)
        if fault is None:
            self.weights, self.shadow = weights, shadow
            self.heal()

    async def routed(self, weights: dict[str, int], shadow: str) -> None:
        self.rig.repository.route("m", weights, shadow=shadow, lease_s=LEASE_S)

    @rule()
    def lease_runs_out(self) -> None:
        self.loop.ahead_s += LEASE_S + 1
        self.do(asyncio.sleep(0))
        self.do(asyncio.sleep(0))
        self.weights, self.shadow = {}, ""

    @rule()
    def renew(self) -> None:
        """Renew a route in time: it lasts."""
        for _ in range(2 if self.weights else 0):
            self.loop.ahead_s += 0.7 * LEASE_S
            total = sum(self.weights.values())
            if total == WHOLE:
                assert self.fault_of(self.routed(self.weights, self.shadow)) is None
            else:  # what is left of a route cannot be asked for
                self.weights, self.shadow = {}, ""
                self.loop.ahead_s += LEASE_S
            self.do(asyncio.sleep(0))
            self.do(asyncio.sleep(0))

    @rule(count=st.integers(1, 8), version=st.sampled_from(["", "", *VERSIONS]))
    def ask(self, count: int, version: str) -> None:
        """Send some requests that are not waited for."""
        expected = set(self.shares()) if not version else {version} & {*self.shares(), self.committed or ""}

        async def submit() -> None:
            for _ in range(count):
                asked = asyncio.ensure_future(self.rig.engine.infer(request(1.0, version=version)))
                self.asked.append((asked, "".join(sorted(expected))))
            await asyncio.sleep(0)

        self.do(submit())

    @rule()
    def ask_a_hundred(self) -> None:
        """Send a whole round of requests, whichever turn the shares are at."""
        shares = self.shares()
        total = sum(shares.values())
        if not total:
            return

        async def submit() -> list[InferResponse]:
            return await asyncio.gather(*(self.rig.engine.infer(request(1.0)) for _ in range(total)))

        assert Counter(answer.version for answer in self.do(submit())) == shares

    @rule()
    def await_answers(self) -> None:
        """Check that each was answered once, by a version that was there, or refused where there was none."""
        asked, self.asked = self.asked, []
        self.do(asyncio.wait([future for future, _ in asked])) if asked else None
        for future, expected in asked:
            if (error := future.exception()) is not None:
                assert isinstance(error, RequestError), error
                assert not expected, f"{expected} should have answered: {error.message}"
                assert error.fault is Fault.NOT_FOUND
                event("refused")
            else:
                answer = future.result()
                assert answer.version in expected
                assert values(answer) == [float(answer.version)]
                event("answered")

    @rule(version=ONE)
    def shadow_fails(self, version: str) -> None:
        """Let a version fail, only while nothing but the comparison uses it."""
        self.await_answers()
        if version in self.shares() or version not in self.loaded() or version != self.shadow:
            return
        for session in self.sessions(version):
            session.failure = RuntimeError("no such kernel")
        self.ask_a_hundred()
        self.do(self.idle())
        for session in self.sessions(version):
            session.failure = None

    async def idle(self) -> None:
        while any(servable.busy for servable in self.rig.registry.targets()):
            await asyncio.sleep(0)

    @invariant()
    def it_stands_as_it_should(self) -> None:
        standings = {line.version: line for line in self.rig.repository.standings()}
        assert standings.keys() == self.loaded()
        shares = self.shares()
        total = sum(shares.values())
        for version, line in standings.items():
            assert line.weight == round(WHOLE * shares.get(version, 0) / total if total else 0)
            assert line.state == ("READY" if version in shares or version == self.committed else "LOADED")

    @invariant()
    def nothing_leaks(self) -> None:
        hidden = self.committed in self.staged
        held = sum(not session.closed for session in self.rig.runtime.sessions)
        assert held == len(self.loaded()) + hidden

    def teardown(self) -> None:
        self.await_answers()
        self.do(self.rig.repository.close())
        assert self.rig.runtime.memory_bytes == 0
        self.loop.close()


TestFleet = Fleet.TestCase
TestFleet.settings = settings(max_examples=examples(60), stateful_step_count=30, deadline=None)
