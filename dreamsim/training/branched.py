"""MBPO's use of a model: short dreams that branch off from real states feed any objective."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from gymnasium import spaces
from torch import Tensor, nn

from dreamsim.core import tree
from dreamsim.core.protocols import Policy, Uncertain, WorldModel, power
from dreamsim.core.types import Act, Learned, Obs, Segment, State
from dreamsim.imagination.imagine import imagine
from dreamsim.training.objectives.protocol import Judged


class Branches(NamedTuple):
    """Dreams that begin at real states, side by side."""

    view: Obs  # (B, H+1, ...)
    action: Tensor  # (B, H, A)
    reward: Tensor  # (B, H)
    terminated: Tensor  # (B, H) bool, drawn from the model's probability
    mask: Tensor  # (B, H) bool: the step was dreamt before any end and is trusted


@torch.no_grad()
def branch(model: WorldModel, policy: Policy, state: State, horizon: int, distrust: float | None = None) -> Branches:
    """Dream H = ``horizon`` steps of ``policy`` from states (B, ...).

    A row stops counting behind a termination, and at the first step whose uncertainty exceeds
    ``distrust`` (power ``Uncertain``; None: everything is trusted): such a step is cut, not terminated.
    """
    rollout = imagine(_Open(model), _Seeing(model, policy), state, horizon)
    states: State = rollout.view
    ended = torch.rand_like(rollout.proceed) >= rollout.proceed
    mask = torch.cat([torch.ones_like(ended[:, :1]), ~ended[:, :-1]], 1)
    if distrust is not None:
        before = tree.map(lambda leaf: leaf[:, :-1].flatten(0, 1), states)
        doubt = power(model, Uncertain)(before, rollout.action.flatten(0, 1))
        mask = mask & (doubt.view(mask.shape) <= distrust)
    view = model.view(tree.map(lambda leaf: leaf.flatten(0, 1), states))
    view = {name: value.unflatten(0, (len(mask), horizon + 1)) for name, value in view.items()}
    return Branches(view, rollout.action, rollout.reward, ended, mask.long().cumprod(1).bool())


class Branched(nn.Module):
    """Gives ``objective`` batches of dreamt steps, with a few real ones among them.

    Every gradient step dreams from ``starts`` real states of the batch, as many steps as the
    schedule says, into a bounded memory, and hands ``batch`` steps to the objective: the share
    ``real`` of them as they happened, the rest from the memory. The length of dreams grows linearly
    from ``first`` to ``last`` between the gradient steps ``begin`` and ``end``. ``distrust`` cuts
    dreams where the model's uncertainty exceeds it (``dreamsim.evaluation.calibration`` finds it).
    With ``real`` = 1 nothing is dreamt: the objective alone, as a control.

    Source: Janner et al., "When to Trust Your Model" (NeurIPS 2019), algorithm 2, and its released
    code. Deviations: the model learns at every gradient step and the dreams come from its newest state,
    where the code fits the model every 250 environment steps and then dreams 100,000 rows at once; the memory therefore
    forgets by number of steps, not by epochs. For models whose view is vectors, and objectives that ask the
    model for its view alone (``SoftActorCritic``, ``PolicyPrior`` with ``imagined`` = 0).
    """

    updates: Tensor

    def __init__(
        self,
        view_space: spaces.Dict,
        action_space: spaces.Space,
        objective: Callable[[spaces.Dict, spaces.Space], nn.Module],
        batch: int = 256,
        real: float = 0.05,
        starts: int = 64,
        capacity: int = 100_000,
        first: int = 1,
        last: int = 1,
        begin: int = 0,
        end: int = 1,
        distrust: float | None = None,
    ) -> None:
        super().__init__()
        if not (0 <= real <= 1 and 1 <= first <= last and begin < end):
            raise ValueError(
                "expected 0 <= real <= 1, 1 <= first <= last and begin < end, "
                f"got real={real}, first={first}, last={last}, begin={begin}, end={end}"
            )
        action_size = int(action_space.n) if isinstance(action_space, spaces.Discrete) else action_space.shape[0]
        self.objective = objective(view_space, action_space)
        self.memory = Memory(view_space, action_size, capacity)
        self.batch, self.real, self.starts, self.distrust = batch, round(real * batch), starts, distrust
        self.first, self.last, self.begin, self.end = first, last, begin, end
        self.register_buffer("updates", torch.zeros((), dtype=torch.int64))

    @property
    def horizon(self) -> int:
        """Steps that are dreamt now."""
        share = (int(self.updates) - self.begin) / (self.end - self.begin)
        return round(self.first + (self.last - self.first) * min(max(share, 0.0), 1.0))

    def groups(self, model: Any, policy: Any) -> list[dict[str, Any]]:
        """Those of the objective."""
        return self.objective.groups(model, policy)

    def loss(self, model: Any, policy: Any, batch: Segment, learned: Learned) -> Judged:
        """Dream from the batch, remember it, and return the objective's losses on the mixture."""
        rows = batch.mask.flatten().nonzero()[:, 0]
        metrics, imagined = self._dream(model, policy, learned, rows) if self.real < self.batch else ({}, 0)
        mixed = self._mixed(model, batch, learned, rows)
        judged = self.objective.loss(_Shown(), policy, mixed, Learned({}, mixed.obs, mixed.obs))
        return Judged(judged.losses, {**judged.metrics, **metrics}, judged.imagined + imagined)

    def settle(self) -> None:
        """Follow an optimiser step."""
        self.updates += 1
        self.objective.settle()

    def _dream(self, model: Any, policy: Any, learned: Learned, rows: Tensor) -> tuple[dict[str, Tensor], int]:
        """Remember dreams from the first of these real steps; return what to show and the steps dreamt."""
        horizon = self.horizon
        begun = tree.map(lambda leaf: leaf[:, :-1].flatten(0, 1)[rows[: self.starts]], learned.observed)
        branches = branch(model, policy, begun, horizon, self.distrust)
        self.memory.add(branches)
        kept = branches.mask.float().mean()
        return {"horizon": kept.new_tensor(float(horizon)), "kept": kept}, branches.reward.numel()

    def _mixed(self, model: Any, batch: Segment, learned: Learned, rows: Tensor) -> Segment:
        """Return real and dreamt steps as windows (N, 1); nothing dreamt may be remembered yet."""
        count = self.real if self.memory.held else self.batch
        chosen = rows[torch.randint(len(rows), (count,), device=rows.device)]
        view = model.view(learned.observed)
        pairs = {name: torch.stack([value[:, :-1], value[:, 1:]], 2).flatten(0, 1) for name, value in view.items()}
        assert batch.reward is not None
        true = Steps(pairs, batch.action.flatten(0, 1), batch.reward.flatten(), batch.terminated.flatten())
        both = [tree.select(true, chosen)]
        if count < self.batch:
            both.append(self.memory.sample(self.batch - count))
        view, action, reward, terminated = tree.cat(both)
        ones, index = torch.ones_like(reward)[:, None], reward.new_zeros((len(reward), 2), dtype=torch.int64)
        return Segment(view, action[:, None], reward[:, None], terminated[:, None], ones, {}, None, index)


