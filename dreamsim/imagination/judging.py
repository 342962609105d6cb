"""A policy that can also say what it expects: critics beside an actor, for planners that look at where plans end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gymnasium import spaces
from torch import Tensor, nn

from dreamsim.core.protocols import Modes, find_power
from dreamsim.core.spaces import action_layout
from dreamsim.core.types import Act, Obs
from dreamsim.imagination.score import Leaf


class Judging(nn.Module):
    """Acts as ``policy`` does, and gives a view the value that ``critic`` sees in it (see ``score.Leaf``)."""

    def __init__(self, policy: nn.Module, critic: nn.Module) -> None:
        super().__init__()
        self.policy: Any = policy
        self.critic = critic
        self._leaf = (Leaf(policy, critic),)  # in a tuple, so that the weights are not kept a second time

    def act(self, view: Obs, memory: Any = None, first: Tensor | None = None, applied: Tensor | None = None) -> Act:
        """Act on a view (B, ...)."""
        return self.policy.act(view, memory, first, applied)

    def mode(self, view: Obs, memory: Any = None, first: Tensor | None = None, applied: Tensor | None = None) -> Act:
        """Act without randomness, where the policy can."""
        return (find_power(self.policy, Modes) or self.policy.act)(view, memory, first, applied)

    def value(self, view: Obs) -> Tensor:
        """Return the value (N,) of a view (N, ...)."""
        return self._leaf[0](view)


def judging(
    view_space: spaces.Dict,
    action_space: spaces.Space,
    policy: Callable[[spaces.Dict, spaces.Space], nn.Module],
    critic: Callable[[spaces.Dict, int], nn.Module],
) -> Judging:
    """Make both for a view and an action space."""
    return Judging(policy(view_space, action_space), critic(view_space, action_layout(action_space)[0]))
