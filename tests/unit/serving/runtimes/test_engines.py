"""Options and refusals of each engine, below the common contract."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.common.domain.errors import VariantError
from gateway.common.domain.manifest import Artifact, Binding, ModelManifest, TensorSpec, Variant
from gateway.common.domain.tensor import Datatype
from gateway.common.domain.verdict import SessionBudget
from gateway.serving.runtimes import onnx, onnx_providers, openvino
from gateway.serving.runtimes.catalog import get_runtime
from gateway.serving.runtimes.litert import LiteRtTensor, dequantise, quantise
from gateway.serving.runtimes.session import bind
from tests.simulators import models, models_litert


def test_onnx_threads_do_not_spin_and_are_the_budgets():
    options = onnx.session_options(onnxruntime, SessionBudget(threads=3))
    assert options.intra_op_num_threads == 3
    assert options.inter_op_num_threads == 1
    assert options.get_session_config_entry("session.intra_op.allow_spinning") == "0"
    assert options.get_session_config_entry("session.inter_op.allow_spinning") == "0"


def test_onnx_optimisation_is_an_option():
    options = onnx.session_options(onnxruntime, SessionBudget(options={"graph_optimization": "disable"}))
    assert options.graph_optimization_level == onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    with pytest.raises(VariantError, match="must be one of disable, basic, extended, all, not 'most'"):
        onnx.session_options(onnxruntime, SessionBudget(options={"graph_optimization": "most"}))


class Build:
    """An onnxruntime module as far as its providers go."""

    __version__ = "1.99"

    def __init__(self, *available):
        self.available = available

    def get_available_providers(self):
        return list(self.available)


def test_onnx_on_nvidia_takes_tensorrt_before_cuda_and_says_the_precision():
    build = Build("TensorrtExecutionProvider", "CUDAExecutionProvider", "CPUExecutionProvider")
    first, second, last = onnx_providers.providers(
        build, SessionBudget(accelerator="nvidia-gpu", cache_dir="/cache"), "int8"
    )
    assert first[0] == "TensorrtExecutionProvider"
    assert first[1]["trt_int8_enable"] == "1"
    assert first[1]["trt_engine_cache_path"] == "/cache"
    assert second == ("CUDAExecutionProvider", {"device_id": "0", "use_tf32": "0"})
    assert last == "CPUExecutionProvider"


def test_onnx_on_nvidia_takes_what_the_profile_names():
    build = Build("TensorrtExecutionProvider", "CUDAExecutionProvider", "CPUExecutionProvider")
    budget = SessionBudget(accelerator="nvidia-jetson-gpu", options={"providers": "CUDAExecutionProvider"})
    assert [each[0] for each in onnx_providers.providers(build, budget, "fp32")[:-1]] == ["CUDAExecutionProvider"]


def test_onnx_refuses_to_fall_back_to_the_cpu_silently(tmp_path):
    manifest = models.write_variant(tmp_path, models.dense(), "onnx")
    session = onnxruntime.InferenceSession(tmp_path / manifest.variants[0].artifacts[0].path)
    onnx_providers.refuse_fallback(session, SessionBudget(), "")
    with pytest.raises(VariantError, match="fell back to CPUExecutionProvider instead of using nvidia-gpu: Lost"):
        onnx_providers.refuse_fallback(session, SessionBudget(accelerator="nvidia-gpu"), "Lost")


class WithoutTensorRt:
    """ONNX Runtime on an NVIDIA GPU without TensorRT's libraries, as 1.31.1 behaved on an H200."""

    __version__, capi = "1.31.1", onnxruntime.capi

    def __init__(self, *lost: str) -> None:
        self._lost = lost

    def InferenceSession(self, file, options, providers, enable_fallback=1):
        first = providers[0][0]
        if first in ("TensorrtExecutionProvider", *self._lost):
            assert not enable_fallback, "the next provider would lose its options"
            raise RuntimeError(f"Please install the libraries of {first}")
        return providers


def test_onnx_without_tensorrt_keeps_the_options_of_cuda():
    providers = [
        ("TensorrtExecutionProvider", {}),
        ("CUDAExecutionProvider", {"use_tf32": "0"}),
        "CPUExecutionProvider",
    ]
    assert onnx_providers.load(WithoutTensorRt(), Path("m.onnx"), None, providers) == providers[1:]
    with pytest.raises(VariantError, match="libraries of CUDA"):
        onnx_providers.load(WithoutTensorRt("CUDAExecutionProvider"), Path("m.onnx"), None, providers)


def test_onnx_loads_nvidias_packages_and_keeps_what_it_prints_from_stdout(capsys):
    class Printing:
        @staticmethod
        def preload_dlls():
            print("Failed to load\n libcublasLt.so.13")

    assert onnx_providers.load_cuda(Printing) == "Failed to load libcublasLt.so.13"
    assert onnx_providers.load_cuda(WithoutTensorRt) == ""
    assert capsys.readouterr().out == ""


