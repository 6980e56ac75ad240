"""Serve the corpus bare and compare every answer with the runtime's: `python -m tests.world.run [OPTION…]`.

examples:
  python -m tests.world.run                                        # everything, in portions
  python -m tests.world.run --groups packages,torch --seconds 10 --requests 10000
  python -m tests.world.run --groups nodes --sample 100 --seed 3   # a seeded part
  python -m tests.world.run --joined --requests 10000 --seconds 60 # where requests may share a run
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import tritonclient.grpc as triton
from tritonclient.grpc.model_config_pb2 import ModelConfig
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from tests.simulators.daemon import QUIET, ROOT, SHORT_TRIALS, Daemon, starting
from tests.world.callers import ERROR_CHARS, Load, Tally, call_grpc, call_http
from tests.world.corpus import GROUPS, Member, agrees, collect, members, sampled
from tests.world.entry import Case, Entry
from tests.world.report import NOT_JOINED, Row, print_report, refused_rows, write_refused

REFUSED = Path(__file__).with_name("refused.toml")
GRPC_CALLERS, HTTP_CALLERS = 32, 16
START_S = 3600.0
CONFIG = QUIET + SHORT_TRIALS + "[limits]\nnotify_within_s = 3600.0\n[shares]\ncaller_percent = 100\n"


@dataclass(frozen=True, slots=True)
class Options:
    """Options of a run: what to serve and how much to ask; `asks` is the number of different requests per model."""

    groups: tuple[str, ...]
    sample: int = 0
    seed: int = 20
    portion: int = 100
    asks: int = 32
    requests: int = 1000
    seconds: float = 2.0
    packages: Path = ROOT / ".venv" / "world"
    torch_python: str = "/usr/bin/python3"
    listed: bool = False
    joined: bool = False


def serve_corpus(options: Options, folder: Path) -> Iterator[Row]:
    """Serve every portion by a daemon of its own, ask, and yield one row per model."""
    entries = collect(options.groups, folder / "made", options.packages, options.torch_python)
    if options.listed:
        listed = refused_rows(REFUSED)
        entries = [entry for entry in entries if entry.name in listed.get(entry.source, {})]
    waiting = iter(sampled(entries, options.sample, options.seed))
    number = 0
    while portion := list(islice(waiting, options.portion)):
        number += 1
        yield from serve_portion(portion, options, folder / f"portion-{number}")
        shutil.rmtree(folder / f"portion-{number}")


def serve_portion(entries: Sequence[Entry], options: Options, folder: Path) -> Iterator[Row]:
    """Lay the entries out bare, start the daemon on them, and ask each model that it serves."""
    (folder / "models").mkdir(parents=True)
    tried = list(members(entries, folder / "models", options.asks, options.seconds, options.seed))
    kept = {member.entry.model for member in tried}
    yield from (Row(entry, "unrunnable") for entry in entries if entry.model not in kept)
    with starting(folder / "gateway", models=folder / "models", config=CONFIG) as daemon:
        daemon.wait("READY=1", START_S)
        with triton.InferenceServerClient(daemon.grpc) as client:
            for member in tried:
                yield _row(member, client, daemon, options)


def _row(member: Member, client: triton.InferenceServerClient, daemon: Daemon, options: Options) -> Row:
    entry = member.entry
    state, reason = _state(client, entry.model)
    if state != "READY":
        return Row(entry, "refused", reason)
    config = client.get_model_config(entry.model).config
    level = _level(config)
    if options.joined and not config.HasField("dynamic_batching"):
        return Row(entry, level, NOT_JOINED)
    if not member.asks.asks:
        return Row(entry, level, "no client can send or receive its tensors")
    total = Tally()
    stated = sum(not _stated(client, entry.model, case, total) for case in entry.cases)
    for call, address, callers in ((call_grpc, daemon.grpc, GRPC_CALLERS), (call_http, daemon.http, HTTP_CALLERS)):
        load = Load(callers, options.requests, options.seconds)
        total.add(asyncio.run(call(address, entry.model, member.asks, load)))
    return Row(entry, level, member.asks.shapes_only, total, stated, len(member.asks.asks))


def _state(client: triton.InferenceServerClient, model: str) -> tuple[str, str]:
    """Return state and reason in the repository index; a model that is not in it is invisible."""
    for line in client.get_model_repository_index().models:
        if line.name == model:
            return line.state, line.reason
    return "INVISIBLE", "not in the repository index"


def _level(config: ModelConfig) -> str:
    """Return the level that the gateway states, else "served"."""
    parameters = config.parameters
    return (parameters["level"].string_value if "level" in parameters else "") or "served"


def _stated(client: triton.InferenceServerClient, model: str, case: Case, tally: Tally) -> bool:
    """Return whether the gateway answers the source's own inputs as the source states; count an error in `tally`."""
    try:
        return agrees(_answer(client, model, case), case)
    except InferenceServerException as error:
        tally.errors[str(error)[:ERROR_CHARS]] += 1
        return False


def _answer(client: triton.InferenceServerClient, model: str, case: Case) -> dict:  # type: ignore[type-arg]
    wanted = {line.name for line in client.get_model_metadata(model).inputs}
    tensors = []
    for name, array in case.inputs.items():
        if name in wanted:
            tensor = triton.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
            tensors.append(tensor.set_data_from_numpy(array))
    answer = client.infer(model, tensors)
    return {output.name: answer.as_numpy(output.name) for output in answer.get_response().outputs}


def main() -> int:
    """Print the table; exit code 1 where an answer was wrong or `refused.toml` is not what was seen."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--groups", default=",".join(GROUPS), help=f"some of {', '.join(GROUPS)}, separated by commas")
    parser.add_argument("--sample", type=int, default=0, help="entries chosen by chance; 0 for all")
    parser.add_argument("--seed", type=int, default=20, help="seed of the choice and of the data")
    parser.add_argument("--portion", type=int, default=100, help="models per daemon")
    parser.add_argument("--asks", type=int, default=32, help="different requests per model")
    parser.add_argument("--requests", type=int, default=1000, help="requests per model and protocol, at most")
    parser.add_argument("--seconds", type=float, default=2.0, help="time per model and protocol, at most")
    parser.add_argument("--torch-python", default="/usr/bin/python3", help="an interpreter that can import torch")
    parser.add_argument("--listed", action="store_true", help=f"only what {REFUSED.name} lists: is it served by now?")
    parser.add_argument("--joined", action="store_true", help="ask only models whose requests may share a run")
    parser.add_argument("--update", action="store_true", help=f"rewrite the rows of {REFUSED.name} that ran")
    arguments = vars(parser.parse_args())
    update, groups = arguments.pop("update"), tuple(arguments.pop("groups").split(","))
    with tempfile.TemporaryDirectory(prefix="world-") as folder:
        rows = []
        for row in serve_corpus(Options(groups, **arguments), Path(folder)):
            rows.append(row)
            if row.failed:
                print(row.line, flush=True)
    if update:
        write_refused(REFUSED, rows)
    return int(not print_report(rows, refused_rows(REFUSED)))


if __name__ == "__main__":
    raise SystemExit(main())
