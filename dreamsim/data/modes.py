"""What one vector step means in each of Gymnasium's autoreset modes, read alike.

Only the collector uses this file; nothing else knows that modes exist.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv

Arrays = dict[str, np.ndarray]


class Seen(NamedTuple):
    """One vector step, every mode read alike. All fields are (N, ...)."""

    reached: Arrays  # what the action led to; the last observation of an ended row
    following: Arrays  # what the policy acts on next; for a DISABLED row that ended, not yet reset
    reward: np.ndarray
    terminated: np.ndarray
    over: np.ndarray  # terminated or truncated
    real: np.ndarray  # False: the environment used this step to reset itself
    begun: np.ndarray  # the row's next episode has begun, at ``following``
    infos: dict[str, Any]


def read_disabled(
    waiting: np.ndarray, obs: Arrays, reward: np.ndarray, terminated: np.ndarray, truncated: np.ndarray, infos: dict
) -> Seen:
    none = np.zeros_like(waiting)
    return Seen(obs, obs, reward, terminated, terminated | truncated, ~none, none, infos)


def read_next_step(
    waiting: np.ndarray, obs: Arrays, reward: np.ndarray, terminated: np.ndarray, truncated: np.ndarray, infos: dict
) -> Seen:
    return Seen(obs, obs, reward, terminated, terminated | truncated, ~waiting, waiting, infos)


def read_same_step(
    waiting: np.ndarray, obs: Arrays, reward: np.ndarray, terminated: np.ndarray, truncated: np.ndarray, infos: dict
) -> Seen:
    over = terminated | truncated
    reached = {name: value.copy() for name, value in obs.items()}
    for row in np.flatnonzero(over):
        for name, value in infos["final_obs"][row].items():
            reached[name][row] = value
    return Seen(reached, obs, reward, terminated, over, np.ones_like(waiting), over, infos)


READERS: dict[AutoresetMode, Callable[..., Seen]] = {
    AutoresetMode.DISABLED: read_disabled,
    AutoresetMode.NEXT_STEP: read_next_step,
    AutoresetMode.SAME_STEP: read_same_step,
}


def declared_mode(envs: VectorEnv) -> AutoresetMode:
    """Return the mode in which a vector environment says it resets itself."""
    mode = envs.metadata.get("autoreset_mode")
    if mode is None:
        raise ValueError(
            f'{envs} does not say when it resets itself; set its metadata["autoreset_mode"] to a '
            "gymnasium.vector.AutoresetMode, or make it by dreamsim.envs.adapt.vectorise"
        )
    return AutoresetMode(mode)
