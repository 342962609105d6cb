"""Policies that are not ours, as Policies on real observations.

Every one of them is assumed to have been made for the environment as it is: raw
observations in, actions in the environment's own units out. Three kinds are known by
how they are named:

- ``mine.load``: an import path in the working directory (or an installed package);
- ``policy.zip``: what Stable-Baselines3's ``model.save`` wrote;
- ``policy.onnx``: a network for onnxruntime.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate
from torch import Tensor

from dreamsim.core.parts import resolve
from dreamsim.core.protocols import Policy
from dreamsim.core.spaces import Codec
from dreamsim.core.types import Act, Obs


class BadPolicy(ValueError):
    """A foreign policy cannot be read, or does not fit the environment."""


class Foreign(NamedTuple):
    """A policy of someone else and what it was taken for."""

    policy: Policy
    face: str  # one sentence for the report: what is assumed about its environment


def load(source: str, codec: Codec) -> Foreign:
    """Return the policy that ``source`` names, for the environment of ``codec``. Raises BadPolicy or BadPart."""
    if source.endswith(".zip"):
        from dreamsim.evaluation.foreign_zip import FACE, StableBaselines

        return Foreign(StableBaselines(_existing(source), codec), FACE)
    if source.endswith(".onnx"):
        from dreamsim.evaluation.foreign_onnx import FACE, Onnx

        return Foreign(Onnx(_existing(source), codec), FACE)
    owner = _made(source)
    if isinstance(owner, Policy):
        return Foreign(owner, "dreamsim policy: acts on the codec's observations and in [-1, 1]")
    return Foreign(Predicting(owner, codec, source), "user's policy: raw observations in, raw actions out")


@runtime_checkable
class Predicts(Protocol):
    """What many libraries call acting: ``predict(observation, ...) -> action`` or ``(action, state)``."""

    def predict(self, observation: Any) -> Any:
        """Return an action, or an action and a recurrent state."""


class Predicting:
    """A callable obs -> action, or an object with ``predict``, in raw units and one row at a time.

    ``predict`` is given ``deterministic=True`` and ``state=`` (of the same episode, None at
    its start) where it takes them. A plain callable must not remember anything, for rows of
    several episodes pass through it in turn. One that declares ``batched = True`` is
    called once with all rows stacked along a leading axis and returns stacked actions.
    """

    def __init__(self, owner: Any, codec: Codec, name: str) -> None:
        self.codec, self.name = codec, name
        self._call: Callable = owner.predict if isinstance(owner, Predicts) else owner
        taken = _parameters(self._call)
        self._options = {"deterministic": True} if "deterministic" in taken else {}
        self._stateful = "state" in taken
        self._batched = bool(getattr(owner, "batched", False))

    def act(self, view: Obs, memory: Any = None, first: Tensor | None = None, applied: Tensor | None = None) -> Act:
        """Act on real observations (B, ...)."""
        arrays = {name: value.cpu().numpy() for name, value in view.items()}
        count = len(next(iter(arrays.values())))
        rows = [self.codec.decode_obs({name: value[row] for name, value in arrays.items()}) for row in range(count)]
        if self._batched:
            raw, memory = self._all(rows), None
        else:
            begun = [True] * count if first is None else first.tolist()
            states = [None] * count if memory is None else memory
            found = [self._one(obs, None if new else s) for obs, s, new in zip(rows, states, begun, strict=True)]
            raw, memory = [action for action, _ in found], [state for _, state in found]
        units = np.stack([self._unit(action) for action in raw])
        return Act(torch.from_numpy(units).to(next(iter(view.values())).device), memory)

    def _one(self, obs: Any, state: Any) -> tuple[Any, Any]:
        answer = self._call(obs, **self._options, **({"state": state} if self._stateful else {}))
        return answer if isinstance(answer, tuple) and len(answer) == 2 and self._is_pair() else (answer, None)

    def _is_pair(self) -> bool:
        return not isinstance(self.codec.raw_action_space, spaces.Tuple) or self._stateful

    def _all(self, rows: list[Any]) -> list[Any]:
        space = self.codec.raw_observation_space
        room: Any = create_empty_array(space, len(rows))
        stacked = concatenate(space, rows, room)
        answer = self._call(stacked, **self._options)
        actions = answer[0] if isinstance(answer, tuple) and self._is_pair() else answer
        try:
            return list(iterate(batch_space(self.codec.raw_action_space, len(rows)), actions))
        except (TypeError, ValueError, KeyError) as error:
            raise self._bad(actions, f" for each of {len(rows)} rows") from error

    def _unit(self, action: Any) -> np.ndarray:
        space = self.codec.raw_action_space
        if isinstance(space, spaces.Box) and np.shape(action) != space.shape:
            raise self._bad(action)
        try:
            return self.codec.encode_action(action)
        except (TypeError, ValueError, KeyError, IndexError) as error:
            raise self._bad(action) from error

    def _bad(self, action: Any, where: str = "") -> BadPolicy:
        return BadPolicy(
            f"{self.name} must return an action of {self.codec.raw_action_space}{where}, "
            f"came {type(action).__name__} of shape {np.shape(action)}: {np.asarray(action, object)!r:.80}"
        )


def raw_part(codec: Codec, name: str) -> spaces.Space:
    """Return the environment's own space of one observation field of the codec."""
    space: Any = codec.raw_observation_space
    for key in name.split("/") if isinstance(space, (spaces.Dict, spaces.Tuple)) else ():
        space = space[int(key)] if isinstance(space, spaces.Tuple) else space[key]
    return space


def raw_names(space: spaces.Space, codec: Codec, prefix: str = "") -> list[str]:
    """Return the codec's observation names in the environment's own order, in which others lay them end to end."""
    if isinstance(space, spaces.Dict):
        pairs = list(space.spaces.items())
    elif isinstance(space, spaces.Tuple):
        pairs = [(str(number), part) for number, part in enumerate(space.spaces)]
    else:
        return [prefix[:-1] or next(iter(codec.observation_space.spaces))]
    return [name for key, part in pairs for name in raw_names(part, codec, f"{prefix}{key}/")]


def _made(source: str) -> Any:
    """Call what an import path names, unless it already is a policy."""
    target = resolve(source)
    if not inspect.isclass(target) and isinstance(target, (Policy, Predicts)):
        return target
    if not callable(target):
        raise BadPolicy(
            f"{source} is a {type(target).__name__}; name a function without arguments that returns a policy"
        )
    try:
        inspect.signature(target).bind()
    except TypeError as error:
        raise BadPolicy(
            f"{source} takes arguments {inspect.signature(target)}; name a function without arguments that returns "
            "the policy, for example: def load(): return my_policy"
        ) from error
    owner = target()
    if not (callable(owner) or isinstance(owner, (Policy, Predicts))):
        raise BadPolicy(
            f"{source} returned a {type(owner).__name__}; expected a callable obs -> action, an object with "
            "predict(obs), or a dreamsim policy with act(view, memory, first, applied)"
        )
    return owner


def _existing(source: str) -> Path:
    path = Path(source)
    if not path.is_file():
        raise BadPolicy(f"there is no file {source} (looked from {Path.cwd()})")
    return path


def _parameters(call: Callable) -> set[str]:
    try:
        return set(inspect.signature(call).parameters)
    except ValueError:  # a builtin or compiled callable that tells no signature
        return set()
