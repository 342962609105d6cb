"""DreamerV3's world model: a recurrent state-space model with categorical latents.

Source: Hafner et al., "Mastering diverse control tasks through world models" (Nature 2025), equations 1 to 5 and
the released code. The actor-critic that completes the system lives in ``dreamsim.training.objectives.actor_critic``
and ``worldmodels.recurrent_actors``; the configs put the three together.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from gymnasium import spaces
from torch import Tensor, nn

from dreamsim.core.types import Learned, Obs, Segment
from worldmodels.blocks import Active, BlockLinear, Eyes, fan_in_normal, layers, linear
from worldmodels.grounds import Reconstruction, Sizes
from worldmodels.heads import TwoHot, binary_loss, categorical_kl, one_hot_sample, unimix

State = dict[str, Tensor]


class Recurrent(nn.Module):
    """A recurrent state-space model. State is ``{"deter": (B, D), "stoch": (B, C, S)}``, its view both as one vector.

    ``deter`` is the memory of a block-diagonal GRU, ``stoch`` S one-hot samples of C classes with 1 % of uniform
    mixed in. The classes come first, which is the same up to the order of features and 20 times faster on a CPU,
    which can then vectorise. ``ground`` makes what ties the state to observations: ``Reconstruction`` is DreamerV3,
    ``RedundancyReduction`` R2-Dreamer, ``Contrast`` InfoNCE. Losses are weighted as in the paper: ``dynamics`` and
    ``representation`` for the two KL terms, each at least ``free`` nats after the sum over the S categoricals.
    The head that says whether an episode goes on learns the discounted flag (1 - terminated) (1 - 1 / ``horizon``);
    ``step`` divides that discount out again.

    Beliefs found while learning are written back to replay; a window goes on from the belief stored at its first
    observation, or starts from zero where there is none. Deviations: the reward of an episode's first observation,
    which is no step's, is not learned; where a window begins without a stored belief in the middle of an episode it
    starts from zero (released: beliefs of acting are stored as well).
    """

    def __init__(
        self,
        observation_space: spaces.Dict,
        action_space: spaces.Space,
        deter: int = 512,
        hidden: int = 64,
        classes: int = 4,
        units: int = 64,
        depth: int = 4,
        stoch: int = 32,
        blocks: int = 8,
        uniform: float = 0.01,
        free: float = 1.0,
        dynamics: float = 1.0,
        representation: float = 0.1,
        horizon: float = 333.0,
        ground: Callable[[spaces.Dict, Sizes], nn.Module] = Reconstruction,
    ) -> None:
        super().__init__()
        action_size = int(action_space.n) if isinstance(action_space, spaces.Discrete) else action_space.shape[0]
        if deter % blocks:
            raise ValueError(f"a memory of {deter} features cannot be cut into {blocks} blocks; choose a multiple")
        self.stoch, self.classes, self.uniform, self.free = stoch, classes, uniform, free
        self.dynamics, self.representation, self.going = dynamics, representation, 1 - 1 / horizon
        self.encoder = Eyes(observation_space, units, depth)
        self.core = Core(deter, stoch * classes, action_size, hidden, blocks)
        self.prior = nn.Sequential(layers(deter, hidden, 2), linear(hidden, stoch * classes))
        self.see_deter, self.see_tokens = linear(deter, hidden), linear(self.encoder.outputs, hidden)
        for part in (self.see_deter, self.see_tokens):  # together one layer over both
            fan_in_normal(part.weight, deter + self.encoder.outputs)
        self.see_active, self.posterior = Active(hidden), linear(hidden, stoch * classes)
        features = deter + stoch * classes
        self.regression = TwoHot()
        self.reward = nn.Sequential(layers(features, units, 1), linear(units, self.regression.count, scale=0.0))
        self.proceed = nn.Sequential(layers(features, units, 1), linear(units, 1))
        sizes = Sizes(deter, stoch * classes, self.encoder.outputs, units, depth, blocks)
        self.ground = ground(observation_space, sizes)
        if not isinstance(self.ground, Reconstruction):
            # No power to decode (see dreamsim.core.protocols.find_power), rather than one that fails when asked.
            self.decode = None  # type: ignore[method-assign, assignment]
        self.view_space = spaces.Dict({"latent": spaces.Box(-1.0, 1.0, (features,))})

    def start(self, obs: Obs) -> State:
        """Return the belief after first observations (B, ...)."""
        tokens = self.encoder(obs)
        return self._see(self._begin(len(tokens), tokens), self.see_tokens(tokens))[0]

    def update(self, state: State, action: Tensor, obs: Obs) -> State:
        """Return the belief after ``action`` (B, A) was followed by ``obs`` (B, ...)."""
        deter = self.core(state["deter"], state["stoch"], self.core.push(action))
        return self._see(deter, self.see_tokens(self.encoder(obs)))[0]

    def step(self, state: State, action: Tensor) -> tuple[State, Tensor, Tensor]:
        """Dream one step from states (B, ...) under actions (B, A)."""
        deter = self.core(state["deter"], state["stoch"], self.core.push(action))
        state = {"deter": deter, "stoch": one_hot_sample(self._probs(self.prior(deter)), -2)}
        features = self._features(state)
        reward = self.regression.decode(self.reward(features))
        going = torch.sigmoid(self.proceed(features).squeeze(-1)) / self.going
        return state, reward, going.clamp(max=1.0)

    def view(self, state: State) -> Obs:
        """Show the whole state as one vector (..., D + S * C)."""
        return {"latent": self._features(state)}

    def decode(self, state: State) -> Obs:
        """Return observations (B, ...) as the decoder sees them."""
        return self.ground.decode(state["deter"], state["stoch"].flatten(-2))

    def keeps_beliefs(self) -> bool:
        """Beliefs are written back to replay."""
        return True

    def loss(self, batch: Segment) -> Learned:
        """Return the losses over windows (B, T) and the beliefs with their graph."""
        tokens = self.encoder(batch.obs)
        states, posterior = self._filter(batch, tokens)
        prior = self._probs(self.prior(states["deter"]))
        # The first observation of a window is learned from only where it began an episode: else it was a later one
        # of another window, and its belief may come from there.
        weight = torch.cat([_begins(batch), batch.mask], 1)
        weight = weight / weight.sum().clamp(min=1)
        losses = {
            "dynamics": self.dynamics * self._divergence(posterior.detach(), prior, weight),
            "representation": self.representation * self._divergence(posterior, prior.detach(), weight),
            "ground": self.ground.loss(states["deter"], states["stoch"].flatten(-2), tokens, batch.obs, weight),
        }
        later = self._features(states)[:, 1:]
        weight = batch.mask / batch.mask.sum().clamp(min=1)
        if batch.reward is not None:
            losses["reward"] = (self.regression.loss(self.reward(later), batch.reward) * weight).sum()
        going = (~batch.terminated).float() * self.going
        losses["proceed"] = (binary_loss(self.proceed(later).squeeze(-1), going) * weight).sum()
        return Learned(losses, states)

    def _filter(self, batch: Segment, tokens: Tensor) -> tuple[State, Tensor]:
        """Return the beliefs (B, T+1, ...) along windows, and the probabilities they were drawn from."""
        seen, pushed = self.see_tokens(tokens), self.core.push(batch.action)
        state, probs = self._see(self._begin(len(tokens), tokens), seen[:, 0])
        if batch.before is not None:
            state = batch.before.over(state)
        deters, stochs, drawn = [state["deter"]], [state["stoch"]], [probs]
        for t in range(batch.action.shape[1]):
            state, probs = self._see(self.core(state["deter"], state["stoch"], pushed[:, t]), seen[:, t + 1])
            deters.append(state["deter"])
            stochs.append(state["stoch"])
            drawn.append(probs)
        return {"deter": torch.stack(deters, 1), "stoch": torch.stack(stochs, 1)}, torch.stack(drawn, 1)

    def _begin(self, rows: int, like: Tensor) -> Tensor:
        """Return the memory (B, D) before anything was seen: one step of the core from nothing."""
        nothing = like.new_zeros((1, self.core.size))
        push = self.core.push(like.new_zeros((1, self.core.action_size)))
        return self.core(nothing, like.new_zeros((1, self.classes, self.stoch)), push).expand(rows, -1)

    def _see(self, deter: Tensor, seen: Tensor) -> tuple[State, Tensor]:
        """Return the belief from a memory (B, D) and what is seen (B, hidden), and its probabilities (B, C, S)."""
        probs = self._probs(self.posterior(self.see_active(self.see_deter(deter) + seen)))
        return {"deter": deter, "stoch": one_hot_sample(probs, -2)}, probs

    def _probs(self, logits: Tensor) -> Tensor:
        return unimix(logits.unflatten(-1, (self.classes, self.stoch)), self.uniform, -2)

    def _features(self, state: State) -> Tensor:
        return torch.cat([state["deter"], state["stoch"].flatten(-2)], -1)

    def _divergence(self, one: Tensor, other: Tensor, weight: Tensor) -> Tensor:
        return (categorical_kl(one, other, -2).sum(-1).clamp(min=self.free) * weight).sum()


class Core(nn.Module):
    """The block-diagonal GRU: memory (B, D), sample (B, C, S) and pushed action (B, hidden) to the next memory.

    Each of ``blocks`` blocks sees its own share of the memory and all of what memory, sample and action become in
    one layer each. That shared part has other weights in each block: it is one dense product for all of them.
    """

    def __init__(self, deter: int, stoch: int, action: int, hidden: int, blocks: int) -> None:
        super().__init__()
        self.size, self.action_size, self.blocks = deter, action, blocks
        self.from_deter, self.from_stoch = layers(deter, hidden, 1), layers(stoch, hidden, 1)
        self.from_action = layers(action, hidden, 1)
        share, inputs = deter // blocks, deter + blocks * 3 * hidden
        self.own = BlockLinear(blocks, share, share, inputs)
        self.shared = nn.Linear(3 * hidden, deter, bias=False)  # the bias is that of the other half
        fan_in_normal(self.shared.weight, inputs)
        self.active = Active(deter)
        self.gates = BlockLinear(blocks, share, 3 * share, deter)

    def push(self, action: Tensor) -> Tensor:
        """Return what actions (..., A) do, (..., hidden); values beyond [-1, 1] count as their sign."""
        return self.from_action(action / action.detach().abs().clamp(min=1.0))

    def forward(self, deter: Tensor, stoch: Tensor, pushed: Tensor) -> Tensor:
        """Move the memory by one step."""
        x = torch.cat([self.from_deter(deter), self.from_stoch(stoch.flatten(-2)), pushed], -1)
        x = self.active(torch.addmm(self.own(deter).flatten(-2), x, self.shared.weight.T))
        reset, candidate, update = self.gates(x).chunk(3, -1)
        candidate = torch.tanh(torch.sigmoid(reset) * candidate)
        return torch.lerp(deter.view_as(candidate), candidate, torch.sigmoid(update - 1)).flatten(-2)


def _begins(batch: Segment) -> Tensor:
    """Return 1 (B, 1) where a window begins its episode and no belief is stored there, else 0."""
    begins = batch.index[:, 1:] == 0
    if batch.before is not None:
        begins = begins & ~batch.before.known[:, None]
    return begins.to(batch.mask.dtype)


def nano(observation_space: spaces.Dict, action_space: spaces.Space) -> Recurrent:
    """A size that two cores train: a memory of 256, 64 units. Its actor and critic have 64 units as well."""
    return Recurrent(observation_space, action_space, 256, 64, 4, 64, 4)


def size1m(observation_space: spaces.Dict, action_space: spaces.Space) -> Recurrent:
    """The published 1M, which learned DeepMind Control from states; actor and critic of 64 units."""
    return Recurrent(observation_space, action_space, 512, 64, 4, 64, 4)


def size12m(observation_space: spaces.Dict, action_space: spaces.Space) -> Recurrent:
    """The published 12M; actor and critic of 256 units."""
    return Recurrent(observation_space, action_space, 2048, 256, 16, 256, 16)


def size25m(observation_space: spaces.Dict, action_space: spaces.Space) -> Recurrent:
    """The published 25M; actor and critic of 384 units."""
    return Recurrent(observation_space, action_space, 3072, 384, 24, 384, 24)


def size50m(observation_space: spaces.Dict, action_space: spaces.Space) -> Recurrent:
    """The published 50M; actor and critic of 512 units."""
    return Recurrent(observation_space, action_space, 4096, 512, 32, 512, 32)


def size100m(observation_space: spaces.Dict, action_space: spaces.Space) -> Recurrent:
    """The published 100M; actor and critic of 768 units."""
    return Recurrent(observation_space, action_space, 6144, 768, 48, 768, 48)


def size200m(observation_space: spaces.Dict, action_space: spaces.Space) -> Recurrent:
    """The published 200M, its default; actor and critic of 1024 units."""
    return Recurrent(observation_space, action_space, 8192, 1024, 64, 1024, 64)


def size400m(observation_space: spaces.Dict, action_space: spaces.Space) -> Recurrent:
    """The published 400M; actor and critic of 1536 units."""
    return Recurrent(observation_space, action_space, 12288, 1536, 96, 1536, 96)