def test_onnx_on_amd_says_the_precision():
    build = Build("MIGraphXExecutionProvider", "CPUExecutionProvider")
    (first, _) = onnx_providers.providers(build, SessionBudget(accelerator="amd-gpu"), "fp16")
    assert first == ("MIGraphXExecutionProvider", {"device_id": "0", "migraphx_fp16_enable": "1"})


def test_onnx_on_nvidia_without_its_providers_names_what_is_missing():
    with pytest.raises(
        VariantError, match="offers CPUExecutionProvider, but nvidia-gpu needs one of Tensorrt"
    ) as caught:
        onnx_providers.providers(Build("CPUExecutionProvider"), SessionBudget(accelerator="nvidia-gpu"), "fp32")
    assert "[onnx-cuda]" in caught.value.remedy


@pytest.mark.parametrize(
    ("accelerator", "precision", "machine", "hint"),
    [
        ("cpu", "fp32", "x86_64", "f32"),
        ("cpu", "fp16", "x86_64", "f32"),
        ("cpu", "fp16", "aarch64", "f16"),
        ("cpu", "int8", "x86_64", "f32"),
        ("cpu", "bf16", "x86_64", "bf16"),
        ("intel-gpu", "fp16", "x86_64", "f16"),
        ("intel-gpu", "fp32", "x86_64", "f32"),
        ("intel-npu", "int8", "x86_64", "f16"),
    ],
)
def test_openvino_is_always_told_the_precision(accelerator, precision, machine, hint):
    assert (
        openvino.compile_options(SessionBudget(accelerator=accelerator), precision, machine)["INFERENCE_PRECISION_HINT"]
        == hint
    )


def test_openvino_on_the_npu_refuses_to_round_fp32_silently():
    with pytest.raises(VariantError, match="NPU does not compute in fp32; it does in fp16, int8"):
        openvino.compile_options(SessionBudget(accelerator="intel-npu"), "fp32", "x86_64")


def test_openvino_keeps_blobs_of_gpu_and_npu():
    options = openvino.compile_options(SessionBudget(accelerator="intel-npu", cache_dir="/cache"), "int8", "x86_64")
    assert options["CACHE_DIR"] == "/cache"
    assert options["PERFORMANCE_HINT"] == "LATENCY"


def test_openvino_does_what_it_is_told(tmp_path):
    import openvino as ov

    manifest = models.write_variant(tmp_path, models.dense(), "openvino")
    options = openvino.compile_options(SessionBudget(threads=2, options={"cores": "any"}), "int8", "x86_64")
    compiled = ov.Core().compile_model(str(tmp_path / manifest.variants[0].artifacts[0].path), "CPU", options)
    assert compiled.get_property("INFERENCE_PRECISION_HINT") == ov.Type.f32
    assert compiled.get_property("INFERENCE_NUM_THREADS") == 2
    assert compiled.get_property("NUM_STREAMS") == 1
    assert compiled.get_property("ENABLE_CPU_PINNING") is False


def test_openvino_gives_the_npu_one_row_and_loops_over_the_others(tmp_path):
    """Compiled for the CPU here, in the shapes that the NPU would get."""
    import openvino as ov

    manifest = models.write_variant(tmp_path, models.dense(), "openvino")
    (variant,) = manifest.variants
    model = ov.Core().read_model(str(tmp_path / variant.artifacts[0].path))
    openvino._fix_rows(model, variant)
    ports = openvino._ports(model.inputs), openvino._ports(model.outputs)
    assert ports[0][0].shape == (1, 4)
    compiled = ov.Core().compile_model(model, "CPU", openvino.compile_options(SessionBudget(), "fp32", "x86_64"))
    session = bind(openvino.OpenVinoEngine(ov, compiled, *ports), manifest, variant)
    x = np.random.default_rng(0).random((3, 4)).astype(np.float32)
    np.testing.assert_allclose(session.run({"x": x})["scores"], x @ models.WEIGHTS + models.BIAS, rtol=1e-5)


def test_openvino_on_the_npu_refuses_open_dimensions_within_a_row(tmp_path):
    import openvino as ov

    manifest = models.write_variant(tmp_path, models.dense(), "openvino")
    model = ov.Core().read_model(str(tmp_path / manifest.variants[0].artifacts[0].path))
    model.reshape([-1, -1])
    with pytest.raises(VariantError, match=r"the NPU needs fixed shapes, but 'x' has \[-1, -1\]"):
        openvino._fix_rows(model, manifest.variants[0])


