"""What a dream's steps earn and whether they end, as exchangeable parts beside the model that dreams."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import torch
from gymnasium import spaces
from torch import Tensor, nn
from torch.nn import functional as F

from dreamsim.core import tree
from dreamsim.core.protocols import Decodes, FitsStatistics, Revises, Uncertain, Values, find_power
from dreamsim.core.run import view_space
from dreamsim.core.types import Learned, Obs, Segment, State

Build = Callable[[spaces.Dict, spaces.Space], Any]
OF_STATES = (Decodes, Uncertain, Values)
OF_DATA = (FitsStatistics, Revises)


@runtime_checkable
class Outcome(Protocol):
    """A number for each step, such as its reward or the probability that life goes on, with a memory of its own."""

    def begin(self, view: Obs) -> State:
        """Return the memory (B, ...), a tree of tensors, of rows whose first view (B, ...) this is."""

    def judge(self, memory: State, view: Obs, action: Tensor, after: Obs) -> tuple[State, Tensor]:
        """Return the new memory and the number (B,) of taking ``action`` (B, A) in ``view`` and reaching ``after``."""


class Overruled(nn.Module):
    """A world model whose reward, or whose end, another part decides: it dreams as before and is judged anew.

    ``reward`` and ``proceed`` are made with (view space, action space) and are Outcomes, or
    functions of (view, action, view after) -> (B,); None: the model's own. What ``proceed`` gives is the
    probability (B,) that the step does not end the episode. A part that has parameters is
    trained by ``fit``, not by ``loss``, which is the model's. Calibrate either with
    ``dreamsim.evaluation.outcomes.foretell``.
    """

    def __init__(
        self,
        observation_space: spaces.Dict,
        action_space: spaces.Space,
        model: Build,
        reward: Build | None = None,
        proceed: Build | None = None,
    ) -> None:
        super().__init__()
        self.model = model(observation_space, action_space)
        view = view_space(self.model, observation_space)
        made = {"reward": reward, "proceed": proceed}
        self.parts = {name: as_outcome(build(view, action_space)) for name, build in made.items() if build is not None}
        self._adopt()

    @classmethod
    def around(cls, model: nn.Module, reward: Any = None, proceed: Any = None) -> Overruled:
        """Return a model that exists already, with Outcomes or functions that do."""
        overruled = cls.__new__(cls)
        nn.Module.__init__(overruled)
        overruled.model = model
        given = {"reward": reward, "proceed": proceed}
        overruled.parts = {name: as_outcome(part) for name, part in given.items() if part is not None}
        overruled._adopt()
        return overruled

    def start(self, obs: Obs) -> State:
        """Return the model's belief and each part's memory."""
        inner = self.model.start(obs)
        view = self.model.view(inner)
        return {"inner": inner, **{name: part.begin(view) for name, part in self.parts.items()}}

    def update(self, state: State, action: Tensor, obs: Obs) -> State:
        """Return belief and memories after really seeing ``obs``."""
        return self._judge(state, action, self.model.update(state["inner"], action, obs))[0]

    def step(self, state: State, action: Tensor) -> tuple[State, Tensor, Tensor]:
        """Dream a step and let the parts judge it."""
        inner, reward, proceed = self.model.step(state["inner"], action)
        after, said = self._judge(state, action, inner)
        return after, said.get("reward", reward), said.get("proceed", proceed)

    def view(self, state: State) -> Obs:
        """Return the model's view."""
        return self.model.view(state["inner"])

    def loss(self, batch: Segment) -> Learned:
        """Return the model's own losses; beliefs are left to the caller, for they hold memories here."""
        return self.model.loss(batch)._replace(states=None, observed=None)

    def _judge(self, state: State, action: Tensor, inner: State) -> tuple[State, dict[str, Tensor]]:
        view, after = self.model.view(state["inner"]), self.model.view(inner)
        found = {name: part.judge(state[name], view, action, after) for name, part in self.parts.items()}
        memories = {name: memory for name, (memory, _) in found.items()}
        return {"inner": inner, **memories}, {name: value for name, (_, value) in found.items()}

    def _adopt(self) -> None:
        """Register the parts that learn, and take over the model's powers."""
        for name, part in self.parts.items():
            if isinstance(part, nn.Module):
                self.add_module(f"{name}_part", part)
        for protocol in (*OF_STATES, *OF_DATA):
            method = find_power(self.model, protocol)
            if method is not None:
                name = method.__name__
                setattr(self, name, functools.partial(_of_inner, method) if protocol in OF_STATES else method)


class Function:
    """A user's function of (view, action, view after) -> (B,) as an Outcome that remembers nothing."""

    def __init__(self, function: Callable[[Obs, Tensor, Obs], Tensor]) -> None:
        self.function = function

    def begin(self, view: Obs) -> State:
        """Remember nothing."""
        return ()

    def judge(self, memory: State, view: Obs, action: Tensor, after: Obs) -> tuple[State, Tensor]:
        """Return what the function says."""
        said = self.function(view, action, after)
        if said.shape != action.shape[:1]:
            raise ValueError(
                f"{self.function} must return one number for each of {len(action)} rows, got shape {tuple(said.shape)}"
            )
        return (), said


