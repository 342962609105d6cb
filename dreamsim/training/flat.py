"""Many small parameters as one long vector, so that an optimiser step is one operation, not hundreds."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class Flat:
    """Parameters whose values and gradients are views into one vector each.

    Values are unchanged; modules go on using their own parameters. Clipping and Adam are then
    a handful of operations instead of one for each of sixty tensors. Do it after the modules have moved to
    their device. A parameter may belong to one Flat only.
    """

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        self.parameters = [p for p in parameters if p.requires_grad]
        if not self.parameters:
            raise ValueError("nothing to learn: none of these parameters requires a gradient")
        first = self.parameters[0]
        if any(p.dtype != first.dtype or p.device != first.device for p in self.parameters):
            raise ValueError("parameters of one group must share device and dtype")
        size = sum(p.numel() for p in self.parameters)
        self.value = nn.Parameter(torch.empty(size, dtype=first.dtype, device=first.device))
        self.value.grad = torch.zeros_like(self.value)
        for parameter, value, grad in zip(
            self.parameters, self._cut(self.value.data), self._cut(self.value.grad), strict=True
        ):
            value.copy_(parameter.data)
            parameter.data = value
            parameter.grad = grad

    def hold(self) -> None:
        """Take the gradients back after someone set them to None (Lightning does before it starts)."""
        assert self.value.grad is not None
        if self.parameters[0].grad is None:
            for parameter, grad in zip(self.parameters, self._cut(self.value.grad), strict=True):
                parameter.grad = grad

    @property
    def grad(self) -> Tensor:
        """The gradient (N,)."""
        assert self.value.grad is not None
        return self.value.grad

    @torch.no_grad()
    def clip_each(self, share: float, least: float = 1e-3) -> None:
        """Scale each parameter's gradient to at most ``share`` of the parameter's own norm, or of ``least``.

        Source: adaptive gradient clipping as DreamerV3 uses it (0.3, 1e-3).
        """
        grads = self._cut(self.grad)
        norms = torch.stack(torch._foreach_norm(self._cut(self.value.data)))
        limit = share * norms.clamp(min=least)
        excess = (torch.stack(torch._foreach_norm(grads)) / limit).clamp(min=1.0)
        torch._foreach_div_(grads, list(excess.unbind()))

    def _cut(self, vector: Tensor) -> list[Tensor]:
        pieces = torch.split(vector, [p.numel() for p in self.parameters])
        return [piece.view_as(p) for piece, p in zip(pieces, self.parameters, strict=True)]
