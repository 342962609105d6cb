"""A capped process that reads many files, one after another, and says how each one ended."""

import faulthandler
import importlib
import json
import sys
from pathlib import Path

from dreamsim.data.convert import FORMATS
from dreamsim.data.formats import child
from dreamsim.data.formats.child import Job, limit, read
from dreamsim.data.formats.recording import words

SECONDS = 20  # for one file


def main() -> None:
    """Read jobs from stdin, a [format, source, target] a line, and answer each with a line."""
    out, sys.stdout, child.OUT = sys.stdout, sys.stderr, sys.stderr
    limit(Job("read", "", "", "/nowhere", "", 512, 300))
    for line in sys.stdin:
        name, source, target = json.loads(line)
        faulthandler.dump_traceback_later(SECONDS, exit=True)
        job = Job("read", FORMATS[name].module, name, source, target, 512, 60)
        try:
            said = f"read {read(job, importlib.import_module(job.module))['episodes']}"
        except MemoryError:
            said = "refused: memory"
        except Exception as error:
            said = f"refused: {words(error)}"
        faulthandler.cancel_dump_traceback_later()
        print(json.dumps([Path(source).name, said]), file=out, flush=True)


if __name__ == "__main__":
    main()
