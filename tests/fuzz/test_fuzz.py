"""Every target for some seconds with a fixed seed; `make fuzz` goes on for longer, and further."""

from __future__ import annotations

import random

import pytest

from tests.fuzz.mutation import SEEDS, spoil
from tests.fuzz.targets import TARGETS

ROUNDS = {
    "connection": 1500,
    "hpack_blocks": 4000,
    "huffman_code": 4000,
    "infer_codec": 1000,
    "json_body": 4000,
    "large_message": 2000,
    "onnx_facts": 4000,
    "pipelines": 1500,
}


@pytest.mark.parametrize("name", TARGETS)
def test_what_the_fuzzer_begins_with(name: str) -> None:
    for words in SEEDS[name]():
        TARGETS[name](words)


@pytest.mark.parametrize("block", [b"\x3e" * 6, b"\x3f\x80\x01" * 4 + b"\x20\x82", b"\x82\x7f\x80\x80\x80\x80\x00"])
def test_blocks_that_the_hpack_package_reads_and_we_do_not(block: bytes) -> None:
    TARGETS["hpack_blocks"](bytes([len(block)]) + block)


@pytest.mark.parametrize("name", TARGETS)
def test_spoilt_bytes(name: str) -> None:
    chance, seeds = random.Random(2026), SEEDS[name]()
    for _ in range(ROUNDS[name]):
        words = spoil(chance.choice(seeds), chance, seeds)
        try:
            TARGETS[name](words)
        except BaseException as error:
            error.add_note(f"{name}(bytes.fromhex('{words.hex()}'))")
            raise


@pytest.mark.parametrize("name", TARGETS)
def test_any_bytes(name: str) -> None:
    chance = random.Random(7)
    for _ in range(500):
        TARGETS[name](chance.randbytes(chance.randrange(120)))
