"""DreamerV3's optimiser: gradients scaled by their running size first, then averaged."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch


class LaProp(torch.optim.Optimizer):
    """RMS scaling, then momentum, both without bias; the rate grows linearly over the first ``warmup`` steps.

    v = b2 v + (1 - b2) g^2; m = b1 m + (1 - b1) g / (sqrt(v / (1 - b2^t)) + eps); p = p - rate m / (1 - b1^t).
    Unlike in Adam, a gradient is scaled by what was known when it came. Source: Ziyin et al. 2020; DreamerV3's
    released code (momentum 0.9, 0.999, eps 1e-20, 1,000 steps of warm-up, the first of them with rate 0).
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 4e-5,
        momentum: float = 0.9,
        scale: float = 0.999,
        eps: float = 1e-20,
        warmup: int = 1000,
    ) -> None:
        if not (0 <= momentum < 1 and 0 <= scale < 1 and warmup >= 0):
            raise ValueError(
                f"expected momentum and scale in [0, 1) and warmup >= 0, got {momentum}, {scale}, {warmup}"
            )
        super().__init__(params, dict(lr=lr, momentum=momentum, scale=scale, eps=eps, warmup=warmup))

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take one step along the gradients."""
        loss = None if closure is None else torch.enable_grad()(closure)()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._move(parameter, group)
        return loss

    def _move(self, parameter: torch.Tensor, group: dict[str, Any]) -> None:
        state = self.state[parameter]
        if not state:
            state |= {"step": 0, "size": torch.zeros_like(parameter), "mean": torch.zeros_like(parameter)}
        momentum, scale = group["momentum"], group["scale"]
        share = min(1.0, state["step"] / group["warmup"]) if group["warmup"] else 1.0
        state["step"] += 1
        state["size"].mul_(scale).addcmul_(parameter.grad, parameter.grad, value=1 - scale)
        spread = (state["size"] / (1 - scale ** state["step"])).sqrt_().add_(group["eps"])
        state["mean"].mul_(momentum).addcdiv_(parameter.grad, spread, value=1 - momentum)
        parameter.add_(state["mean"], alpha=-group["lr"] * share / (1 - momentum ** state["step"]))
