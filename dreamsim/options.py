"""Command-line options: a parser that raises, and its complaints in one line with the name probably meant."""

from __future__ import annotations

import difflib
import importlib
import inspect
import re
from argparse import ArgumentError
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

from jsonargparse import ArgumentParser

UNKNOWN = (
    r"unrecognized arguments: --(?P<name>[\w.+-]+)",
    r"invalid choice: '(?P<name>[^']+)'",
    r"[Oo]ption '(?P<name>[^']+)' is not accepted",
    r"does not accept (?:option|nested key) '(?P<name>[^']+)'",
)
CLASS = r"class_path(?:=| )'([\w.]+)'"
ABSENT = r"module '(?P<module>[\w.]+)' has no attribute '(?P<name>\w+)'"
TYPE = r"Parser key \"(?P<key>[\w.]+)\": Expected an? <class '(?P<kind>\w+)'>\. Got value: (?P<value>\S+)"
REQUIRED = r"the following arguments are required: (?P<names>[\w., ]+)"


class Refused(ArgumentError):
    """Arguments were not accepted; ``parser`` knows which would be."""

    def __init__(self, message: str, parser: ArgumentParser) -> None:
        super().__init__(None, message)
        self.parser = parser


class Parser(ArgumentParser):
    """A parser that raises instead of ending the program, and wants option names whole."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{"exit_on_error": False, "allow_abbrev": False, **kwargs})

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Raise what was refused."""
        raise Refused(message, self) from ex


def with_flags(arguments: Sequence[str]) -> list[str]:
    """Return arguments in which an option without a value, such as ``--draw``, says ``--draw=true``.

    ``--from`` becomes ``--from_``, for Python has no parameter of that name.
    """
    given = []
    arguments = [re.sub(r"^--from(?=$|=)", "--from_", argument) for argument in arguments]
    for argument, following in zip(arguments, [*arguments[1:], "--"], strict=True):
        bare = argument.startswith("--") and "=" not in argument and following.startswith("--")
        given.append(f"{argument}=true" if bare and argument not in ("--help", "--print_config") else argument)
    return given


def accepted(refused: Refused, given: Sequence[str]) -> list[str]:
    """Return every option name that the refusing parser, or the command among ``given``, would have taken."""
    parsers = [refused.parser]
    for parser in parsers:  # grows while it is walked: a command may have commands of its own
        for action in parser._actions:
            if isinstance(action.choices, dict):
                parsers += [part for name, part in action.choices.items() if name in given]
    options = (option for parser in parsers for action in parser._actions for option in action.option_strings)
    return sorted({option.removeprefix("--") for option in options if option.startswith("--")})


def explain(message: str, accepted: Sequence[str] = ()) -> str:
    """Return a parser's message as one line; for a misspelt name, with the nearest one that exists.

    ``accepted`` are the option names of the command. Names that belong to a class are looked
    up in the signature of the class that the message names, those of a module in the module.
    """
    message = re.sub(r"\s+", " ", message).strip()
    unknown = next((match for pattern in UNKNOWN for match in re.finditer(pattern, message)), None)
    if unknown is not None:
        choices = re.findall(r"'([^']+)'", message.partition("choose from")[2])
        if choices:
            accepted = choices
        return _unknown(unknown["name"], re.findall(CLASS, message), accepted)
    if absent := re.search(ABSENT, message):
        names = vars(importlib.import_module(absent["module"]))
        return f"{absent['module']} has no {absent['name']!r}{_hint(absent['name'], names)}"
    if wrong := list(re.finditer(TYPE, message)):
        return f"{wrong[-1]['key']}: expected {wrong[-1]['kind']}, got {wrong[-1]['value']!r}"
    if required := re.search(REQUIRED, message):
        return "missing: " + ", ".join(name.rpartition(".")[2] for name in required["names"].split(", "))
    return message


def _unknown(name: str, owners: Sequence[str], accepted: Sequence[str]) -> str:
    last = name.rpartition(".")[2]
    for owner in reversed(owners):
        if hint := _hint(last, _parameters(owner)):
            return f"{owner} has no option {last!r}{hint}"
    if hint := _hint(name, accepted) or _hint_by_last(last, accepted) or _hint(name.partition(".")[0], accepted):
        return f"unknown option {name!r}{hint}"
    taken = f"; {owners[-1]} takes {', '.join(_parameters(owners[-1])) or 'none'}" if owners else ""
    return f"unknown option {name!r}{taken}"


def _hint(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(known), 1, 0.5)
    return f"; nearest: {near[0]}" if near else ""


def _hint_by_last(last: str, accepted: Sequence[str]) -> str:
    """Compare the last part of dotted names only."""
    parts = {option.rpartition(".")[2]: option for option in accepted}
    near = difflib.get_close_matches(last, list(parts), 1, 0.5)
    return f"; nearest: {parts[near[0]]}" if near else ""


def _parameters(path: str) -> list[str]:
    from dreamsim.core.parts import BadPart, resolve

    try:
        return list(inspect.signature(resolve(path)).parameters)
    except (BadPart, TypeError, ValueError):
        return []
