"""Transformer blocks: attention, blocks that a condition modulates, and a vision transformer."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from worldmodels.nets import check_sizes


class Attention(nn.Module):
    """Layer norm and self-attention: tokens (N, L, F) to (N, L, F). ``mask`` (L, L) is True where a row may look."""

    def __init__(self, size: int, heads: int, head_size: int, dropout: float = 0.0) -> None:
        super().__init__()
        check_sizes(size=size, heads=heads, head_size=head_size)
        self.heads, self.dropout = heads, dropout
        self.norm = nn.LayerNorm(size)
        self.inwards = nn.Linear(size, 3 * heads * head_size, bias=False)
        self.outwards = nn.Linear(heads * head_size, size)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Attend."""
        parts = self.inwards(self.norm(x)).unflatten(-1, (3, self.heads, -1))
        query, key, value = (part.transpose(1, 2) for part in parts.unbind(2))  # (N, heads, L, head_size) each
        dropout = self.dropout if self.training else 0.0
        found = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=dropout)
        return F.dropout(self.outwards(found.transpose(1, 2).flatten(2)), self.dropout, self.training)


class FeedForward(nn.Sequential):
    """Layer norm, linear, GELU, linear: (..., F) to (..., F)."""

    def __init__(self, size: int, hidden: int, dropout: float = 0.0) -> None:
        super().__init__(
            nn.LayerNorm(size),
            nn.Linear(size, hidden),
            nn.GELU(),
            nn.Dropout(dropout),
            nn.Linear(hidden, size),
            nn.Dropout(dropout),
        )


class Block(nn.Module):
    """Attention and feed-forward, each added to what comes in."""

    def __init__(self, size: int, heads: int, head_size: int, hidden: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.attention = Attention(size, heads, head_size, dropout)
        self.feed = FeedForward(size, hidden, dropout)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Apply the block to tokens (N, L, F)."""
        x = x + self.attention(x, mask)
        return x + self.feed(x)


class Modulated(nn.Module):
    """A block whose every token is shifted, scaled and gated by its condition (AdaLN-zero).

    It begins as the identity. Source: DiT (Peebles and Xie 2023), section 3.2, as LeWM's released predictor has
    it: the parts keep their own layer norms behind the modulation.
    """

    def __init__(self, size: int, heads: int, head_size: int, hidden: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.attention = Attention(size, heads, head_size, dropout)
        self.feed = FeedForward(size, hidden, dropout)
        self.norm = nn.LayerNorm(size, elementwise_affine=False, eps=1e-6)
        self.modulation = nn.Sequential(nn.SiLU(), nn.Linear(size, 6 * size))
        nn.init.zeros_(self.modulation[1].weight)
        nn.init.zeros_(self.modulation[1].bias)

    def forward(self, x: Tensor, condition: Tensor, mask: Tensor | None = None) -> Tensor:
        """Apply the block to tokens (N, L, F) under conditions (N, L, F)."""
        shift, scale, gate, late_shift, late_scale, late_gate = self.modulation(condition).chunk(6, -1)
        x = x + gate * self.attention(torch.addcmul(shift, self.norm(x), 1 + scale), mask)
        return x + late_gate * self.feed(torch.addcmul(late_shift, self.norm(x), 1 + late_scale))


class Vision(nn.Module):
    """A vision transformer: images (N, C, H, W) uint8 to tokens (N, 1 + L, F), the first of them CLS.

    Source: Dosovitskiy et al. 2021; learned positions, layer norm before each part and at the end.
    Raises ValueError for an image that does not divide into patches.
    """

    def __init__(self, shape: tuple[int, ...], patch: int, size: int, depth: int, heads: int) -> None:
        super().__init__()
        channels, height, width = shape
        if height % patch or width % patch:
            raise ValueError(f"an image of {height}x{width} cannot be cut into patches of {patch}; choose a divisor")
        if size % heads:
            raise ValueError(f"{heads} heads cannot share {size} features; choose a divisor")
        self.cut = nn.Conv2d(channels, size, patch, patch)
        self.first = nn.Parameter(nn.init.trunc_normal_(torch.empty(1, 1, size), std=0.02))
        tokens = 1 + (height // patch) * (width // patch)
        self.place = nn.Parameter(nn.init.trunc_normal_(torch.empty(1, tokens, size), std=0.02))
        self.blocks = nn.ModuleList(Block(size, heads, size // heads, 4 * size) for _ in range(depth))
        self.norm = nn.LayerNorm(size)

    def forward(self, image: Tensor) -> Tensor:
        """Return tokens (N, 1 + L, F)."""
        patches = self.cut(image.float() / 127.5 - 1).flatten(2).transpose(1, 2)
        x = torch.cat([self.first.expand(len(patches), -1, -1), patches], 1) + self.place
        for block in self.blocks:
            x = block(x)
        return self.norm(x)


def causal(frames: int, tokens: int = 1) -> Tensor:
    """Return the mask (L, L), L = frames * tokens, by which a token sees those of its own and earlier frames."""
    frame = torch.arange(frames * tokens) // tokens
    return frame[:, None] >= frame[None, :]
