"""PETS' and MBPO's world model: an ensemble of networks that each say how sure they are.

Sources: Chua et al., "Deep Reinforcement Learning in a Handful of Trials using Probabilistic
Dynamics Models" (NeurIPS 2018), section 4 and appendix A.1; Janner et al., "When to Trust
Your Model: Model-Based Policy Optimization" (NeurIPS 2019) and both released codes. The
policy that MBPO trains in it lives in ``dreamsim.training.branched``.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from gymnasium import spaces
from torch import Tensor, nn
from torch.nn import functional as F

from dreamsim.core import tree
from dreamsim.core.bagging import bagged, held_out
from dreamsim.core.types import Learned, Obs, Segment
from worldmodels.heads import binary_loss
from worldmodels.nets import activation_named

State = dict[str, Tensor]


class EachStep(nn.Module):
    """TS1: every row draws another elite at every step, so that a dream follows the spread of the ensemble."""

    def forward(self, member: Tensor, elites: Tensor) -> Tensor:
        """Return the members (B,) that dream the next step."""
        return elites[torch.randint(len(elites), member.shape, device=elites.device)]


class WholeDream(nn.Module):
    """TS-infinity: every row keeps the elite it began with, so that each dream is one consistent world."""

    def forward(self, member: Tensor, elites: Tensor) -> Tensor:
        """Return the members (B,) unchanged."""
        return member


class Ensemble(nn.Module):
    """M Gaussian networks from (observation, action) to the change of the observation and the reward.

    State is ``{"observation": (B, O), "member": (B,)}``: the view, flat, and which member
    dreams the row. A step draws from that member's Gaussian; ``propagation`` (``EachStep``
    or ``WholeDream``) says who dreams the next one. Each member learns from a bootstrap of
    its own; ``revise`` makes those ``elites`` that err least on transitions which no member
    learns from (``hold_out`` of all). ``episodic`` adds a learned termination.
    Vector observations only; they and rewards stay in the environment's units.

    True to the sources: normalised inputs, deltas as targets, log variances softly clamped to
    learned bounds (from -10 to 0.5, weight 0.01), log likelihood without its constant and its half,
    mean over rows and outputs, sum over members, weight decay growing from layer to layer up to
    ``decay``, weights from a normal of std 1 / (2 sqrt(inputs)) cut at two units, elites by squared
    error, rewards sampled jointly. Deviations:
    1. targets are normalised too, so that bounds and decay mean the same in every environment;
    2. the bootstrap counts are Poisson, by a hash of the transition, so that new data changes no old choice;
    3. members learn at every gradient step of a run instead of being fitted every 250 steps until the
       held-out error stalls; statistics follow the data slowly for that reason (``revise``);
    4. PETS has no elites and is given the reward: for PETS take ``elites`` = ``members``;
    5. termination may be learned, where both codes are given it.
    """

    mean: Tensor
    std: Tensor
    target_mean: Tensor
    target_std: Tensor
    spread: Tensor
    elites: Tensor

    def __init__(
        self,
        observation_space: spaces.Dict,
        action_space: spaces.Space,
        members: int = 7,
        elites: int = 5,
        width: int = 200,
        layers: int = 4,
        activation: str = "silu",
        decay: float = 1e-4,
        hold_out: float = 0.1,
        episodic: bool = False,
        propagation: Callable[[], nn.Module] = EachStep,
    ) -> None:
        super().__init__()
        if not 1 <= elites <= members:
            raise ValueError(f"elites must be between 1 and the {members} members, got {elites}")
        self.shapes = _vectors(observation_space)
        self.sizes = [math.prod(shape) for shape in self.shapes.values()]
        self.size, self.members, self.hold_out = sum(self.sizes), members, hold_out
        action_size = int(action_space.n) if isinstance(action_space, spaces.Discrete) else action_space.shape[0]
        inputs, outputs = self.size + action_size, self.size + 1
        self.net = Members(members, inputs, width, layers, 2 * outputs + int(episodic), activation, decay)
        self.low = nn.Parameter(torch.full((1, 1, outputs), -10.0))
        self.high = nn.Parameter(torch.full((1, 1, outputs), 0.5))
        self.episodic, self.propagation = episodic, propagation()
        for name, size in (("", inputs), ("target_", outputs)):
            self.register_buffer(f"{name}mean", torch.zeros(size))
            self.register_buffer(f"{name}std", torch.ones(size))
        self.register_buffer("spread", torch.ones(self.size))
        self.register_buffer("elites", torch.arange(elites))

    # --- dreaming

    def start(self, obs: Obs) -> State:
        """Return the belief after observations (B, ...): themselves, and an elite drawn for each row."""
        flat = self._flat(obs, 1)
        return {"observation": flat, "member": self._draw(flat.shape[:1])}

    def update(self, state: State, action: Tensor, obs: Obs) -> State:
        """Return the belief after seeing ``obs``; the row keeps its member."""
        return {"observation": self._flat(obs, 1), "member": state["member"]}

    def step(self, state: State, action: Tensor) -> tuple[State, Tensor, Tensor]:
        """Dream one step (B,) from a sample of each row's member; gradients flow through the sample."""
        member = self.propagation(state["member"], self.elites)
        told = self._told(self.net.apart(self._inputs(state["observation"], action), member))
        drawn = torch.addcmul(told.mean, torch.exp(0.5 * told.log_variance), torch.randn_like(told.mean))
        drawn = torch.addcmul(self.target_mean, drawn, self.target_std)
        following = {"observation": state["observation"] + drawn[:, :-1], "member": member}
        return following, drawn[:, -1], torch.sigmoid(-told.end)

    def redraw(self, state: State) -> State:
        """Return the state with another draw of each row's member."""
        return {**state, "member": self._draw(state["member"].shape)}

    def view(self, state: State) -> Obs:
        """Show the observations (B, ...)."""
        pieces = torch.split(state["observation"], self.sizes, -1)
        return {
            name: piece if len(shape) == 1 else piece.unflatten(-1, shape)
            for (name, shape), piece in zip(self.shapes.items(), pieces, strict=True)
        }

    def decode(self, state: State) -> Obs:
        """Return the view, which is an observation."""
        return self.view(state)

    def uncertainty(self, state: State, action: Tensor) -> Tensor:
        """Return how far the elites' mean forecasts of the next observation lie apart (B,).

        It is the root mean square, over components, of their standard deviation in units of
        that component's standard deviation over the data: epistemic, without the noise that
        each member expects. 0.1 says that the elites disagree by a tenth of the data's spread.
        """
        inputs = self._inputs(state["observation"], action)
        delta = self._told(self.net(inputs, self.elites)).mean[..., :-1] * self.target_std[:-1]
        return (delta.var(0, unbiased=False) / self.spread.square()).mean(-1).sqrt()

    # --- learning

    def loss(self, batch: Segment) -> Learned:
        """Return likelihood, bounds, decay (and termination) losses of the transitions of windows (B, T)."""
        states = self._states(batch)
        inputs, target = self._transitions(batch)
        weight = self._weights(batch)
        told = self._told(self.net(inputs))
        surprise = (told.mean - target).square() * torch.exp(-told.log_variance) + told.log_variance
        if batch.reward is None:
            surprise = surprise[..., :-1]
        losses = {
            "likelihood": (surprise.mean(-1) * weight).sum(),
            "bounds": 0.01 * (self.high.sum() - self.low.sum()),
            "decay": self.net.decay(),
        }
        if self.episodic:
            ends = batch.terminated.flatten().float().expand_as(told.end)
            losses["termination"] = (binary_loss(told.end, ends) * weight).sum()
        return Learned(losses, states)

    @torch.no_grad()
    def fit_statistics(self, batch: Segment) -> None:
        """Set the normalisation of inputs and targets from real windows; what does not vary keeps a unit of 1."""
        self._follow(batch, 1.0)

    @torch.no_grad()
    def revise(self, batch: Segment) -> None:
        """Choose the elites anew by the held-out transitions of ``batch``; let the statistics follow it a little."""
        self._follow(batch, 0.02)
        errors = self.errors(batch)
        if errors is not None:
            self.elites.copy_(errors.argsort()[: len(self.elites)])

    @torch.no_grad()
    def errors(self, batch: Segment) -> Tensor | None:
        """Return the mean squared error (M,) of each member on held-out transitions; None: ``batch`` has none."""
        inputs, target = self._transitions(batch)
        chosen = (self._held(batch) & (batch.mask > 0)).flatten()
        if not bool(chosen.any()):
            return None
        error = (self._told(self.net(inputs[chosen])).mean - target[chosen]).square()
        return (error if batch.reward is not None else error[..., :-1]).mean((1, 2))

    # --- inside

    def _told(self, output: Tensor) -> Told:
        """Cut outputs (..., 2 D + 1) of the networks into a Gaussian over D targets and a termination."""
        count = self.low.shape[-1]
        mean, raw, rest = torch.split(output, [count, count, output.shape[-1] - 2 * count], -1)
        shape = (count,) if raw.dim() == 2 else (1, 1, count)
        low, high = self.low.view(shape), self.high.view(shape)
        log_variance = high - F.softplus(high - raw)
        log_variance = low + F.softplus(log_variance - low)
        # Without the head: certain to go on.
        end = rest.squeeze(-1) if self.episodic else mean.new_full(mean.shape[:-1], -math.inf)
        return Told(mean, log_variance, end)

    def _inputs(self, observation: Tensor, action: Tensor) -> Tensor:
        return (torch.cat([observation, action], -1) - self.mean) / self.std

    def _transitions(self, batch: Segment) -> tuple[Tensor, Tensor]:
        """Return normalised inputs (B T, O + A) and targets (B T, O + 1) of windows, padding included."""
        both, change = self._raw(batch)
        return (both - self.mean) / self.std, (change - self.target_mean) / self.target_std

    def _raw(self, batch: Segment) -> tuple[Tensor, Tensor]:
        flat = self._flat(batch.obs, 2)
        both = torch.cat([flat[:, :-1], batch.action], -1).flatten(0, 1)
        reward = torch.zeros_like(batch.mask) if batch.reward is None else batch.reward
        change = torch.cat([flat[:, 1:] - flat[:, :-1], reward[..., None]], -1).flatten(0, 1)
        return both, change

    def _weights(self, batch: Segment) -> Tensor:
        """Return what each transition counts to each member (M, B T): its bootstrap, over the real ones."""
        real = batch.mask * ~self._held(batch)
        return bagged(_places(batch), self.members) * real.flatten() / batch.mask.sum().clamp(min=1)

    def _held(self, batch: Segment) -> Tensor:
        """Return which transitions (B, T) no member learns from."""
        return held_out(_places(batch), self.hold_out).view(batch.mask.shape)

    def _states(self, batch: Segment) -> State:
        flat = self._flat(batch.obs, 2)
        return {"observation": flat, "member": self._draw(flat.shape[:2])}

    def _follow(self, batch: Segment, share: float) -> None:
        """Move all statistics a ``share`` of the way to those of a batch."""
        real = batch.mask.flatten() > 0
        for name, rows in zip(("", "target_"), self._raw(batch), strict=True):
            mean, std = rows[real].mean(0), rows[real].std(0, unbiased=False)
            self.get_buffer(f"{name}mean").lerp_(mean, share)
            self.get_buffer(f"{name}std").lerp_(torch.where(std > 1e-6, std, torch.ones_like(std)), share)
        self.spread.copy_(self.std[: self.size])

    def _draw(self, shape: torch.Size) -> Tensor:
        return self.elites[torch.randint(len(self.elites), shape, device=self.elites.device)]

    def _flat(self, obs: Obs, lead: int) -> Tensor:
        parts = [obs[name].flatten(lead) if len(shape) != 1 else obs[name] for name, shape in self.shapes.items()]
        return torch.cat(parts, -1) if len(parts) > 1 else parts[0]