class Steps(NamedTuple):
    """Single steps."""

    view: Obs  # (N, 2, ...) before and after
    action: Tensor  # (N, A)
    reward: Tensor  # (N,)
    terminated: Tensor  # (N,) bool


class Memory(nn.Module):
    """The newest ``capacity`` dreamt steps, in buffers, so that a checkpoint is complete."""

    view: Tensor
    action: Tensor
    reward: Tensor
    terminated: Tensor
    count: Tensor

    def __init__(self, view_space: spaces.Dict, action_size: int, capacity: int) -> None:
        super().__init__()
        for name, part in view_space.spaces.items():
            if len(part.shape or ()) != 1:
                raise ValueError(f"branched dreams are remembered as vectors; view {name!r} has shape {part.shape}")
        self.names = {name: int(part.shape[0]) for name, part in view_space.spaces.items() if part.shape}
        self.capacity = capacity
        self.register_buffer("view", torch.zeros(capacity, 2, sum(self.names.values())))
        self.register_buffer("action", torch.zeros(capacity, action_size))
        self.register_buffer("reward", torch.zeros(capacity))
        self.register_buffer("terminated", torch.zeros(capacity, dtype=torch.bool))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    @property
    def held(self) -> int:
        """Steps held."""
        return min(int(self.count), self.capacity)

    def add(self, branches: Branches) -> None:
        """Remember the steps that count, in place of the oldest."""
        flat = torch.cat([branches.view[name] for name in self.names], -1)
        real = branches.mask
        pairs = torch.stack([flat[:, :-1], flat[:, 1:]], 2)[real][-self.capacity :]
        place = (int(self.count) + torch.arange(len(pairs), device=pairs.device)) % self.capacity
        self.view[place] = pairs
        for name in ("action", "reward", "terminated"):
            self.get_buffer(name)[place] = getattr(branches, name)[real][-self.capacity :]
        self.count += len(pairs)

    def sample(self, count: int) -> Steps:
        """Draw steps (``count``,), uniformly and with replacement."""
        place = torch.randint(self.held, (count,), device=self.reward.device)
        pieces = torch.split(self.view[place], list(self.names.values()), -1)
        view = dict(zip(self.names, pieces, strict=True))
        return Steps(view, self.action[place], self.reward[place], self.terminated[place])


class _Open(nn.Module):
    """A world model whose view is its whole state, so that a rollout holds all states."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.step = model.step

    def view(self, state: State) -> State:
        """Show everything."""
        return state


class _Seeing(nn.Module):
    """A policy that is given states and acts on the model's view of them."""

    def __init__(self, model: Any, policy: Any) -> None:
        super().__init__()
        self.show, self.policy = model.view, policy

    def act(self, view: State, memory: Any = None, first: Tensor | None = None, applied: Tensor | None = None) -> Act:
        """Act on states (B, ...)."""
        return self.policy.act(self.show(view), memory, first, applied)


class _Shown(nn.Module):
    """Stands for the model before an objective whose beliefs are views already."""

    def view(self, state: State) -> Obs:
        """Return the belief."""
        return state
