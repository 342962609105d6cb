"""Random numbers with an owner.

Models and policies draw from torch's global generator. The owner of a loop holds a
``Stream``, swaps it in around the loop, and keeps its state in its snapshot, so that
two interleaved loops with equal seeds draw equal numbers.
"""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor


class Stream:
    """A private sequence of torch random numbers: ``with stream: ...`` draws from it.

    The global generators are put back on exit. Streams nest, but one stream may not be
    entered twice at once.
    """

    def __init__(self, seed: int, device: torch.device | str = "cpu") -> None:
        self.device = torch.device(device)
        generator = torch.Generator().manual_seed(seed)
        self._cpu = generator.get_state()
        self._cuda: Tensor | None = None
        if self.device.type == "cuda":
            self._cuda = torch.Generator(self.device).manual_seed(seed).get_state()
        self._outer: tuple[Tensor, Tensor | None] | None = None

    def __enter__(self) -> Stream:
        if self._outer is not None:
            raise RuntimeError("this random stream is already in use; give each loop its own")
        outer_cuda = torch.cuda.get_rng_state(self.device) if self._cuda is not None else None
        self._outer = (torch.get_rng_state(), outer_cuda)
        torch.set_rng_state(self._cpu)
        if self._cuda is not None:
            torch.cuda.set_rng_state(self._cuda, self.device)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._outer is not None
        cpu, cuda = self._outer
        self._outer = None
        self._cpu = torch.get_rng_state()
        torch.set_rng_state(cpu)
        if cuda is not None:
            self._cuda = torch.cuda.get_rng_state(self.device)
            torch.cuda.set_rng_state(cuda, self.device)

    def state_dict(self) -> dict[str, Tensor]:
        """Return a copy of the stream's position."""
        state = {"cpu": self._cpu.clone()}
        if self._cuda is not None:
            state["cuda"] = self._cuda.clone()
        return state

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Continue from a position that ``state_dict`` returned."""
        self._cpu = state["cpu"].clone().cpu()
        if self._cuda is not None and "cuda" in state:
            self._cuda = state["cuda"].clone().cpu()


def derive_seed(*parts: int | str) -> int:
    """Mix names and numbers into one seed in [0, 2**31), equal on every machine and process."""
    digest = hashlib.sha256("/".join(str(part) for part in parts).encode()).digest()
    return int.from_bytes(digest[:4], "little") & 0x7FFFFFFF
