"""Files that a request is made of."""

import io
from types import SimpleNamespace

import pytest

from gateway.common.domain.errors import ConfigurationError
from gateway.serving.cli import files


@pytest.fixture
def piped(monkeypatch):
    """Return a function that sets what stands on standard input, with a bound of eight bytes."""
    monkeypatch.setattr(files, "FILE_LIMIT_BYTES", 8)
    files._kept.cache_clear()

    def pipe(content):
        monkeypatch.setattr(files.sys, "stdin", SimpleNamespace(buffer=io.BytesIO(content)))

    return pipe


def test_standard_input_up_to_the_bound(piped):
    piped(b"12345678")
    assert files.read_file("-") == b"12345678"
    assert files.read_file("-") == b"12345678", "it is asked for again while a gateway starts"


def test_standard_input_beyond_the_bound_is_refused_not_cut(piped):
    piped(b"123456789")
    with pytest.raises(ConfigurationError, match="is larger than 8 bytes"):
        files.read_file("-")
