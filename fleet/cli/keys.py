"""`edge-fleet keys`: create a key, register a token's, show public parts."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

from fleet.cli.common import PASSPHRASE_VARIABLE, asker
from fleet.publisher.keys import PUBLIC_SUFFIX, PublicKey, import_token_key, make_key, read_public
from gateway.common.domain.errors import ConfigurationError
from gateway.common.terminal.tables import print_json, print_table


def command(arguments: argparse.Namespace) -> int:
    """Execute `new` or `show`. Return 0."""
    if arguments.action == "new":
        return _new(arguments)
    folder = Path(arguments.out)
    files = [Path(name) for name in arguments.names] or sorted(folder.glob(f"*{PUBLIC_SUFFIX}"))
    if not files:
        raise ConfigurationError(
            f"holds no {PUBLIC_SUFFIX} file; edge-fleet keys new NAME makes a key", file=str(folder)
        )
    keys = [(file, read_public(file)) for file in files]
    if arguments.json:
        print_json({"keys": [_json(file, public) for file, public in keys]})
        return 0
    rows = [
        (public.name, public.key.scheme, public.uri or "file", public.key.keyid, str(file)) for file, public in keys
    ]
    print_table(("name", "scheme", "secret part", "id", "file"), rows)
    return 0


def _new(arguments: argparse.Namespace) -> int:
    if len(arguments.names) != 1:
        raise ConfigurationError("keys new needs one NAME: edge-fleet keys new alice")
    (name,), folder = arguments.names, Path(arguments.out)
    if arguments.hsm:
        public = import_token_key(folder, name, arguments.hsm, asker(arguments))
    else:
        public = make_key(folder, name, None if arguments.no_passphrase else _passphrase(arguments, name))
    if arguments.json:
        print_json(_json(folder / f"{name}{PUBLIC_SUFFIX}", public))
        return 0
    where = (
        f"the token ({public.uri})" if public.uri else f"{folder / name}.pem: keep it, and a copy, where only you are"
    )
    print(f"{public.name}  {public.key.scheme}  {public.key.keyid}")
    print(f"  secret part: {where}\n  public part: {folder / name}{PUBLIC_SUFFIX}: give it to the publisher")
    return 0


def _passphrase(arguments: argparse.Namespace, name: str) -> str:
    """Return the passphrase. If it is typed, ask twice and compare."""
    ask = asker(arguments)
    passphrase = ask(f"new passphrase of {name}")
    typed = not arguments.passphrase_file and sys.stdin.isatty() and PASSPHRASE_VARIABLE not in os.environ
    if not typed or ask("the same again") == passphrase:
        return passphrase
    raise ConfigurationError("the two passphrases differ; nothing was made")


def _json(file: Path, public: PublicKey) -> dict[str, Any]:
    key = public.key
    return {"name": public.name, "scheme": key.scheme, "keyid": key.keyid, "uri": public.uri, "file": str(file)}
