"""Every measurement, as data: which table, which row, which server, which models it needs, and what it does."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, NamedTuple

from tests.performance import cpp, load, region, sensors, servers
from tests.performance.load import Figures, Posting
from tests.performance.networks import OPENED
from tests.performance.rig import Rig, single
from tests.performance.servers import CPP, PAHO, PLAIN

TINY, COSTLY, SMALL_FRAME, LARGE_FRAME, SHIPPED = "tiny", "mobilenet", "frame-150k", "frame-2.7m", "meter-reader"
BARE = "bare loop"
MIXED_COSTLY, MIXED_TINY = 2, 8
MANY, MANY_WARM_UP_S = 1000, 3
FRAME_CONNECTIONS = VARIED_CONNECTIONS = 8
Measure = Callable[[Rig], Mapping[str, Figures]]


class Row(NamedTuple):
    """A line of a table. `model` names its bare loop."""

    table: str
    what: str
    server: str
    model: str


@dataclass(frozen=True, slots=True)
class Step:
    """Step. `measure` returns figures by what is added to `row.what`: one entry, "", if the step is one row."""

    row: Row
    measure: Measure
    models: tuple[str, ...]

    @property
    def name(self) -> str:
        """Name of the step, which `--only` is matched against."""
        return f"{self.row.table}: {self.row.what}, {self.row.server}"


def all_steps(chosen: Sequence[str]) -> list[Step]:
    """Return the steps in the order of one pass: what is compared stands side by side."""
    gateways = [name for name in chosen if name not in {PLAIN, CPP}]
    python = [name for name in chosen if name != CPP]
    return [
        *_model(TINY, (1, 8, 32, 256), chosen),
        *_model(COSTLY, (1, 2, 8, 32), chosen),
        *_cores(gateways[:1]),
        *_model(SHIPPED, (8,), gateways),
        *_clients(chosen),
        *_rows(chosen),
        *_many(chosen),
        *_varied(chosen, python),
        *_streams(python),
        *_rest(gateways[:1]),
        *(_mixed(Row("mixed load, both at once", "", name, TINY)) for name in gateways),
        *_frames(chosen, gateways),
        *_starts(gateways),
        *_mqtt(gateways[:1]),
    ]


def _bare(table: str, model: str, what: str = "session.run") -> Step:
    def measure(rig: Rig) -> Mapping[str, Figures]:
        return {"": servers.bare_loop(rig.models, model, rig.chosen[model], rig.seconds)}

    return Step(Row(table, what, BARE, model), measure, (model,))


def _model(model: str, connections: Sequence[int], chosen: Sequence[str]) -> Iterator[Step]:
    table = f"{model} model"
    yield _bare(table, model)
    for count in connections:
        for name in chosen:
            yield _posting(Row(table, _counted(count), name, model), connections=count)


def _cores(chosen: Sequence[str]) -> Iterator[Step]:
    """Yield steps on all cores, which the load shares: it takes about a hundredth of them."""
    cores, table = (
        ",".join(map(str, servers.CORES)),
        f"{COSTLY} model, {len(servers.CORES)} cores, load on them as well",
    )

    def bare(rig: Rig) -> Mapping[str, Figures]:
        return {"": servers.bare_loop(rig.models, COSTLY, rig.chosen[COSTLY], rig.seconds, cores)}

    yield Step(Row(table, "session.run, one on each core", BARE, COSTLY), bare, (COSTLY,))
    for name in chosen:
        yield Step(Row(table, _counted(8), name, COSTLY), lambda rig, name=name: _wide(rig, name, cores), (COSTLY,))


def _wide(rig: Rig, name: str, cores: str) -> Mapping[str, Figures]:
    server = servers.start(name, rig.folder / "cores", rig.models, cores=cores)
    try:
        server.wait_for(COSTLY)
        return single(rig.post(Posting(server, rig.body(COSTLY), 8)))
    finally:
        server.stop()


def _counted(connections: int) -> str:
    return f"{connections} connection{'s' if connections > 1 else ''}"


def _posting(
    row: Row,
    *,
    connections: int,
    rows: int = 1,
    typed: bool = False,
    tls: bool = False,
    unix: bool = False,
    headers: tuple[str, ...] = (),
) -> Step:
    def measure(rig: Rig) -> Mapping[str, Figures]:
        server = rig.server(row.server, tls=tls)
        return single(
            rig.post(Posting(server, rig.body(row.model, rows=rows, typed=typed), connections, unix, headers))
        )

    return Step(row, measure, (row.model,))


def _clients(chosen: Sequence[str]) -> Iterator[Step]:
    """Yield steps of C-core by its C++ API: one call on each connection, one connection with 32, calls that differ."""
    for connections, calls, vary in (
        (1, 1, ""),
        (8, 1, ""),
        (32, 1, ""),
        (1, 32, ""),
        (8, 1, "id"),
        (8, 1, "traceparent"),
    ):
        what = _counted(connections) + (f" with {calls} calls" if calls > 1 else "") + (vary and f", distinct {vary}")
        for name in chosen:
            yield _called(Row("real gRPC client, tiny model", what, name, TINY), connections, calls, vary)


def _called(row: Row, connections: int, calls: int, vary: str) -> Step:
    def measure(rig: Rig) -> Mapping[str, Figures]:
        server, body = rig.server(row.server), rig.body(row.model)
        cpp.caller()
        return single(
            rig.costed(
                server,
                lambda: [load.call(server, body, rig.seconds, connections=connections, calls=calls, vary=vary)],
            )
        )

    return Step(row, measure, (row.model,))


VARIATIONS = {
    "": "the same bytes again and again",
    "id": "distinct request ids",
    "traceparent": "distinct traceparent, as C-core",
    "traceparent-indexed": "distinct traceparent, HPACK-indexed",
}


def _rows(chosen: Sequence[str]) -> Iterator[Step]:
    """Yield steps with requests of several rows."""
    for name in chosen:
        yield _posting(Row("tiny model, 32 rows a request", _counted(8), name, TINY), connections=8, rows=32)


def _many(chosen: Sequence[str]) -> Iterator[Step]:
    """Yield steps with as many connections as a site has cameras; most of them wait."""
    for name in chosen:
        yield _crowded(Row("tiny model, many connections", _counted(MANY), name, TINY))


def _crowded(row: Row) -> Step:
    def measure(rig: Rig) -> Mapping[str, Figures]:
        posting = Posting(rig.server(row.server), rig.body(row.model), MANY, warm_up_s=MANY_WARM_UP_S)
        figures = dict(rig.post(posting)[0])
        del figures["cpu_us"]  # the time to connect is in it
        return {"": figures}

    return Step(row, measure, (row.model,))


def _varied(chosen: Sequence[str], secured: Sequence[str]) -> Iterator[Step]:
    table = f"requests that differ, deadlines, TLS: tiny model, {_counted(VARIED_CONNECTIONS)}"
    for vary, what in VARIATIONS.items():
        for name in chosen:
            yield _wired(Row(table, what, name, TINY), vary)
    for name in chosen:
        row = Row(table, "constant deadline of 1 s", name, TINY)
        yield _posting(row, connections=VARIED_CONNECTIONS, headers=("grpc-timeout: 1S",))
    for name in chosen:
        if name in {PLAIN, CPP}:  # they read raw contents only
            continue
        yield _posting(Row(table, "typed contents", name, TINY), connections=VARIED_CONNECTIONS, typed=True)
    for name in secured:
        yield _posting(Row(table, "TLS", name, TINY), connections=VARIED_CONNECTIONS, tls=True)
        yield _posting(Row(table, "TLS, 1 connection", name, TINY), connections=1, tls=True)


def _wired(row: Row, vary: str) -> Step:
    def measure(rig: Rig) -> Mapping[str, Figures]:
        server, body, connections = rig.server(row.server), rig.body(row.model), VARIED_CONNECTIONS
        return single(
            rig.costed(server, lambda: [load.wire(server, body, rig.seconds, connections=connections, vary=vary)])
        )

    return Step(row, measure, (row.model,))


def _streams(chosen: Sequence[str]) -> Iterator[Step]:
    """Yield steps of ModelStreamInfer: one stream on each connection."""
    for connections, in_flight in ((1, 1), (1, 8), (8, 1)):
        what = f"{connections} stream{'s' if connections > 1 else ''}, {in_flight} in flight"
        for name in chosen:
            yield _streamed(Row("streams, tiny model", what, name, TINY), connections, in_flight)


def _streamed(row: Row, connections: int, in_flight: int) -> Step:
    def measure(rig: Rig) -> Mapping[str, Figures]:
        server, body = rig.server(row.server), rig.body(row.model)

        def run() -> list[Figures]:
            return [load.streams(server, body, rig.seconds, connections=connections, in_flight=in_flight)]

        return single(rig.costed(server, run))

    return Step(row, measure, (row.model,))


def _rest(chosen: Sequence[str]) -> Iterator[Step]:
    """Yield steps of JSON over HTTP/1.1."""
    for connections in (1, 8):
        for name in chosen:
            yield _asked(Row("REST, tiny model", f"JSON, {_counted(connections)}", name, TINY), connections)
    for name in chosen:
        for vary in ("traceparent", "query", "connection"):
            yield _over_http(Row("REST, tiny model", f"JSON, another {vary} each", name, TINY), vary=vary)
        yield _over_http(Row("REST, tiny model", "JSON, 128 rows", name, TINY), rows=128)
        for binary in (False, True):
            what = f"{'binary' if binary else 'JSON'}, {_counted(2)}"
            yield _over_http(Row("REST, mobilenet", what, name, COSTLY), binary=binary, callers=2)
        yield _over_http(Row("REST, tiny model", "metrics", name, TINY), metrics=True)


def _over_http(row: Row, *, metrics: bool = False, **how: Any) -> Step:
    def measure(rig: Rig) -> Mapping[str, Figures]:
        server, network = rig.server(row.server), None if metrics else rig.networks[row.model]
        return single(rig.costed(server, lambda: [load.http(server, rig.folder, rig.seconds, network, **how)]))

    return Step(row, measure, (row.model,))


def _asked(row: Row, connections: int) -> Step:
    def measure(rig: Rig) -> Mapping[str, Figures]:
        server, network = rig.server(row.server), rig.networks[row.model]

        def run() -> list[Figures]:
            return [load.rest(server, network, rig.folder, rig.seconds, connections=connections)]

        return single(rig.costed(server, run))

    return Step(row, measure, (row.model,))


def _mixed(row: Row) -> Step:
    def measure(rig: Rig) -> Mapping[str, Figures]:
        server = rig.server(row.server)
        tiny, costly = rig.post(
            Posting(server, rig.body(TINY), MIXED_TINY), Posting(server, rig.body(COSTLY), MIXED_COSTLY)
        )
        for figures in (tiny, costly):
            del figures["cpu_us"]  # of both together: no request of either model cost that
        return {f"{TINY}, {_counted(MIXED_TINY)}": tiny, f"{COSTLY}, {_counted(MIXED_COSTLY)}": costly}

    return Step(row, measure, (TINY, COSTLY))


def _frames(chosen: Sequence[str], sharing: Sequence[str]) -> Iterator[Step]:
    for model in (SMALL_FRAME, SMALL_FRAME + OPENED, LARGE_FRAME, LARGE_FRAME + OPENED):
        size = model.removeprefix("frame-").removesuffix(OPENED).replace("k", " KB").replace("m", " MB")
        sides = ", open height and width" if model.endswith(OPENED) else ""
        table = f"frames of {size}, {_counted(FRAME_CONNECTIONS)}, a model that reads one corner{sides}"
        if not sides:
            yield _bare(table, model)
        for unix, what in ((False, "TCP"), (True, "UNIX socket"))[: 1 if sides else 2]:
            for name in chosen:
                yield _posting(Row(table, what, name, model), connections=FRAME_CONNECTIONS, unix=unix)
        for name in sharing:
            yield _in_memory(Row(table, "shared memory", name, model))
            yield _in_memory(Row(table, "sealed memfd", name, model), sealed=True)


def _in_memory(row: Row, *, sealed: bool = False) -> Step:
    def measure(rig: Rig) -> Mapping[str, Figures]:
        server, content = rig.server(row.server), rig.networks[row.model].row().tobytes()
        with (region.sealed if sealed else region.registered)(server, "frame", content) as name:
            return single(rig.post(Posting(server, rig.body(row.model, name), FRAME_CONNECTIONS, unix=True)))

    return Step(row, measure, (row.model,))


def _starts(chosen: Sequence[str]) -> Iterator[Step]:
    for http in (True, False):
        for name in chosen:
            what = f"tiny model alone, gRPC{' and HTTP' if http else ', HTTP off'}"
            yield _start(Row("start and memory", what, name, TINY), http=http)


def _start(row: Row, *, http: bool) -> Step:
    def measure(rig: Rig) -> Mapping[str, Figures]:
        return {"": _started(rig, row.server, http=http)}

    return Step(row, measure, (TINY,))


def _started(rig: Rig, name: str, *, http: bool) -> Figures:
    """Return seconds to READY=1 with kept verdicts and byte code; memory once it has settled, and after load."""
    models = rig.folder / "one" / "models"
    folder = models.with_name(f"{name}-{http}")
    if not (models / TINY).exists():
        shutil.copytree(rig.models / TINY, models / TINY)
    if not folder.exists():
        servers.start(name, folder, models, http=http).stop()  # compiles, and tries the model
    server = servers.start(name, folder, models, http=http)
    try:
        server.settle()
        idle = server.memory_mib()
        posting = Posting(server, rig.body(TINY), FRAME_CONNECTIONS)
        (figures,) = load.h2load([posting], rig.seconds, [load.ask_once(server, posting.body)])
        loaded = {f"{key}_loaded": value for key, value in server.memory_mib().items()}
        return {"ready_s": server.ready_s, **idle, **loaded, "requests": figures["requests"]}
    finally:
        server.stop()


def _mqtt(chosen: Sequence[str]) -> Iterator[Step]:
    for name in chosen:
        for qos, what in ((1, "QoS 1"), (0, f"QoS 0, paced at {sensors.QOS_0_PER_S}/s")):
            yield _samples(Row("MQTT samples into windows", what, name, "activity"), qos)

        for qos, in_flight in product((0, 1), sensors.IN_FLIGHT):
            for server in (name, PAHO):
                what = f"QoS {qos}, {in_flight} in flight"
                yield _singles(Row("MQTT single messages, tiny model", what, server, TINY), qos, in_flight)


def _singles(row: Row, qos: int, in_flight: int) -> Step:
    def measure(rig: Rig) -> Mapping[str, Figures]:
        return _over_mqtt(rig, row.server, qos, lambda port: sensors.ask(port, qos, in_flight, rig.seconds))

    return Step(row, measure, (row.model, "activity"))


def _samples(row: Row, qos: int) -> Step:
    def measure(rig: Rig) -> Mapping[str, Figures]:
        return _over_mqtt(rig, row.server, qos, lambda port: sensors.play(port, qos))

    return Step(row, measure, (row.model, TINY))


def _over_mqtt(rig: Rig, name: str, qos: int, load: Callable[[int], Figures]) -> Mapping[str, Figures]:
    """Return what a load says of a server of its own; `load` takes the broker's port."""
    with servers.broker(rig.folder) as broker:
        server = servers.start(name, rig.folder / "mqtt", rig.models, mqtt=broker.url, qos=qos)
        try:
            sensors.wait_online(broker.port)
            server.settle()
            return single(rig.costed(server, lambda: [load(broker.port)]))
        finally:
            server.stop()
