"""A first start serves the first variant that passes; the others are measured later, and the best takes over."""

import json
import subprocess

import tritonclient.grpc as triton

from tests.simulators.daemon import COMMAND, ROOT, SHORT_TRIALS, copy_model, running
from tests.simulators.hammer import hammering

AT_ONCE = f"[selection]\nidle_before_trial_s = 0.0\n{SHORT_TRIALS}"
VARIANTS = 7


def served(daemon):
    """Return the variant in use, as ModelConfig tells."""
    with triton.InferenceServerClient(daemon.grpc) as client:
        config = client.get_model_config("meter-reader").config
    return config.parameters["variant"].string_value


def explained(daemon):
    options = ["--models", str(daemon.models), "--state", str(daemon.state), "--no-measure", "--json"]
    command = [*COMMAND, "explain", "meter-reader", *options]
    return json.loads(subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout)


def test_variants_are_measured_and_swapped_without_losing_a_request(tmp_path):
    """Callers keep asking; with no idle time wanted, trials go on at the same time."""
    copy_model("meter-reader", tmp_path / "models")
    with running(tmp_path / "gateway", models=tmp_path / "models", config=AT_ONCE) as daemon:
        assert len(trials(daemon)) < VARIANTS
        with hammering(daemon, "meter-reader") as hammer:
            hammer.wait(lambda _: len(trials(daemon)) == VARIANTS)
            daemon.reload()
            hammer.wait_answers()
        assert hammer.failures == []
        assert sorted(trials(daemon)) == sorted(set(trials(daemon))), "each variant is tried once"
        told = explained(daemon)
        assert all(variant["measured"] for variant in told["variants"] if variant["accelerator"] == "cpu")
        assert served(daemon) == told["chosen"]


def trials(daemon):
    """Return the variants that were tried, without repetitions of measurements on this busy machine."""
    ended = [line for line in daemon.lines() if line["event"] == "trial finished"]
    return [line["variant"] for line in ended if not line["reason"].startswith("measured again")]
