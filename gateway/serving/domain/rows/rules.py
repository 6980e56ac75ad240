"""Table of the operators whose rows may be independent. What is not in it is not independent."""

from __future__ import annotations

from collections.abc import Mapping

from gateway.serving.domain.rows import control, elementwise, layers, matrices, selecting, shaping, windows
from gateway.serving.domain.rows.values import Rule, like


def _named(rule: Rule, kinds: str, domain: str = "") -> dict[str, Rule]:
    return dict.fromkeys((domain + kind for kind in kinds.split()), rule)


MICROSOFT, LEARNING, OPENVINO = "com.microsoft::", "ai.onnx.ml::", "openvino::"
RULES: Mapping[str, Rule] = {
    **_named(
        elementwise.elementwise,
        "Add Sub Mul Div Pow Mod Max Min Sum Mean And Or Xor Not Equal Greater Less GreaterOrEqual LessOrEqual PRelu "
        "BitShift BitwiseAnd BitwiseOr BitwiseXor Abs Neg Ceil Floor Round Sqrt",
    ),
    **_named(
        elementwise.unary,
        "Acos Acosh Asin Asinh Atan Atanh BitwiseNot Celu Clip Cos Cosh Elu Erf Exp Gelu HardSigmoid HardSwish IsInf "
        "IsNaN LeakyRelu Log Mish Reciprocal Relu Selu Shrink Sigmoid Sign Sin Sinh Softplus Softsign Swish Tan Tanh "
        "ThresholdedRelu",
    ),
    **_named(elementwise.cast, "Cast"),
    **_named(elementwise.where, "Where"),
    **_named(shaping.identity, "Identity"),
    **_named(lambda op: [like(op[0])], "CastLike"),
    **_named(shaping.shape_of, "Shape"),
    **_named(shaping.size_of, "Size"),
    **_named(shaping.reshape, "Reshape"),
    **_named(shaping.flatten, "Flatten"),
    **_named(shaping.transpose, "Transpose"),
    **_named(shaping.squeeze, "Squeeze"),
    **_named(shaping.unsqueeze, "Unsqueeze"),
    **_named(shaping.concat, "Concat"),
    **_named(shaping.split, "Split"),
    **_named(shaping.slice_of, "Slice"),
    **_named(selecting.gather, "Gather"),
    **_named(selecting.gather_elements, "GatherElements"),
    **_named(selecting.gather_nd, "GatherND"),
    **_named(selecting.scatter_elements, "ScatterElements"),
    **_named(shaping.expand, "Expand"),
    **_named(shaping.tile, "Tile"),
    **_named(shaping.filled, "ConstantOfShape"),
    **_named(shaping.numbers_from, "Range"),
    **_named(selecting.one_hot, "OneHot"),
    **_named(shaping.pad, "Pad"),
    **_named(shaping.resize, "Resize Upsample"),
    **_named(layers.along_axis, "Softmax LogSoftmax Hardmax LpNormalization"),
    **_named(layers.trailing_norm, "LayerNormalization RMSNormalization SimplifiedLayerNormalization"),
    **_named(layers.channel_norm, "InstanceNormalization GroupNormalization LRN"),
    **_named(layers.batch_norm, "BatchNormalization"),
    **_named(layers.dropout, "Dropout"),
    **_named(
        layers.reduce,
        "ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum "
        "ReduceSumSquare",
    ),
    **_named(layers.arg_extreme, "ArgMax ArgMin"),
    **_named(layers.top_k, "TopK"),
    **_named(layers.cumulative, "CumSum"),
    **_named(layers.last_two, "Trilu"),
    **_named(layers.quantize, "QuantizeLinear DequantizeLinear"),
    **_named(matrices.mat_mul, "MatMul MatMulInteger"),
    **_named(matrices.quantized_mat_mul, "QLinearMatMul"),
    **_named(matrices.gemm, "Gemm"),
    **_named(matrices.einsum, "Einsum"),
    **_named(windows.convolution, "Conv ConvInteger ConvTranspose QLinearConv"),
    **_named(windows.pool, "MaxPool AveragePool LpPool"),
    **_named(windows.global_pool, "GlobalAveragePool GlobalMaxPool GlobalLpPool"),
    **_named(windows.grid_sample, "GridSample"),
    **_named(windows.blocks, "DepthToSpace SpaceToDepth"),
    **_named(layers.recurrent, "LSTM GRU RNN"),
    **_named(layers.reverse_sequence, "ReverseSequence"),
    **_named(layers.fourier, "DFT"),
    **_named(layers.short_time_fourier, "STFT"),
    **_named(control.branch, "If"),
    **_named(control.loop, "Loop"),
    **_named(control.scan, "Scan"),
    **_named(layers.quantize, "QuantizeLinear DequantizeLinear", MICROSOFT),
    **_named(
        layers.quantized_elementwise,
        "QLinearAdd QLinearMul QLinearSigmoid QLinearLeakyRelu",
        MICROSOFT,
    ),
    **_named(layers.quantized_concat, "QLinearConcat", MICROSOFT),
    **_named(windows.global_pool, "QLinearGlobalAveragePool", MICROSOFT),
    **_named(windows.pool, "QLinearAveragePool", MICROSOFT),
    **_named(matrices.gemm, "QGemm", MICROSOFT),
    **_named(matrices.mat_mul, "FusedMatMul", MICROSOFT),
    **_named(layers.skip_norm, "SkipLayerNormalization SkipSimplifiedLayerNormalization", MICROSOFT),
    **_named(elementwise.elementwise, "BiasGelu FastGelu Gelu QuickGelu", MICROSOFT),
    **_named(
        layers.along_axis,
        "Scaler Imputer Normalizer",
        LEARNING,
    ),
    **_named(elementwise.unary, "Binarizer LabelEncoder CategoryMapper ZipMap", LEARNING),
    **_named(
        layers.table,
        "TreeEnsemble TreeEnsembleClassifier TreeEnsembleRegressor "
        "LinearClassifier LinearRegressor SVMClassifier SVMRegressor",
        LEARNING,
    ),
    **_named(layers.select_features, "ArrayFeatureExtractor", LEARNING),
    **_named(layers.one_hot_features, "OneHotEncoder", LEARNING),
    **_named(layers.feature_vector, "FeatureVectorizer", LEARNING),
    **_named(elementwise.elementwise, "Divide FakeQuantize Mod", OPENVINO),
    **_named(elementwise.unary, "Convert", OPENVINO),
    **_named(layers.batch_norm, "PReLU", OPENVINO),
    **_named(layers.cumulative, "MVN NormalizeL2 LRN Reverse", OPENVINO),
}
"""Rule of each operator."""
RANDOM = frozenset(
    {"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial", "Bernoulli"}
)
"""Operators whose results are random, whatever their inputs."""
REASONS: Mapping[str, str] = {
    **dict.fromkeys(
        (
            "DynamicQuantizeLinear",
            MICROSOFT + "DynamicQuantizeMatMul",
            MICROSOFT + "DynamicQuantizeLSTM",
            MICROSOFT + "MatMulIntegerToFloat",
        ),
        "its scale follows the range of the whole tensor",
    ),
    **dict.fromkeys(("NonZero", "Compress", "Unique"), "its result has as many entries as the data of all rows say"),
    "NonMaxSuppression": "it lists the boxes of all rows",
}
"""Reasons for well-known operators without a rule."""