class Head(nn.Module):
    """A small network on (view, action, view after) that predicts the reward; vectors only.

    It is fitted on real steps by squared error, in units of their standard deviation.
    """

    mean: Tensor
    spread: Tensor

    def __init__(self, view: spaces.Dict, action_space: spaces.Space, width: int = 64) -> None:
        super().__init__()
        actions = int(action_space.n) if isinstance(action_space, spaces.Discrete) else spaces.flatdim(action_space)
        size = 2 * sum(spaces.flatdim(part) for part in view.spaces.values()) + actions
        self.net = nn.Sequential(nn.Linear(size, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU())
        self.end = nn.Linear(width, 1)
        self.register_buffer("mean", torch.zeros(()))
        self.register_buffer("spread", torch.ones(()))

    def begin(self, view: Obs) -> State:
        """Remember nothing."""
        return ()

    def judge(self, memory: State, view: Obs, action: Tensor, after: Obs) -> tuple[State, Tensor]:
        """Return the predicted reward (B,)."""
        return (), self.raw(view, action, after) * self.spread + self.mean

    def raw(self, view: Obs, action: Tensor, after: Obs) -> Tensor:
        """Return the network's number (B,)."""
        parts = [value.flatten(1).float() for value in (*view.values(), *after.values())]
        return self.end(self.net(torch.cat([*parts, action], -1)))[:, 0]

    def error(self, raw: Tensor, target: Tensor) -> Tensor:
        """Return the loss (N,) of what ``raw`` gave for real rewards (N,)."""
        return (raw - (target - self.mean) / self.spread).square()

    def settle(self, target: Tensor) -> None:
        """Set the units from all real rewards (N,)."""
        self.mean.copy_(target.mean())
        self.spread.copy_(target.std(unbiased=False).clamp(min=1e-6))


class Classifier(Head):
    """The same network as the probability of not ending; ``threshold`` makes it a yes or no.

    It is fitted by cross-entropy on ``1 - terminated``. With a threshold p a step proceeds surely
    where its probability is at least p and surely not elsewhere.
    """

    def __init__(
        self, view: spaces.Dict, action_space: spaces.Space, width: int = 64, threshold: float | None = None
    ) -> None:
        super().__init__(view, action_space, width)
        if threshold is not None and not 0 < threshold < 1:
            raise ValueError(f"threshold must lie between 0 and 1, got {threshold}")
        self.threshold = threshold

    def judge(self, memory: State, view: Obs, action: Tensor, after: Obs) -> tuple[State, Tensor]:
        """Return the probability (B,) that life goes on."""
        proceed = torch.sigmoid(self.raw(view, action, after))
        return (), proceed if self.threshold is None else (proceed >= self.threshold).to(proceed.dtype)

    def error(self, raw: Tensor, target: Tensor) -> Tensor:
        """Return the cross-entropy (N,) of logits with ``target``, 1 where the episode went on."""
        return F.binary_cross_entropy_with_logits(raw, target, reduction="none")

    def settle(self, target: Tensor) -> None:
        """Start at the share of steps that go on."""
        share = target.mean().clamp(1e-3, 1 - 1e-3)
        nn.init.zeros_(self.end.weight)
        nn.init.constant_(self.end.bias, float(torch.logit(share)))


def fit(part: Head, model: Any, batch: Segment, steps: int = 500, rows: int = 256, rate: float = 3e-3) -> float:
    """Fit a Head to rewards, or a Classifier to ends, of real windows (B, T); return the last loss.

    ``model`` gives the views along the windows and is left as it is. Draws from torch's generator.
    """
    target_of = (1 - batch.terminated.float()) if isinstance(part, Classifier) else batch.reward
    if target_of is None:
        raise ValueError("these recordings hold no rewards to fit a head to; give a function instead")
    view, after = _views(model, batch)
    real = batch.mask.bool()
    now, then = ({name: value[real] for name, value in side.items()} for side in (view, after))
    action, target = batch.action[real], target_of[real]
    part.settle(target)
    optimiser = torch.optim.Adam(part.parameters(), rate)
    loss = torch.zeros(())
    for _ in range(steps):
        index = torch.randint(len(target), (rows,), device=target.device)
        raw = part.raw(tree.select(now, index), action[index], tree.select(then, index))
        loss = part.error(raw, target[index]).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return float(loss.detach())


def as_outcome(part: Any) -> Outcome:
    """Return an Outcome as it is, and a function as one without memory."""
    if isinstance(part, Outcome):
        return part
    if callable(part):
        return Function(part)
    raise TypeError(f"expected an Outcome (begin, judge) or a function, got {type(part).__name__}")


@torch.no_grad()
def _views(model: Any, batch: Segment) -> tuple[Obs, Obs]:
    """Return the views (B, T, ...) before and after each real step."""
    obs = batch.obs
    state = model.start({name: value[:, 0] for name, value in obs.items()})
    views = [model.view(state)]
    for time in range(batch.mask.shape[1]):
        state = model.update(state, batch.action[:, time], {name: value[:, time + 1] for name, value in obs.items()})
        views.append(model.view(state))
    whole = tree.stack(views, 1)
    return tree.map(lambda leaf: leaf[:, :-1], whole), tree.map(lambda leaf: leaf[:, 1:], whole)


def _of_inner(method: Callable, state: State, *more: Any) -> Any:
    return method(state["inner"], *more)
