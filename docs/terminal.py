"""Manual pages and completions for shells, made from the parsers: `python -m docs.terminal SHARE DAY PROGRAM…`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from fleet.cli.parser import PROGRAM as FLEET
from gateway.cli import PROGRAM as GATEWAY
from gateway.common.terminal.program import Program
from gateway.device.agent.cli.parser import PROGRAM as AGENT
from gateway.device.installer.cli.parser import PROGRAM as SOFTWARE

PROGRAMS = {program.name: program for program in (GATEWAY, AGENT, SOFTWARE, FLEET)}
ROFF = str.maketrans({"\\": r"\e", "-": r"\-", "'": r"\(aq", "`": r"\(ga", "^": r"\(ha", "~": r"\(ti"})
"""Characters that roff would replace by others, which no shell understands."""
MADE = {
    "man": "man/man1/{}.1",
    "bash": "bash-completion/completions/{}",
    "fish": "fish/vendor_completions.d/{}.fish",
    "zsh": "zsh/vendor-completions/_{}",
}
"""Place of a program's manual page, and of its completions for each shell, below /usr/share."""
FILES, FOLDERS = ("FILE", "F", "PATH", "KEY", "ROOT"), ("DIR",)
"""Words for values that are files or folders, at the beginning of an argument's name in the help."""


def parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """Yield a parser and those of its verbs, in the order of its help."""
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for verb in dict.fromkeys(action.choices.values()):
                yield from parsers(verb)


def manual(program: Program, day: str) -> str:
    """Return the manual page of a program in roff: the help of every verb, with its examples."""
    description = " ".join(program.description.split()).rstrip(".")
    lines = [
        f'.TH {program.name.upper()} 1 "{day}" "{program.version}"\n.ad l',
        ".SH NAME",
        f"{program.name} \\- {description}",
    ]
    for parser in parsers(program.parser()):
        text = "\n".join(r"\&" + line.translate(ROFF) for line in parser.format_help().splitlines())
        lines += [f'.SH "{parser.prog}"', ".nf", text, ".fi"]
    return "\n".join(lines) + "\n"


def completion(program: Program, shell: str) -> str:
    """Return the completions of a program: verbs, options, choices, and names of files and folders."""
    import shtab  # only what builds the packages has it

    whole = program.parser()
    for parser in parsers(whole):
        for action in parser._actions:
            word = action.metavar.partition("|")[0] if isinstance(action.metavar, str) else ""
            if word in {*FILES, *FOLDERS}:
                action.complete = shtab.FILE if word in FILES else shtab.DIRECTORY  # type: ignore[attr-defined]
    return str(shtab.complete(whole, shell)) + "\n"


def main(share: str, day: str, *names: str) -> None:
    """Write the manual page and the completions of each program below `share`."""
    os.environ["COLUMNS"] = "73"  # manual pages indent their text by 7
    for name in names:
        for kind, place in MADE.items():
            (file := Path(share, place.format(name))).parent.mkdir(parents=True, exist_ok=True)
            file.write_text(manual(PROGRAMS[name], day) if kind == "man" else completion(PROGRAMS[name], kind))


if __name__ == "__main__":
    main(*sys.argv[1:])
