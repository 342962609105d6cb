"""How much memory a test's process holds."""

import ctypes
import gc
import resource
from pathlib import Path


def held() -> int:
    """Return the resident bytes of what is in use: glibc keeps freed memory for later, tens of MB that vary."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
