"""What keeps a latent from collapsing: SIGReg, which asks of it to be a standard normal; and how broad it is."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class SIGReg(nn.Module):
    """How far rows are from a standard normal, by the Epps-Pulley statistic along random directions.

    For N rows x along a direction: N * integral over t in [-3, 3] of |mean exp(i t x) - exp(-t^2 / 2)|^2
    exp(-t^2 / 2), by the trapezoidal rule on ``knots`` points of [0, 3], doubled for symmetry. The result is the mean
    over ``projections`` directions, drawn anew each time, and over the L sets. About 1 for a true sample of a standard
    normal, whatever N. Source: LeJEPA (Balestriero and LeCun 2025), section 4, as released with LeWM.
    """

    points: Tensor
    normal: Tensor
    share: Tensor

    def __init__(self, projections: int = 1024, knots: int = 17, limit: float = 3.0) -> None:
        super().__init__()
        if projections < 1 or knots < 2:
            raise ValueError(f"SIGReg needs 1 or more projections and 2 or more knots, got {projections} and {knots}")
        self.projections = projections
        points = torch.linspace(0, limit, knots)
        width = torch.full((knots,), 2 * limit / (knots - 1))
        width[0] = width[-1] = limit / (knots - 1)
        normal = torch.exp(-points.square() / 2)
        self.register_buffer("points", points, persistent=False)
        self.register_buffer("normal", normal, persistent=False)
        self.register_buffer("share", width * normal, persistent=False)

    def forward(self, rows: Tensor, real: Tensor | None = None) -> Tensor:
        """Return the statistic () of L sets of rows (L, N, F); only rows with ``real`` (L, N) bool True count."""
        direction = torch.nn.functional.normalize(
            torch.randn(rows.shape[-1], self.projections, device=rows.device, dtype=rows.dtype), dim=0
        )
        weight = torch.ones_like(rows[..., 0]) if real is None else real.to(rows.dtype)
        count = weight.sum(1)
        along = _CharacteristicGap.apply(rows @ direction, weight, count.clamp(min=1), self)
        return along.mean(1).sum() / (count > 0).sum()


class _CharacteristicGap(torch.autograd.Function):
    """N times the weighted squared gap between the rows' characteristic function and a normal's: (L, N, P) to (L, P).

    Knot by knot, with exp(i k d x) made from exp(i (k - 1) d x) by one complex product: torch's own graph would keep
    two arrays (L, N, P, knots) and take two sines each.
    """

    @staticmethod
    def forward(ctx, x, weight, count, law):
        step = law.points[1]
        turn_cos, turn_sin = torch.cos(x * step), torch.sin(x * step)
        cos, sin = torch.ones_like(x), torch.zeros_like(x)
        slope, value = torch.zeros_like(x), x.new_zeros(x.shape[0], x.shape[2])
        mean = (weight / count[:, None])[:, None, :]  # (L, 1, N): a row vector that averages
        for knot in range(1, len(law.points)):
            cos, sin = cos * turn_cos - sin * turn_sin, sin * turn_cos + cos * turn_sin
            gap, odd = (mean @ cos)[:, 0] - law.normal[knot], (mean @ sin)[:, 0]
            value += law.share[knot] * (gap.square() + odd.square())
            pull = 2 * law.share[knot] * law.points[knot]
            slope.addcmul_(cos, (pull * odd)[:, None]).addcmul_(sin, (-pull * gap)[:, None])
        ctx.save_for_backward(slope.mul_(weight[..., None]))
        return value * count[:, None]

    @staticmethod
    def backward(ctx, gradient):
        (slope,) = ctx.saved_tensors
        return slope * gradient[:, None], None, None, None


def breadth(latents: Tensor) -> dict[str, Tensor]:
    """Return how many directions latents (N, F) fill, (sum l)^2 / sum l^2 over the eigenvalues l of their covariance,
    and their standard deviation; both near 0 or 1 tell of a collapse, F and 1 are what SIGReg asks for.
    """
    with torch.no_grad():
        covariance = torch.cov(latents.T.float(), correction=0)
        trace = covariance.diagonal().sum()
        rank = trace.square() / covariance.square().sum().clamp(min=1e-12)
        return {"latent_rank": rank, "latent_std": (trace / len(covariance)).sqrt()}
