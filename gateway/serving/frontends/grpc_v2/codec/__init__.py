"""Conversion between the protocol's messages and the domain's requests and responses, without I/O.

`decode` and `encode` convert protobuf messages and are the reference. `infer_codec` does the same for ModelInfer on the
hot path, with `patterns` of requests and `templates` of responses.
"""
