"""Run every benchmark, one after another, each in a process of its own.

python -m tests.benchmarks.run_all              all
python -m tests.benchmarks.run_all replay loop  those named
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.benchmarks.measure import REPOSITORY


def main() -> int:
    known = sorted(path.stem.removeprefix("bench_") for path in Path(__file__).parent.glob("bench_*.py"))
    asked = sys.argv[1:] or known
    if unknown := [name for name in asked if name not in known]:
        print(f"no benchmark named {', '.join(unknown)}; there are {', '.join(known)}", file=sys.stderr)
        return 2
    failed = []
    for name in asked:
        print(f"\n=== {name}", flush=True)
        command = [sys.executable, "-W", "ignore", "-m", f"tests.benchmarks.bench_{name}"]
        if subprocess.run(command, cwd=REPOSITORY).returncode:
            failed.append(name)
    print(f"failed: {', '.join(failed)}" if failed else "all done")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
