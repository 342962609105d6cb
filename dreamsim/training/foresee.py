"""What a run will need, measured and told before it starts."""

from __future__ import annotations

import math
import shutil
import time
from copy import deepcopy
from pathlib import Path
from typing import Any

import lightning
import numpy as np
from gymnasium import spaces

from dreamsim.core import tree
from dreamsim.core.checks import random_segment
from dreamsim.core.random import Stream
from dreamsim.data.module import Experience
from dreamsim.doctor import GIB, memory
from dreamsim.training.learner import Learner

PROBE_SECONDS = 0.3


class Foresee(lightning.Callback):
    """Says before a run how much memory, disk and time it will take; refuses what cannot fit."""

    def on_train_start(self, trainer: Any, module: Any) -> None:
        """Measure and print. Raises MemoryError or OSError where replay or store cannot fit."""
        experience = trainer.datamodule
        if not isinstance(experience, Experience) or not trainer.is_global_zero:
            return
        left = experience.env_steps - experience.collector.env_steps
        disk = stored_bytes(experience, left)
        _check_room(experience.bytes_needed(), disk, Path(trainer.default_root_dir))
        seconds = left * seconds_per_step(experience)
        if experience.updates:
            seconds += experience.updates * left * seconds_per_update(module)
        if module.plans:
            seconds += left * seconds_per_plan(module)
        print(
            f"{_amount(experience.bytes_needed())} of memory for replay, up to {_amount(disk)} on disk, "
            f"about {math.ceil(seconds / 60)} min for {left:,} environment steps, "
            f"evaluations {'' if experience.updates else 'and learning '}apart"
        )


def stored_bytes(experience: Experience, env_steps: int) -> int:
    """Return what the store takes at most for environment steps, action repeat counted."""
    parts = experience.codec.observation_space.spaces.values()
    step = sum(int(np.prod(part.shape or ())) * np.dtype(part.dtype).itemsize for part in parts)
    step += 4 * experience.codec.action_size + 4
    return math.ceil(env_steps / experience.repeat) * step


def seconds_per_step(experience: Experience) -> float:
    """Time random actions in one environment of its own; an environment step is one repeat."""
    env = experience.env()
    space: spaces.Space = env.action_space
    space.seed(0)
    env.reset(seed=0)
    began, count = time.perf_counter(), 0
    while time.perf_counter() - began < PROBE_SECONDS:
        _, _, terminated, truncated, _ = env.step(space.sample())
        count += 1
        if terminated or truncated:
            env.reset()
    env.close()
    return (time.perf_counter() - began) / count / experience.repeat


def seconds_per_update(module: Any) -> float:
    """Time gradient steps of a copy on random windows."""
    experience = module.experience
    codec = experience.codec
    batch = random_segment(codec.observation_space, codec.action_space, 0, experience.batch, experience.length)
    with Stream(0):
        copies = [deepcopy(part) for part in (module.model, module.policy, module.objective)]
        learner = Learner(*copies)
        learner.update(batch)
        began, count = time.perf_counter(), 0
        while time.perf_counter() - began < PROBE_SECONDS:
            learner.update(batch)
            count += 1
    return (time.perf_counter() - began) / count


def seconds_per_plan(module: Any) -> float:
    """Time a decision of the planner for all environments at once; return its share of one environment step."""
    experience = module.experience
    codec, rows = experience.codec, experience.env_count
    windows = random_segment(codec.observation_space, codec.action_space, 0, rows, 1)
    obs = tree.to({name: value[:, 0] for name, value in windows.obs.items()}, module.device)
    with Stream(0), module.acting():
        memory = module.collecting.policy.act(obs).memory
        began = time.perf_counter()
        module.collecting.policy.act(obs, memory)
    return (time.perf_counter() - began) / (rows * experience.repeat)


def _check_room(replay: int, disk: int, folder: Path) -> None:
    available, _ = memory()
    if replay > available:
        raise MemoryError(
            f"replay needs {_amount(replay)} and {_amount(available)} of memory are free; "
            "give the data module a smaller capacity"
        )
    free = shutil.disk_usage(folder if folder.exists() else Path()).free
    if disk > free:
        raise OSError(f"the store may need {_amount(disk)} and {folder} has {_amount(free)} free; free some space")


def _amount(size: float) -> str:
    for unit, bytes_in in (("GiB", GIB), ("MiB", 2**20), ("KiB", 2**10)):
        if size >= bytes_in:
            return f"{size / bytes_in:.1f} {unit}"
    return f"{size:.0f} bytes"