def test_openvino_without_the_device_says_so(tmp_path):
    manifest = models.write_variant(tmp_path, models.dense(), "openvino")
    fp16 = replace(manifest.variants[0], precision="fp16")
    with pytest.raises(VariantError, match=r"OpenVINO lists no device NPU") as refused:
        get_runtime("openvino").open(manifest, fp16, tmp_path, SessionBudget(accelerator="intel-npu"))
    assert refused.value.transient, "it may be plugged in again"


def test_openvino_reads_no_other_frameworks_files(tmp_path):
    (tmp_path / "model.onnx").write_bytes(b"")
    with pytest.raises(VariantError, match="not an OpenVINO IR file"):
        get_runtime("openvino").inspect(tmp_path / "model.onnx")


@given(
    dtype=st.sampled_from(["i1", "u1", "i2"]),
    scale=st.floats(1e-4, 10),
    values=st.lists(st.floats(width=32), min_size=1, max_size=8),
    data=st.data(),
)
def test_quantisation_rounds_clips_and_survives_nan(dtype, scale, values, data):
    bounds = np.iinfo(dtype)
    zero_point = data.draw(st.integers(int(bounds.min), int(bounds.max)))
    slot = LiteRtTensor(0, np.dtype(dtype), scale, zero_point)
    array = np.array(values, np.float32)
    back = dequantise(quantise(array, slot), slot)
    least, most = (bounds.min - zero_point) * scale, (bounds.max - zero_point) * scale
    wanted = np.clip(np.nan_to_num(array.astype(np.float64), nan=least, posinf=most, neginf=least), least, most)
    np.testing.assert_allclose(back, wanted, atol=scale * 0.51 + 1e-3 * abs(wanted).max())


def quantised(folder, datatype):
    (folder / "model.tflite").write_bytes(models_litert.quantised_adder(0.5, 3))
    left, right, total = (TensorSpec(name, datatype, (-1, 3)) for name in ("left", "right", "total"))
    variant = Variant("int8", "litert", "int8", (Artifact("model.tflite", "0" * 64, 1),))
    manifest = ModelManifest("adder", "1", (left, right), (total,), (variant,))
    return get_runtime("litert").open(manifest, variant, folder, SessionBudget())


def test_litert_quantises_where_the_manifest_speaks_of_floats(tmp_path):
    session = quantised(tmp_path, Datatype.FP32)
    answer = session.run({"left": np.array([[1.0, 2.6, 500]], "f4"), "right": np.array([[2.0, -1.0, 0]], "f4")})
    np.testing.assert_array_equal(answer["total"], [[3.0, 1.5, 62.0]])  # 62 = (127 - 3) * 0.5


def test_litert_passes_integers_where_the_manifest_speaks_of_them(tmp_path):
    session = quantised(tmp_path, Datatype.INT8)
    answer = session.run({"left": np.array([[5, 3, 3]], "i1"), "right": np.array([[7, 3, 4]], "i1")})
    np.testing.assert_array_equal(answer["total"], [[9, 3, 4]])  # (2 + 4) + 3, 0 + 3, 1 + 3


def test_litert_offers_a_bare_quantised_file_as_floats(tmp_path):
    (tmp_path / "model.tflite").write_bytes(models_litert.quantised_adder(0.5, 3))
    signature = get_runtime("litert").inspect(tmp_path / "model.tflite")
    assert {spec.datatype for spec in (*signature.inputs, *signature.outputs)} == {Datatype.FP32}


def test_litert_loops_over_the_rows_of_a_graph_that_takes_one(tmp_path):
    (tmp_path / "model.tflite").write_bytes(models_litert.single_row())
    variant = Variant("single", "litert", "fp32", (Artifact("model.tflite", "0" * 64, 1),))
    session = get_runtime("litert").open(models.identity(), variant, tmp_path, SessionBudget())
    for rows in (1, 4, 1):
        x = np.arange(3 * rows, dtype=np.float32).reshape(rows, 3)
        np.testing.assert_array_equal(session.run({"x": x})["y"], x)


def _litert_variant(tmp_path, content, signature=""):
    (tmp_path / "model.tflite").write_bytes(content)
    return Variant("v", "litert", "fp32", (Artifact("model.tflite", "0" * 64, 1),), signature=signature)


