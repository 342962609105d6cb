"""Local text: bytes in and out, tokens inside; the state is the history, the view the newest observation."""

from __future__ import annotations

from typing import Any

import torch
from gymnasium import spaces
from torch import Tensor, nn

from dreamsim.core.text import PAD
from dreamsim.core.types import Act, Learned, Obs, Segment
from dreamsim.envs.toy import Echo
from dreamsim.imagination.imagine import Believer

make_env, actor = Echo, Believer
WORD, HISTORY = 4, 48  # bytes an action has, tokens that are kept


def extend(tokens: Tensor, more: Tensor) -> Tensor:
    """Return a history (B, L), padded on the left, followed by a text (B, n); the oldest tokens fall out."""
    both = torch.cat([tokens, more.long()], 1)
    order = (both != PAD).int().argsort(dim=1, stable=True)
    return both.gather(1, order)[:, -tokens.shape[1] :]


def spelt(action: Tensor) -> Tensor:
    """Return the bytes (B, n) of action vectors (B, n * 256)."""
    return action.unflatten(-1, (-1, 256)).argmax(-1)


class Network(nn.Module):
    """Logits (B, 256) of the next token after a history (B, L); PAD ends a text."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(256, 8), nn.Linear(16, 256)
        possible = torch.full((256,), -20.0)
        possible[97:123], possible[PAD] = 0.0, 0.0
        self.register_buffer("possible", possible)

    def forward(self, tokens: Tensor) -> Tensor:
        real = (tokens != PAD).float()[..., None]
        mean = (self.embed(tokens) * real).sum(1) / real.sum(1).clamp(min=1)
        return self.head(torch.cat([mean, self.embed(tokens[:, -1])], -1)) + self.possible

    def write(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Return a drawn text (B, n), padded after its end, and the log-probability (B, n) of each token."""
        drawn, logs, over = [], [], torch.zeros(len(tokens), dtype=torch.bool)
        for _ in range(WORD):
            choice = torch.distributions.Categorical(logits=self(tokens))
            token = torch.where(over, PAD, choice.sample())
            logs.append(torch.where(over, 0.0, choice.log_prob(token)))
            drawn.append(token)
            over, tokens = token == PAD, extend(tokens, token[:, None])
        return torch.stack(drawn, 1), torch.stack(logs, 1)


class Model(nn.Module):
    """State: ``{"tokens": (B, L), "length": (B,), "newest": (B,)}``: tokens held, those of the last observation."""

    def __init__(self, observation_space: spaces.Dict, action_space: spaces.Space) -> None:
        super().__init__()
        self.length = observation_space["text"].shape[0]
        self.network, self.judge = Network(), nn.Linear(1, 2)

    def start(self, obs: Obs) -> dict[str, Tensor]:
        return self._see(torch.full((len(obs["text"]), HISTORY), PAD), obs["text"])

    def update(self, state: dict[str, Tensor], action: Tensor, obs: Obs) -> dict[str, Tensor]:
        return self._see(extend(state["tokens"], spelt(action)), obs["text"])

    def step(self, state: dict[str, Tensor], action: Tensor) -> tuple[dict[str, Tensor], Tensor, Tensor]:
        text, _ = self.network.write(extend(state["tokens"], spelt(action)))
        told = self.judge((text != PAD).float().mean(1, keepdim=True))
        return self.update(state, action, {"text": text}), told[:, 0], torch.sigmoid(told[:, 1] + 1)

    def view(self, state: dict[str, Tensor]) -> Obs:
        newest = state["tokens"][:, -self.length :]
        old = torch.arange(self.length, 0, -1) > state["newest"][:, None]
        newest = newest.masked_fill(old, PAD)
        order = (newest == PAD).int().argsort(dim=1, stable=True)
        return {"text": newest.gather(1, order).to(torch.uint8)}

    def loss(self, batch: Segment) -> Learned:
        state = self.start({"text": batch.obs["text"][:, 0]})
        errors = []
        for t in range(batch.action.shape[1]):
            text, tokens = batch.obs["text"][:, t + 1], extend(state["tokens"], spelt(batch.action[:, t]))
            for place in range(WORD):
                wanted = text[:, place].long()
                errors.append(nn.functional.cross_entropy(self.network(tokens), wanted, reduction="none"))
                tokens = extend(tokens, wanted[:, None])
            told = self.judge((text[:, :WORD] != PAD).float().mean(1, keepdim=True))[:, 0]
            errors[-1] = errors[-1] + (told - batch.reward[:, t]).square()
            state = self.update(state, batch.action[:, t], {"text": text})
        error = torch.stack(errors, 1).unflatten(1, (-1, WORD)).sum(-1)
        return Learned({"text": (error * batch.mask).sum() / batch.mask.sum()}, None)

    def _see(self, tokens: Tensor, text: Tensor) -> dict[str, Tensor]:
        tokens, newest = extend(tokens, text), (text != PAD).sum(1)
        return {"tokens": tokens, "length": (tokens != PAD).sum(1), "newest": newest}


class Policy(nn.Module):
    """Writes a word after all it has read and written since the start: its memory is those tokens (B, L)."""

    def __init__(self, view: spaces.Dict, action_space: spaces.Space) -> None:
        super().__init__()
        self.network = Network()

    def act(self, view: Obs, memory: Any = None, first: Tensor | None = None, applied: Tensor | None = None) -> Act:
        blank = torch.full((len(view["text"]), HISTORY), PAD)
        tokens = blank if memory is None else memory
        tokens = tokens if first is None else torch.where(first[:, None], blank, tokens)
        tokens = extend(tokens, view["text"])
        said, log_prob = self.network.write(tokens)
        action = nn.functional.one_hot(said, 256).float().flatten(1)
        return Act(action, extend(tokens, said), {"tokens": said, "log_prob": log_prob})
