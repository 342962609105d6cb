"""The one loop in which everything is dreamt, and the policies that stand at its border."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from dreamsim.core import tree
from dreamsim.core.protocols import Modes, Policy, WorldModel, find_power
from dreamsim.core.types import Act, Obs, Rollout, State


def imagine(model: WorldModel, policy: Policy, state: State, horizon: int, memory: Any = None) -> Rollout:
    """Let ``policy`` act inside ``model`` for H = ``horizon`` steps from ``state`` (B, ...).

    Whether gradients flow is the caller's choice. Rows never restart inside: what a row
    is worth after its end is in ``proceed``.
    """
    if horizon < 1:
        raise ValueError(f"horizon must be at least 1 step, got {horizon}")
    view = model.view(state)
    views, actions, rewards, proceeds, traces = [view], [], [], [], []
    size = tree.batch_size(view)
    first = torch.full((size,), memory is None, device=next(tree.leaves(view)).device)
    for _ in range(horizon):
        act = policy.act(view, memory, first)
        state, reward, proceed = model.step(state, act.action)
        memory, first = act.memory, torch.zeros_like(first)
        view = model.view(state)
        views.append(view)
        actions.append(act.action)
        rewards.append(reward)
        proceeds.append(proceed)
        traces.append(act.trace)
    return Rollout(
        tree.stack(views, 1),
        torch.stack(actions, 1),
        torch.stack(rewards, 1),
        torch.stack(proceeds, 1),
        tree.stack(traces, 1),
        state,
    )


class Script(nn.Module):
    """A policy that replays given actions (B, H, A), one a call; its memory is the next index."""

    actions: Tensor

    def __init__(self, actions: Tensor) -> None:
        super().__init__()
        self.register_buffer("actions", actions)

    def act(self, view: Obs, memory: Any = None, first: Tensor | None = None, applied: Tensor | None = None) -> Act:
        """Return the next scripted action (B, A)."""
        index = 0 if memory is None else memory
        if index >= self.actions.shape[1]:
            raise IndexError(f"the script holds {self.actions.shape[1]} actions and was asked for one more")
        return Act(self.actions[:, index], index + 1)


class Believer(nn.Module):
    """Lets a policy that acts on a model's view act on real observations, by keeping the belief.

    Memory is ``{"state", "action", "inner"}``. Rows marked ``first`` start afresh; the
    others are updated with the action that was really applied.
    """

    def __init__(self, model: Any, policy: Any) -> None:
        super().__init__()
        self.model = model
        self.policy = policy

    def act(self, view: Obs, memory: Any = None, first: Tensor | None = None, applied: Tensor | None = None) -> Act:
        """Act on real observations (B, ...)."""
        return self._act(self.policy.act, view, memory, first, applied)

    def mode(self, view: Obs, memory: Any = None, first: Tensor | None = None, applied: Tensor | None = None) -> Act:
        """Act on real observations without randomness."""
        choose = find_power(self.policy, Modes) or self.policy.act
        return self._act(choose, view, memory, first, applied)

    def _act(self, choose: Any, view: Obs, memory: Any, first: Tensor | None, applied: Tensor | None) -> Act:
        state = believe(self.model, view, memory, first, applied)
        inner = None if memory is None else memory["inner"]
        act = choose(self.model.view(state), inner, first, applied)
        return act._replace(memory={"state": state, "action": act.action, "inner": act.memory})


def believe(model: WorldModel, obs: Obs, memory: Any, first: Tensor | None, applied: Tensor | None) -> State:
    """Return the belief (B, ...) after ``obs``: ``start`` on rows that begin, ``update`` on the others.

    ``memory`` holds the last ``"state"`` and the last ``"action"`` asked for.
    """
    if memory is None or (first is not None and bool(first.all())):
        return model.start(obs)
    action = memory["action"] if applied is None else applied
    if first is None or not bool(first.any()):
        return model.update(memory["state"], action, obs)
    begun, going = first.nonzero()[:, 0], (~first).nonzero()[:, 0]
    updated = model.update(tree.select(memory["state"], going), action[going], tree.select(obs, going))
    begin = model.start(tree.select(obs, begun))
    whole = tree.map(lambda leaf: leaf.new_empty((len(first), *leaf.shape[1:])), begin)
    return tree.put(tree.put(whole, begun, begin), going, updated)


class Greedy(nn.Module):
    """Acts by the typical action of a policy instead of a sampled one."""

    def __init__(self, policy: Any) -> None:
        super().__init__()
        self.policy = policy

    def act(self, view: Obs, memory: Any = None, first: Tensor | None = None, applied: Tensor | None = None) -> Act:
        """Return the mode of the policy where it has one, else what it does by itself."""
        choose = find_power(self.policy, Modes) or self.policy.act
        return choose(view, memory, first, applied)


def random_action(like: Tensor, discrete: bool) -> Tensor:
    """Return random actions shaped as ``like`` (B, A): one-hot, or uniform in [-1, 1]."""
    if discrete:
        choice = torch.randint(like.shape[-1], like.shape[:1], device=like.device)
        return nn.functional.one_hot(choice, like.shape[-1]).to(like.dtype)
    return torch.rand_like(like) * 2 - 1


class Uniform(nn.Module):
    """Acts at random: uniform in [-1, 1], or a uniform one-hot choice (``discrete``)."""

    def __init__(self, action_size: int, discrete: bool = False) -> None:
        super().__init__()
        self.action_size = action_size
        self.discrete = discrete

    def act(self, view: Obs, memory: Any = None, first: Tensor | None = None, applied: Tensor | None = None) -> Act:
        """Return random actions (B, A)."""
        leaf = next(tree.leaves(view))
        return Act(random_action(torch.empty(len(leaf), self.action_size, device=leaf.device), self.discrete))
