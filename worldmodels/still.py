"""The world of an agent without a model: nothing is learned, nothing is foretold."""

from __future__ import annotations

from gymnasium import spaces
from torch import Tensor, nn

from dreamsim.core.types import Learned, Obs, Segment


class Still(nn.Module):
    """A world whose belief and view are the observation, and whose dream stands still and earns nothing.

    With it SAC and PPO are what they are without a model, by the same command, environments and counters as
    everything that dreams. Its dream is the forecast to beat: the last observation, copied.
    """

    def __init__(self, observation_space: spaces.Dict, action_space: spaces.Space) -> None:
        super().__init__()
        self.single = {name: len(part.shape or ()) < 1 for name, part in observation_space.spaces.items()}

    def start(self, obs: Obs) -> Obs:
        """Return the observations (B, ...), those that are a single number as vectors of one."""
        return {name: value[..., None] if self.single[name] else value for name, value in obs.items()}

    def update(self, state: Obs, action: Tensor, obs: Obs) -> Obs:
        """Return the newest observations (B, ...)."""
        return self.start(obs)

    def step(self, state: Obs, action: Tensor) -> tuple[Obs, Tensor, Tensor]:
        """Dream that nothing happens: the same state, reward 0 (B,), proceed 1 (B,)."""
        none = action.new_zeros(len(action))
        return state, none, none + 1

    def view(self, state: Obs) -> Obs:
        """Show everything."""
        return state

    def decode(self, state: Obs) -> Obs:
        """Return the observations."""
        return {name: value[..., 0] if self.single[name] else value for name, value in state.items()}

    def loss(self, batch: Segment) -> Learned:
        """Learn nothing; hand out the observations (B, T+1, ...) as beliefs."""
        return Learned({}, self.start(batch.obs))
