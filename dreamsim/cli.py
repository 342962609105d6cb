"""The ``dreamsim`` command: Lightning's fit, and a typed function for everything else."""

from __future__ import annotations

import inspect
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Any

from jsonargparse import auto_cli

from dreamsim import commands
from dreamsim.faults import TRACE, explains_itself, in_own_code, plain_warnings
from dreamsim.options import Parser, Refused, accepted, explain, with_flags

FIT = "Train: a world model, a policy inside it, or both together; resume with --resume."
COMMANDS: dict[str, Any] = {
    "evaluate": commands.evaluate,
    "play": commands.play,
    "check": commands.check,
    "convert": commands.convert,
    "reproduce": commands.reproduce,
    "doctor": commands.doctor,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; 0 is success, 2 wrong arguments, 130 stopped by Ctrl-C."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)  # a console script does not see the user's own files otherwise
    try:
        with plain_warnings():
            return _run(given)
    except KeyboardInterrupt:
        print("\nstopped", file=sys.stderr)
        return 130
    except Refused as error:
        return _fail(explain(str(error), accepted(error, given)), 2)
    except Exception as error:
        if own := in_own_code(error):
            return _fail(own, 1)
        if not explains_itself(error):
            raise
        return _fail(str(error) or type(error).__name__, 1)


def _run(given: list[str]) -> int:
    name = given[0] if given else "--help"
    if name in ("--help", "-h"):
        print(_overview())
    elif name == "--version":
        from importlib.metadata import version

        print(f"dreamsim {version('dreamsim-engine')}")
    elif name == "fit":
        from dreamsim.training.command import learn

        return learn(given)
    elif name in COMMANDS:
        auto_cli({name: COMMANDS[name]}, args=with_flags(given), parser_class=Parser, prog="dreamsim")
    else:
        return _fail(explain(f"invalid choice: {name!r}", ["fit", *COMMANDS]), 2)
    return 0


def _overview() -> str:
    lines = ["usage: dreamsim COMMAND [options]", "", "commands:"]
    lines.append(f"  {'fit':<12} {FIT}")
    for name, command in COMMANDS.items():
        parts = (
            {f"{name} {part}": inner for part, inner in command.items()}
            if isinstance(command, dict)
            else {name: command}
        )
        lines += [f"  {called:<12} {(inspect.getdoc(inner) or '').splitlines()[0]}" for called, inner in parts.items()]
    return "\n".join(
        [
            *lines,
            "",
            "dreamsim COMMAND --help lists a command's options with units and defaults.",
            f"{TRACE}=1 shows where an error came from.",
        ]
    )


def _fail(message: str, code: int) -> int:
    if os.environ.get(TRACE):
        traceback.print_exc()
    print(f"dreamsim: {message}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
