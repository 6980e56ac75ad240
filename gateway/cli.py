"""Verbs of `edge-gateway`: options and examples."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from gateway import __version__
from gateway.common.domain.rights import known_scopes
from gateway.common.terminal.numbers import interval, positive
from gateway.common.terminal.program import Program, Verb, json_option, named
from gateway.workshop.cli.infer_options import INFER_EXAMPLES, infer_options
from gateway.workshop.cli.models_parser import add_actions

BENCH_EXAMPLES = (
    "  edge-gateway bench meter-reader\n"
    "  edge-gateway bench meter-reader --seconds 10 --frontends grpc,shm --concurrency 1,4,16\n"
    "  edge-gateway bench detector --models models --npz frame.npz --plot detector.svg\n"
    "  edge-gateway bench meter-reader --address 127.0.0.1:8000 --grpc-address 127.0.0.1:8001 --json"
)
DEFAULT_FRONT_ENDS, DEFAULT_CONCURRENCY, DEFAULT_SECONDS = "grpc,http,shm", "1,8", 5.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb; return its exit code."""
    return PROGRAM.main(arguments)


def _config(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--config",
        type=named,
        metavar="FILE",
        help="TOML configuration (default: /etc/edge-gateway/edge-gateway.toml if it exists)",
    )


def _device(parser: argparse.ArgumentParser) -> None:
    _config(parser)
    parser.add_argument(
        "--models",
        type=named,
        metavar="DIR",
        help="model directory (default: /var/lib/edge-gateway/models, and the examples)",
    )
    parser.add_argument(
        "--state",
        type=named,
        metavar="DIR",
        help="where verdicts are kept (default: $STATE_DIRECTORY, else $XDG_STATE_HOME/edge-gateway)",
    )


def _root(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--root",
        type=named,
        metavar="DIR",
        default="/",
        help="another machine's /sys, /proc, /dev and /etc",
    )


def _asking(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--url",
        type=named,
        metavar="ADDR",
        help="ask the gateway there: host:port, http(s)://host or unix:/path (default: the one that runs here)",
    )
    parser.add_argument("--offline", action="store_true", help="ask no gateway: look at the disk")
    _credentials(parser)