class Told(NamedTuple):
    """What networks foretell, in normalised units."""

    mean: Tensor  # (..., D)
    log_variance: Tensor  # (..., D)
    end: Tensor  # (...) logit of termination


class Members(nn.Module):
    """M equal multi-layer networks whose matrix products are batched over the members."""

    def __init__(
        self, members: int, inputs: int, width: int, layers: int, outputs: int, activation: str, decay: float
    ) -> None:
        super().__init__()
        widths = [inputs, *[width] * layers, outputs]
        self.weights = nn.ParameterList([_weight(members, *pair) for pair in itertools.pairwise(widths)])
        self.biases = nn.ParameterList([nn.Parameter(torch.zeros(members, 1, size)) for size in widths[1:]])
        self.activation = activation_named(activation)
        # MBPO's ladder: a quarter, a half, three quarters of the last layer's decay, and the last.
        self.decays = [decay * min(0.25 * (place + 1), 0.75) for place in range(layers)] + [decay]

    def forward(self, x: Tensor, chosen: Tensor | None = None) -> Tensor:
        """Run all members, or those numbered by ``chosen`` (N,), on the same rows (B, in) or own ones (M, B, in)."""
        weights, biases = list(self.weights), list(self.biases)
        if chosen is not None:
            weights = [weight.index_select(0, chosen) for weight in weights]
            biases = [bias.index_select(0, chosen) for bias in biases]
        h = x.expand(len(weights[0]), -1, -1) if x.dim() == 2 else x
        for weight, bias in zip(weights[:-1], biases[:-1], strict=True):
            h = self.activation(torch.baddbmm(bias, h, weight))
        return torch.baddbmm(biases[-1], h, weights[-1])

    def apart(self, x: Tensor, member: Tensor) -> Tensor:
        """Run each row (B, in) through its own ``member`` (B,) alone, which costs little more than B rows: (B, out)."""
        order = member.argsort(stable=True)
        counts = torch.bincount(member, minlength=len(self.weights[0]))
        place = torch.empty_like(order)
        place[order] = torch.arange(len(x), device=x.device) - (counts.cumsum(0) - counts)[member[order]]
        grouped = x.new_zeros(len(counts), int(counts.max()), x.shape[-1]).index_put((member, place), x)
        return self(grouped)[member, place]

    def decay(self) -> Tensor:
        """Return the weight decay of all layers, half the sum of squares times each layer's factor."""
        return torch.stack([0.5 * d * w.square().sum() for d, w in zip(self.decays, self.weights, strict=True)]).sum()


