"""The interfaces: what a world model, a policy and a planner are, and the powers they may have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

from torch import Tensor

from dreamsim.core.types import Act, Learned, Obs, Segment, State


@runtime_checkable
class WorldModel(Protocol):
    """A learned world. All methods are batched; a single case is B = 1."""

    def start(self, obs: Obs) -> State:
        """Return the belief (B, ...) after a first observation (B, ...)."""

    def update(self, state: State, action: Tensor, obs: Obs) -> State:
        """Return the belief after really seeing ``obs`` (B, ...) follow ``action`` (B, A)."""

    def step(self, state: State, action: Tensor) -> tuple[State, Tensor, Tensor]:
        """Dream one step: next state, reward (B,), proceed (B,) = P(not terminated), undiscounted."""

    def view(self, state: State) -> Obs:
        """Return what a policy may see of a state (B, ...)."""

    def loss(self, batch: Segment) -> Learned:
        """Return weighted losses, and beliefs where the model makes them on the way."""


@runtime_checkable
class Policy(Protocol):
    """Anything that acts: a network, a planner, a person, another library's policy."""

    def act(self, view: Obs, memory: Any = None, first: Tensor | None = None, applied: Tensor | None = None) -> Act:
        """Act on a view (B, ...).

        ``memory`` is what the previous Act returned; ``first`` (B,) bool marks rows that
        have just begun; ``applied`` (B, A) is what the world really did with the last
        action, None: as asked.
        """


@runtime_checkable
class Planner(Protocol):
    """Chooses an action by looking ahead from a state."""

    def plan(self, state: State, memory: Any = None, first: Tensor | None = None) -> Act:
        """Return the first action (B, A) of the best plan found from ``state`` (B, ...)."""


class Decodes(Protocol):
    """Power: show a state as observations."""

    def decode(self, state: State) -> Obs:
        """Return observations (B, ...) as the real environment would give them."""


class Values(Protocol):
    """Power: the expected discounted return from a state."""

    def value(self, state: State) -> Tensor:
        """Return the value (B,)."""


class Uncertain(Protocol):
    """Power: how far a state is to be distrusted."""

    def uncertainty(self, state: State, action: Tensor) -> Tensor:
        """Return a disagreement (B,), 0 or more, of taking ``action`` in ``state``."""


class Modes(Protocol):
    """Power: act without randomness."""

    def mode(self, view: Obs, memory: Any = None, first: Tensor | None = None, applied: Tensor | None = None) -> Act:
        """Return the most typical action instead of a sampled one; otherwise as ``Policy.act``."""


class Weighs(Protocol):
    """Power: say how likely a policy is to act so."""

    def log_prob(self, view: Obs, action: Tensor) -> tuple[Tensor, Tensor]:
        """Return log-probabilities (...) of actions (..., A) and the policy's entropy (...) there, with gradient."""


class FitsStatistics(Protocol):
    """Power: set normalisation from data at a declared time, never inside ``loss``."""

    def fit_statistics(self, batch: Segment) -> None:
        """Set the model's statistics buffers from a large batch of real windows."""


class Revises(Protocol):
    """Power: bring what is chosen by data up to date between rounds of learning, never inside ``loss``."""

    def revise(self, batch: Segment) -> None:
        """Choose anew, for example the best members of an ensemble, by a large batch of real windows."""


class KeepsBeliefs(Protocol):
    """Power: learn from beliefs that earlier updates stored, as ``Segment.before``."""

    def keeps_beliefs(self) -> bool:
        """Say whether the beliefs found while learning shall be written back to replay."""


class MissingPower(TypeError):
    """A model or policy was asked for something it cannot do."""


def power(owner: Any, protocol: type) -> Callable:
    """Return the bound method of a one-method power protocol, or raise one clear error."""
    method = find_power(owner, protocol)
    if method is None:
        name = _method_name(protocol)
        raise MissingPower(
            f"{type(owner).__name__} has no method {name}(...), which is needed here "
            f"(see dreamsim.core.protocols.{protocol.__name__}). "
            f"Add that method to {type(owner).__name__}, or choose a part that has it."
        )
    return method


def find_power(owner: Any, protocol: type) -> Callable | None:
    """Return the bound method of a power, or None where the owner lacks it and that is fine."""
    method = getattr(owner, _method_name(protocol), None)
    return method if callable(method) else None


def _method_name(protocol: type) -> str:
    names = [name for name, value in vars(protocol).items() if callable(value) and not name.startswith("_")]
    if len(names) != 1:
        raise TypeError(f"{protocol.__name__} is not a one-method power; its public methods: {names}")
    return names[0]
