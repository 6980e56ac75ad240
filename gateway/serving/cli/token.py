"""Verb `edge-gateway token new`: make a token, and its line for the tokens file."""

from __future__ import annotations

import argparse
import re
import secrets

from gateway.common.domain.access import HASHED, read_tokens, token_digest
from gateway.common.domain.errors import ConfigurationError
from gateway.common.terminal.tables import print_json

TOKEN_BYTES = 32
"""Random bytes of a token: 256 bits cannot be guessed in any number of attempts."""
_NAME = re.compile(r"[A-Za-z0-9._@-]{1,64}")


def command(arguments: argparse.Namespace) -> int:
    """Print a new token once, with its line for tokens_file. Raises ConfigurationError for invalid options."""
    if not _NAME.fullmatch(arguments.name):
        raise ConfigurationError(
            f"must be 1 to 64 letters, digits, '.', '_', '@' or '-', not {arguments.name!r:.80}", table="NAME"
        )
    token = new_token()
    line = token_line(arguments.name, token, arguments.scopes, arguments.models, arguments.expires)
    try:
        read_tokens(line, "")
    except ConfigurationError as error:
        raise ConfigurationError(error.problem) from None
    if arguments.json:
        print_json({"name": arguments.name, "token": token, "line": line})
        return 0
    print(f"token, for the caller; it is not shown again:\n{token}\n")
    print(f"line for [auth] tokens_file; then: sudo systemctl reload edge-gateway\n{line}")
    return 0


def new_token() -> str:
    """Return a new token."""
    return secrets.token_urlsafe(TOKEN_BYTES)


def token_line(name: str, token: str, scopes: str, models: str | None, expires: str | None) -> str:
    """Return the line of a tokens file that holds the digest of `token`."""
    given = {"scopes": scopes, "models": models, "expires": expires}
    options = [f"{key}={value}" for key, value in given.items() if value is not None]
    return " ".join([name, f"{HASHED}{token_digest(token).hex()}", *options])
