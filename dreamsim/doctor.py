"""What works on this machine, in plain words, and the exact line that installs the rest."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

# What each extra of pyproject.toml is for, and the modules that show that it is installed.
EXTRAS = {
    "control": ("DeepMind Control environments", ("dm_control",)),
    "gym": ("Gymnasium's classic control and MuJoCo environments", ("pygame", "imageio")),
    "film": ("films of dreams and policies (mp4)", ("imageio", "imageio_ffmpeg")),
    "report": ("curves as pictures, TensorBoard", ("matplotlib", "tensorboard")),
    "data": ("recordings of others: HDF5, Minari, LeRobot, videos", ("h5py", "minari", "pyarrow", "PIL", "av")),
    "foreign": ("policies from Stable-Baselines3 and ONNX", ("stable_baselines3", "onnx", "onnxruntime")),
    "pixels": ("pixel world models by diffusion", ("diffusers",)),
    "text": ("text world models", ("transformers",)),
}
CORE = ("torch", "lightning", "gymnasium", "mujoco", "numpy", "safetensors", "jsonargparse")
GIB = 2**30


class Finding(NamedTuple):
    """One line of the doctor."""

    good: bool
    subject: str
    words: str
    cure: str = ""


def examine(folder: Path = Path()) -> Iterator[Finding]:
    """Yield findings, the quick ones first; ``folder`` is where runs would be written."""
    yield _python()
    yield from _core()
    yield from _extras()
    yield _memory()
    yield _disk(folder)
    yield from _torch()
    yield _compiler()
    yield from _rendering()


def _python() -> Finding:
    system = f"Python {platform.python_version()} on {platform.system()} {platform.machine()}"
    if platform.system() == "Linux":
        return Finding(sys.version_info >= (3, 11), "python", system, "install Python 3.11 or newer")
    return Finding(False, "python", f"{system}: only Linux is tested", "use Linux; see the README for what is known")


def _core() -> Iterator[Finding]:
    missing = [name for name in CORE if importlib.util.find_spec(name) is None]
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in CORE if name not in missing)
    cure = "pip install -c constraints.txt -e ."
    yield Finding(not missing, "core", versions or "nothing installed", f"missing {', '.join(missing)}: {cure}")


def _extras() -> Iterator[Finding]:
    for extra, (job, modules) in EXTRAS.items():
        missing = [name for name in modules if importlib.util.find_spec(name) is None]
        words = job if not missing else f"{job}: not installed ({', '.join(missing)})"
        yield Finding(not missing, extra, words, f"pip install -c constraints.txt -e '.[{extra}]'")


def _memory() -> Finding:
    available, total = memory()
    words = f"{available / GIB:.1f} of {total / GIB:.1f} GiB free"
    return Finding(available > 2 * GIB, "memory", words, "close other programs, or give replay a smaller capacity")


def memory() -> tuple[int, int]:
    """Return bytes of memory available and in all; where the system does not say, all counts as available."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    file = Path("/proc/meminfo")
    if not file.is_file():
        return total, total
    lines = dict(line.split(":", 1) for line in file.read_text().splitlines())
    return int(lines["MemAvailable"].split()[0]) * 1024, total


def _disk(folder: Path) -> Finding:
    free = shutil.disk_usage(folder).free
    words = f"{free / GIB:.1f} GiB free for runs in {folder.resolve()}"
    return Finding(free > 5 * GIB, "disk", words, "free some space, or write runs elsewhere with --run")


def _torch() -> Iterator[Finding]:
    if importlib.util.find_spec("torch") is None:
        return
    import torch

    yield Finding(
        True, "threads", f"{os.cpu_count()} cores, torch uses {torch.get_num_threads()}; small models: 1 is fastest"
    )
    if torch.cuda.is_available():
        names = ", ".join(torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count()))
        yield Finding(True, "gpu", names)
    else:
        built = (
            "this torch is built for CUDA but sees no driver" if torch.version.cuda else "this torch is the CPU build"
        )
        yield Finding(True, "gpu", f"none ({built}); all presets of configs/joint are sized for a CPU")
    cuda_half = torch.cuda.is_available() and torch.cuda.is_bf16_supported()
    half = "on the GPU" if cuda_half else "on the CPU, where it is slower than float32 for small models"
    yield Finding(True, "bfloat16", f"works {half}")


def _compiler() -> Finding:
    found = os.environ.get("CXX") or shutil.which("g++") or shutil.which("gcc") or shutil.which("clang")
    if found:
        return Finding(True, "compile", f"torch.compile can use {Path(found).name}")
    return Finding(False, "compile", "torch.compile has no C++ compiler; training runs eagerly", "apt-get install g++")


def _rendering() -> Iterator[Finding]:
    if importlib.util.find_spec("mujoco") is None:
        return
    from dreamsim.envs.render import BACK_ENDS, INSTALL, probe

    reasons = {backend: probe(backend) for backend in BACK_ENDS}
    working = [backend for backend, reason in reasons.items() if reason is None]
    if working:
        yield Finding(
            True, "rendering", f"{', '.join(working)} can draw; {working[0]} is used unless MUJOCO_GL says otherwise"
        )
    else:
        why = "; ".join(f"{backend}: {reason}" for backend, reason in reasons.items())
        yield Finding(False, "rendering", f"nothing can draw ({why})", " or ".join(INSTALL.values()))
