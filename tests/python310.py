"""Names of Python 3.11 that tests use, where they run on Python 3.10. mypy holds the product to 3.10 (`make check`)."""

from __future__ import annotations

import asyncio
import datetime  # noqa: ICN001 - its attribute is set
import sys
import typing

if sys.version_info < (3, 11):
    import tomli
    import typing_extensions

    from gateway.common import timeouts

    sys.modules["tomllib"] = tomli
    datetime.UTC = datetime.timezone.utc
    typing.Self = typing_extensions.Self
    asyncio.timeout, asyncio.timeout_at, asyncio.wait_for = timeouts.timeout, timeouts.timeout_at, timeouts.wait_for