class Particles(nn.Module):
    """A world in which every row is dreamt ``count`` P times, as PETS judges a plan: rewards are means over particles.

    State is the model's own with a second axis, (B, P, ...); ``view`` shows the first particle. Name it as the
    ``world`` of a planner, ``CEM(model, ..., world=Particles)``, or plan in it as a model of its own. Source: Chua
    et al. 2018, algorithm 1 (20 particles).
    """

    def __init__(self, model: nn.Module, count: int = 20) -> None:
        super().__init__()
        self.model, self.count = model, count

    def start(self, obs: Obs) -> Any:
        """Return P beliefs (B, P, ...) after observations (B, ...), each with its own draw of a member."""
        return self._apart(self.model.start(tree.map(self._repeat, obs)))

    def lift(self, state: Any) -> Any:
        """Return P beliefs (B, P, ...) from each of the model's (B, ...), each with its own draw of a member."""
        return self._apart(self.model.redraw(tree.map(self._repeat, state)))

    def update(self, state: Any, action: Tensor, obs: Obs) -> Any:
        """Return the beliefs after seeing ``obs``."""
        seen = tree.map(self._repeat, obs)
        return self._apart(self.model.update(self._together(state), self._repeat(action), seen))

    def step(self, state: Any, action: Tensor) -> tuple[Any, Tensor, Tensor]:
        """Dream one step of all particles."""
        after, reward, proceed = self.model.step(self._together(state), self._repeat(action))
        means = (value.unflatten(0, (-1, self.count)).mean(1) for value in (reward, proceed))
        return self._apart(after), *means

    def view(self, state: Any) -> Obs:
        """Show the first particle."""
        return self.model.view(tree.map(lambda leaf: leaf[:, 0], state))

    def _repeat(self, leaf: Tensor) -> Tensor:
        return leaf.repeat_interleave(self.count, 0)

    def _together(self, state: Any) -> Any:
        return tree.map(lambda leaf: leaf.flatten(0, 1), state)

    def _apart(self, state: Any) -> Any:
        return tree.map(lambda leaf: leaf.unflatten(0, (-1, self.count)), state)


