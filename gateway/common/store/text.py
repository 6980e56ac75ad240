"""Text files of an operator: bounded, UTF-8, with an error message for every failure."""

from __future__ import annotations

from pathlib import Path

from gateway.common.domain.errors import ConfigurationError

TEXT_LIMIT_BYTES = 1_048_576


def read_text(file: Path) -> str:
    """Return the content of `file` without a byte order mark, which editors of Windows write.

    Raises ConfigurationError if it cannot be read, is too large or no UTF-8.
    """
    try:
        with file.open("rb") as source:
            content = source.read(TEXT_LIMIT_BYTES + 1)
        if len(content) > TEXT_LIMIT_BYTES:
            raise ConfigurationError(f"is larger than {TEXT_LIMIT_BYTES} bytes; name another file", file=str(file))
        return content.decode("utf-8-sig")
    except OSError as error:
        grant = f"use sudo, or if it holds no secret: sudo chmod a+r {file}"
        remedy = grant if isinstance(error, PermissionError) else "put a file there, or name another one"
        problem = f"cannot be read: {error.strerror or error}; {remedy} (EG-110)"
        raise ConfigurationError(problem, file=str(file)) from error
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"is not UTF-8 text (byte {error.start}); save it as UTF-8", file=str(file)) from error
    except ValueError as error:  # a null byte in the name
        raise ConfigurationError(f"cannot be read: {error}", file=str(file)) from error