@pytest.mark.parametrize(
    ("keys", "wanted", "served"),
    [
        (("serving_default", "encode"), "", 0),
        (("encode", "serving_default", "decode"), "", 1),
        (("encode", "decode"), "", 0),
        (("encode", "serving_default", "decode"), "decode", 2),
        (("encode", "serving_default"), "encode", 0),
    ],
)
def test_litert_serves_the_signature_that_the_manifest_names_else_the_default(tmp_path, keys, wanted, served):
    variant, runtime = _litert_variant(tmp_path, models_litert.signatures(*keys), wanted), get_runtime("litert")
    session = runtime.open(models.identity(), variant, tmp_path, SessionBudget())
    for rows in (1, 4, 1):
        x = np.arange(3 * rows, dtype=np.float32).reshape(rows, 3)
        np.testing.assert_array_equal(session.run({"x": x})["y"], x + served)
    assert runtime.operators(variant, tmp_path) == {"ADD"}
    (told,) = session.remarks or ("",)
    assert bool(told) is not bool(wanted)
    assert all(f"{key!r}" in told for key in keys) or wanted


def test_litert_names_tensors_by_the_signature_where_a_file_has_several(tmp_path):
    def names(content):
        _litert_variant(tmp_path, content)
        signature = get_runtime("litert").inspect(tmp_path / "model.tflite")
        return [spec.name for spec in (*signature.inputs, *signature.outputs)]

    own = ["serving_default_x:0", "StatefulPartitionedCall:0"]
    assert names(models_litert.signatures("serving_default")) == own, "as files with one signature were always served"
    assert names(models_litert.signatures("encode", "decode")) == ["x", "y"]
    assert names(models_litert.signatures("encode", first=1)) == ["x", "y"]


def test_litert_takes_a_binding_by_the_signatures_names_and_by_the_graphs(tmp_path):
    variant = _litert_variant(tmp_path, models_litert.signatures("serving_default"))
    bind = {"x": Binding("serving_default_x:0"), "y": Binding("StatefulPartitionedCall:0")}
    x = np.ones((1, 3), np.float32)
    for each in (variant, replace(variant, bind=bind)):
        session = get_runtime("litert").open(models.identity(), each, tmp_path, SessionBudget())
        np.testing.assert_array_equal(session.run({"x": x})["y"], x)
        assert session.remarks == ()


def test_litert_refuses_a_signature_that_the_file_lacks(tmp_path):
    variant = _litert_variant(tmp_path, models_litert.signatures("encode", "decode"), "translate")
    with pytest.raises(VariantError, match="no signature 'translate'; it has 'decode', 'encode'") as caught:
        get_runtime("litert").open(models.identity(), variant, tmp_path, SessionBudget())
    assert "[[variant]]" in caught.value.remedy


def test_litert_opens_a_file_that_takes_other_sizes_than_it_declares(tmp_path):
    variant = _litert_variant(tmp_path, models_litert.other_sizes())
    inspected = get_runtime("litert").inspect(tmp_path / "model.tflite")
    assert [spec.shape for spec in inspected.inputs] == [(-1, -1)]
    manifest = ModelManifest("other-sizes", "1", inspected.inputs, inspected.outputs, (variant,))
    session = get_runtime("litert").open(manifest, variant, tmp_path, SessionBudget())
    for size in (8, 1, 4):
        x = np.arange(size, dtype=np.float32).reshape(1, size)
        if size == 1:
            with pytest.raises(VariantError, match="LiteRT failed"):
                session.run({"x": x})
        else:
            np.testing.assert_array_equal(session.run({"x": x})["y"], x.reshape(-1, 4))


def test_a_file_that_is_cut_short_is_refused_with_a_remedy(tmp_path):
    (tmp_path / "x.tflite").write_bytes(models_litert.signatures("encode")[:300])
    (tmp_path / "x.xml").write_bytes(b'<?xml version="1.0"?><net name="m" version="11"><layers><layer id="0" na')
    for runtime, file in (("litert", "x.tflite"), ("openvino", "x.xml")):
        with pytest.raises(VariantError, match=file) as caught:
            get_runtime(runtime).inspect(tmp_path / file)
        assert "copy it here again" in caught.value.remedy


def test_litert_without_its_delegate_answers_alike(tmp_path):
    manifest = models.write_variant(tmp_path, models.dense(), "litert")
    x = np.ones((2, 4), np.float32)
    answers = [
        get_runtime("litert")
        .open(manifest, manifest.variants[0], tmp_path, SessionBudget(options={"delegate": name}))
        .run({"x": x})
        for name in ("xnnpack", "none")
    ]
    np.testing.assert_allclose(answers[0]["scores"], answers[1]["scores"], rtol=1e-6)


def test_litert_without_the_coral_library_says_what_to_install(tmp_path):
    manifest = models.write_variant(tmp_path, models.dense(), "litert")
    with pytest.raises(VariantError, match=r"libedgetpu.so.1 cannot be used") as caught:
        get_runtime("litert").open(manifest, manifest.variants[0], tmp_path, SessionBudget(accelerator="coral-usb"))
    assert "libedgetpu1-std" in caught.value.remedy
    assert caught.value.transient, "one process per TPU: a busy one says nothing about the model"