def nano(observation_space: spaces.Dict, action_space: spaces.Space) -> Ensemble:
    """A size that one core trains in minutes: 5 members of 3 layers of 64, 4 elites."""
    return Ensemble(observation_space, action_space, members=5, elites=4, width=64, layers=3)


def pets(observation_space: spaces.Dict, action_space: spaces.Space) -> Ensemble:
    """PETS' size for its larger tasks: 5 members of 3 layers of 200, none left out, each dream in one world."""
    return Ensemble(observation_space, action_space, members=5, elites=5, layers=3, propagation=WholeDream)


def mbpo(observation_space: spaces.Dict, action_space: spaces.Space) -> Ensemble:
    """MBPO's size: 7 members of 4 layers of 200, 5 elites, another one drawn at each step."""
    return Ensemble(observation_space, action_space)


def _vectors(observation_space: spaces.Dict) -> dict[str, tuple[int, ...]]:
    shapes = {}
    for name, part in observation_space.spaces.items():
        if part.dtype == "uint8" or part.shape is None:
            raise ValueError(
                f"an ensemble foretells vectors, and observation {name!r} is {part}; choose a latent world model "
                "such as worldmodels.decoder_free.DecoderFree"
            )
        shapes[name] = tuple(part.shape)
    return shapes


def _places(batch: Segment) -> Tensor:
    """Return episode and step (B T, 2) of every transition, by which overlapping windows know their common ones."""
    steps = torch.arange(batch.mask.shape[1], device=batch.index.device)
    offset = batch.index[:, 1:] + steps
    return torch.stack([batch.index[:, :1].expand_as(offset), offset], -1).flatten(0, 1)


def _weight(members: int, inputs: int, outputs: int) -> nn.Parameter:
    std = 0.5 / math.sqrt(inputs)
    return nn.Parameter(nn.init.trunc_normal_(torch.empty(members, inputs, outputs), 0.0, std, -2 * std, 2 * std))