def _credentials(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--token-file", type=named, metavar="FILE", help="file with the caller's token")
    parser.add_argument("--ca", type=named, metavar="FILE", help="PEM: who signs the gateway's certificate (https)")
    parser.add_argument("--cert", type=named, metavar="FILE", help="PEM: our certificate, where one is asked for")
    parser.add_argument("--key", type=named, metavar="FILE", help="PEM: its key, unless --cert holds it as well")


def _run(parser: argparse.ArgumentParser) -> None:
    _device(parser)
    address = "host:port, unix:/path or off; repeatable, replaces the configured ones"
    parser.add_argument("--grpc", metavar="ADDR", action="append", help=f"{address} (default 127.0.0.1:8001)")
    parser.add_argument("--http", metavar="ADDR", action="append", help=f"{address} (default 127.0.0.1:8000)")
    parser.add_argument("--mqtt", type=named, metavar="URL", help="broker: mqtt://host:1883, mqtts://host:8883, or off")
    parser.add_argument("--control", metavar="ADDR", help="the update agent's socket, unix:PATH or off (default off)")


def _probe(parser: argparse.ArgumentParser) -> None:
    _config(parser)
    _root(parser)
    json_option(parser)


def _explain(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="a model's name in the model directory")
    parser.add_argument("--model-version", metavar="V", default="", help="the version (default: the newest)")
    parser.add_argument(
        "--no-measure", dest="measure", action="store_false", help="do not try variants that have no verdict here yet"
    )
    parser.add_argument("--again", action="store_true", help="try every variant again, whatever is kept")
    parser.add_argument("--svg", type=named, metavar="FILE", help="draw the steps of a pipeline, with what they cost")
    _asking(parser)
    _device(parser)
    _root(parser)
    json_option(parser)


def _doctor(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("code", nargs="?", metavar="CODE", help="explain the code of an error, such as EG-201")
    parser.add_argument(
        "--bundle", type=named, metavar="FILE", help="write FILE.tar.gz for a bug report: what was found, no secrets"
    )
    _device(parser)
    _root(parser)
    _credentials(parser)
    parser.set_defaults(url=None, offline=False)
    json_option(parser)


def _models(parser: argparse.ArgumentParser) -> None:
    _asking(parser)
    _device(parser)
    json_option(parser)
    add_actions(parser)


def _config_verb(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", nargs="?", choices=("check",), help="check: read FILE and say what is wrong")
    parser.add_argument("file", nargs="?", metavar="FILE", help="the configuration to check")
    parser.add_argument(
        "--fleet-settings",
        type=named,
        metavar="FILE",
        help="check: FILE is a part of a configuration that a fleet is to sign (edge-fleet settings add)",
    )
    parser.add_argument(
        "--user",
        type=named,
        metavar="NAME",
        help="check: judge files as this user would read them (default: the installed unit's user, else the caller)",
    )
    _config(parser)
    json_option(parser)


def _setup(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--yes", action="store_true", help="ask nothing: take the options, else what is set, else defaults"
    )
    parser.add_argument("--listen", choices=("device", "network"), help="who may call over HTTP; network: with a token")
    parser.add_argument("--mqtt", type=named, metavar="URL", help="broker: mqtt://host:1883, mqtts://host:8883, or off")
    parser.add_argument("--mqtt-username", type=named, metavar="NAME", help="user name at the broker")
    parser.add_argument(
        "--mqtt-password-file", type=named, metavar="FILE", help="file whose first line is the password"
    )
    parser.add_argument("--models", type=named, metavar="DIR", help="folder of your models")
    parser.add_argument("--examples", choices=("yes", "no"), help="serve the two examples too")
    parser.add_argument(
        "--camera", type=named, metavar="URL", help="camera of the service: its URL, /dev/video0, or off"
    )
    parser.add_argument("--camera-name", type=named, metavar="NAME", help="its name (default: camera)")
    parser.add_argument("--camera-model", type=named, metavar="MODEL", help="model or pipeline that is asked")
    parser.add_argument("--no-check", action="store_true", help="do not connect to the broker and the camera")
    parser.add_argument("--restart", action="store_true", help="restart the service with the new settings")
    parser.add_argument("--dry-run", action="store_true", help="write nothing: print the files")
    _config(parser)
    json_option(parser)


def _infer(parser: argparse.ArgumentParser) -> None:
    infer_options(parser)
    _asking(parser)
    _device(parser)


def _bench(parser: argparse.ArgumentParser) -> None:
    bench_options(parser)
    _device(parser)
    json_option(parser)


def _routes(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "action",
        choices=("check", "new", "tail"),
        help="check: show what a route of FILE makes of a message; new: propose a route for a message; tail: show the "
        "messages on the broker and what the routes make of them",
    )
    parser.add_argument("file", nargs="?", metavar="FILE", help="the configuration (default: the installed one)")
    parser.add_argument("--sample", type=named, metavar="F", help="file with the payload of one message; - reads stdin")
    parser.add_argument("--topic", type=named, metavar="T", help="the message's topic")
    parser.add_argument("--route", type=named, metavar="NAME", help="check, tail: the route (default: by topic)")
    parser.add_argument("--model", type=named, metavar="M", help="new: the model of the route")
    parser.add_argument("--content-type", type=named, metavar="TYPE", help="the message's Content Type, as text/csv")
    parser.add_argument("--models", type=named, metavar="DIR", help="model directory, for windows and shapes")
    parser.add_argument("--broker", type=named, metavar="NAME", help="check, tail: routes of this [[mqtt.broker]]")
    parser.add_argument(
        "--mqtt", type=named, metavar="URL", help="tail: another address of the broker, mqtt://host:1883"
    )
    parser.add_argument("--count", type=positive, metavar="N", default=0, help="tail: end after N messages")
    json_option(parser)


def _watch(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", nargs="?", metavar="FILE", help="the configuration (default: the installed one)")
    parser.add_argument("--route", type=named, metavar="NAME", help="sensors of this route only")
    parser.add_argument("--sensor", type=named, metavar="TEXT", help="sensors whose name contains TEXT, in any case")
    parser.add_argument("--every", type=interval, metavar="S", default=1.0, help="seconds between tables (default 1)")
    parser.add_argument("--broker", type=named, metavar="NAME", help="a [[mqtt.broker]] (default: that of the route)")
    parser.add_argument("--mqtt", type=named, metavar="URL", help="another address of the broker, mqtt://host:1883")
    number = parser.add_mutually_exclusive_group()
    number.add_argument("--count", type=positive, metavar="N", default=0, help="end after N tables")
    number.add_argument("--once", dest="count", action="store_const", const=1, help="end after one table")
    parser.add_argument(
        "--url",
        type=named,
        metavar="ADDR",
        help="read the metrics of the gateway there: host:port, http(s)://host or unix:/path (default: by FILE)",
    )
    _credentials(parser)
    json_option(parser)


def _cameras(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "action", nargs="?", choices=("list", "check"), default="list", help="check: find what is wrong"
    )
    parser.add_argument("camera", nargs="?", metavar="CAMERA", help="one camera, by its name; check: or a URL")
    _config(parser)
    parser.add_argument(
        "--url", type=named, metavar="ADDR", help="ask the gateway there (default: the one that runs here)"
    )
    _credentials(parser)
    json_option(parser)


def _token(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=("new",), help="new: make a token")
    parser.add_argument("name", metavar="NAME", help="the caller's name, in quotas and logs")
    words = ", ".join(known_scopes())
    parser.add_argument("--scopes", type=named, metavar="A,B", default="infer", help=f"of {words} (default: infer)")
    parser.add_argument(
        "--models", type=named, metavar="P,Q", help="models that it may see: names or patterns as cam-*"
    )
    parser.add_argument("--expires", type=named, metavar="TIME", help="2031-05-09 or 2031-05-09T12:00:00Z")
    json_option(parser)


VERBS = (
    Verb(
        "run",
        "serving.cli.run",
        "serve models over gRPC, HTTP and MQTT until SIGTERM; SIGHUP reads configuration, credentials and models again",
        "  edge-gateway run\n"
        "  edge-gateway run --models models --mqtt mqtt://127.0.0.1:1883\n"
        "  edge-gateway run --grpc unix:/run/edge-gateway/grpc.sock --http off\n"
        "  edge-gateway run --config /etc/edge-gateway/edge-gateway.toml",
        _run,
    ),
    Verb(
        "probe",
        "serving.cli.probe",
        "list what this machine has: board, processor, accelerators and how far each can be used",
        "  edge-gateway probe\n"
        "  edge-gateway probe --json | jq .profile\n"
        "  edge-gateway probe --root /mnt/other-device",
        _probe,
    ),
    Verb(
        "explain",
        "serving.cli.explain",
        "say which variant of a model serves on this device, and why; what the steps of a pipeline cost",
        "  edge-gateway explain meter-reader\n"
        "  edge-gateway explain plates --svg plates.svg\n"
        "  edge-gateway explain meter-reader --root /mnt/other-device\n"
        "  edge-gateway explain activity --again --json",
        _explain,
    ),
    Verb(
        "doctor",
        "serving.cli.doctor",
        "check the service, configuration, accelerators, disk, broker and models; name what to mend first, and how",
        "  sudo edge-gateway doctor\n"
        "  edge-gateway doctor EG-201\n"
        "  sudo edge-gateway doctor --bundle report.tar.gz\n"
        "  edge-gateway doctor --json | jq .findings\n"
        "  edge-gateway doctor --root /mnt/other-device",
        _doctor,
    ),
    Verb(
        "models",
        "serving.cli.models",
        "list what the running gateway serves, or without one the model directory; or check or make releases",
        "  edge-gateway models\n"
        "  edge-gateway models --offline\n"
        "  edge-gateway models check models/meter-reader/1\n"
        "  edge-gateway models new yolov8n.onnx --models models\n"
        "  edge-gateway models import /srv/triton/model_repository --into models",
        _models,
    ),
    Verb(
        "config",
        "serving.cli.config",
        "show the configuration in force, or check a file and whether the service may use what it names",
        "  edge-gateway config\n"
        "  sudo edge-gateway config check /etc/edge-gateway/edge-gateway.toml\n"
        "  sudo edge-gateway config check FILE --user edge-gateway\n"
        "  edge-gateway config check --fleet-settings site.toml",
        _config_verb,
    ),
    Verb(
        "setup",
        "serving.cli.setup",
        "ask for the usual settings and write them to conf.d, with limits of memory for the service",
        "  sudo edge-gateway setup\n"
        "  sudo edge-gateway setup --yes --listen network --restart\n"
        "  sudo edge-gateway setup --yes --mqtt mqtt://broker.lan:1883 --mqtt-username door \\\n"
        "      --mqtt-password-file /etc/edge-gateway/mqtt-password\n"
        "  sudo edge-gateway setup --yes --camera rtsp://me:word@10.0.0.7/h264 --camera-name door \\\n"
        "      --camera-model street\n"
        "  edge-gateway setup --yes --examples no --dry-run",
        _setup,
    ),
    Verb(
        "infer",
        "workshop.cli.infer",
        "answer one request by the gateway that runs, or without one in this process; or feed a video or camera to it",
        INFER_EXAMPLES,
        _infer,
    ),
    Verb(
        "bench",
        "workshop.cli.bench",
        "measure a model on this device: through gRPC, HTTP, shared memory or MQTT, and without the gateway",
        BENCH_EXAMPLES,
        _bench,
    ),
    Verb(
        "routes",
        "serving.cli.routes",
        "show what an MQTT route makes of a stored message or of those on the broker, or propose a route for one",
        "  edge-gateway routes check edge-gateway.toml --sample message.json --topic zigbee2mqtt/kitchen\n"
        "  edge-gateway routes check edge-gateway.toml --sample message.json --route rooms --json\n"
        "  edge-gateway routes new --sample message.json --topic zigbee2mqtt/kitchen --model comfort\n"
        "  edge-gateway routes tail edge-gateway.toml --route rooms --count 10",
        _routes,
    ),
    Verb(
        "watch",
        "serving.cli.watch",
        "show a live table of sensors: rate, lag, last result, errors; and below it drops and the health of the link",
        "  edge-gateway watch\n"
        "  edge-gateway watch edge-gateway.toml --route wrists --sensor left\n"
        "  edge-gateway watch --mqtt mqtt://broker.lan --url https://camera-7.lan --token-file token\n"
        "  edge-gateway watch --once --every 10\n"
        "  edge-gateway watch --every 5 --count 12 --json",
        _watch,
    ),
    Verb(
        "cameras",
        "serving.cli.cameras",
        "list the gateway's cameras: state, rates, drops, latency; or find what keeps one from working",
        "  edge-gateway cameras\n"
        "  edge-gateway cameras list door --json\n"
        "  edge-gateway cameras check\n"
        "  edge-gateway cameras check rtsp://10.0.0.7/h264",
        _cameras,
    ),
    Verb(
        "token",
        "serving.cli.token",
        "make a token for a caller, and the line by which [auth] tokens_file knows it",
        "  edge-gateway token new camera-7 --scopes infer --models 'cam-*'\n"
        "  edge-gateway token new prometheus --scopes metrics\n"
        "  edge-gateway token new deployer --scopes infer,models --expires 2031-05-09\n"
        "  edge-gateway token new north --scopes infer --json",
        _token,
    ),
)
PROGRAM = Program(
    "edge-gateway",
    __version__,
    "Finds this device's accelerators, picks each model's best variant for them,\nand serves it.",
    "gateway",
    VERBS,
)


def bench_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `bench`."""
    parser.add_argument("model", metavar="MODEL", help="a model's name")
    parser.add_argument("--model-version", metavar="V", default="", help="the version (default: the newest)")
    parser.add_argument(
        "--seconds", type=interval, metavar="S", default=DEFAULT_SECONDS, help="of each measurement (default 5)"
    )
    parser.add_argument(
        "--frontends", type=named, metavar="A,B", default=DEFAULT_FRONT_ENDS, help="of grpc, http, shm, mqtt"
    )
    parser.add_argument(
        "--concurrency", type=counts, metavar="N,M", default=DEFAULT_CONCURRENCY, help="connections (default 1,8)"
    )
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--image", type=named, metavar="F", help="a JPEG or PNG file (default: generated inputs)")
    source.add_argument("--npz", type=named, metavar="F", help="arrays by input name, as in a golden set")
    broker = "mqtt: the broker, mqtt://host:1883"
    parser.add_argument("--mqtt", type=named, dest="broker_url", metavar="URL", help=broker)
    parser.add_argument("--address", type=named, metavar="ADDR", help="a running gateway: host:port of its HTTP")
    parser.add_argument("--grpc-address", type=named, metavar="ADDR", help="and host:port of its gRPC")
    parser.add_argument("--token-file", type=named, metavar="FILE", help="with --address: file with the caller's token")
    parser.add_argument("--plot", type=named, metavar="FILE", help="write histograms as SVG")


def counts(text: str) -> tuple[int, ...]:
    """Parse whole numbers above 0, separated by commas; each once."""
    return tuple(dict.fromkeys(positive(part) for part in text.split(",")))
