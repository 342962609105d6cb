"""Where batches come from, for Lightning: experience that arrives, and recordings that are there."""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import lightning
import numpy as np
import torch

from dreamsim.core import tree
from dreamsim.core.parts import Description, describe, portable
from dreamsim.core.protocols import Policy
from dreamsim.core.random import derive_seed
from dreamsim.core.types import Episode, Segment
from dreamsim.data.ahead import Behind
from dreamsim.data.collect import Collector
from dreamsim.data.convert import as_store
from dreamsim.data.lived import lengths, lived_since, whole
from dreamsim.data.replay import Replay
from dreamsim.data.store import Store
from dreamsim.data.windows import Windows, leaks, loader, split
from dreamsim.envs.adapt import vectorise

STATISTICS_BYTES = 64 * 2**20  # of the windows that a model's statistics are taken from


class Experience(lightning.LightningDataModule):
    """An environment, what was lived in it, and the batches learned from it.

    Args:
        env: makes one raw environment, for example ``dreamsim.envs.control.DeepMindControl``.
        env_steps: environment steps of the whole run, action repeat counted.
        warmup: environment steps before learning begins, taken by the exploring policy's noise alone.
        envs: environments stepped together.
        processes: processes that step them; 0: in this one, the fastest for cheap environments.
        ahead: live in a second process while this one learns, with weights exactly one round old; for
            environments that take as long as the learning.
        updates: gradient steps per environment step.
        batch: windows a gradient step learns from.
        length: steps of a window (T).
        capacity: steps held in memory (an action repeated is one step); 0: the whole run.
        vector_steps: steps of all environments between two rounds of learning.
        evaluate_every: environment steps between evaluations.
        evaluate_episodes: episodes of an evaluation.
        keep_every: environment steps between checkpoints.
    """

    def __init__(
        self,
        env: Callable[[], gym.Env],
        env_steps: int = 100_000,
        warmup: int = 4_000,
        envs: int = 4,
        processes: int = 0,
        ahead: bool = False,
        updates: float = 0.25,
        batch: int = 64,
        length: int = 3,
        capacity: int = 0,
        vector_steps: int = 16,
        evaluate_every: int = 10_000,
        evaluate_episodes: int = 10,
        keep_every: int = 10_000,
    ) -> None:
        super().__init__()
        at_least(1, env_steps=env_steps, envs=envs, batch=batch, length=length, vector_steps=vector_steps)
        at_least(1, evaluate_every=evaluate_every, evaluate_episodes=evaluate_episodes, keep_every=keep_every)
        at_least(0, warmup=warmup, processes=processes, updates=updates, capacity=capacity)
        if warmup >= env_steps:
            raise ValueError(f"warmup must end before the run does, got {warmup:,} of {env_steps:,} environment steps")
        self.env, self.env_steps, self.warmup = portable(env), env_steps, warmup
        self.env_count, self.processes, self.ahead, self.updates = envs, processes, ahead, updates
        self.batch, self.length, self.vector_steps = batch, length, vector_steps
        self.evaluate_every, self.evaluate_episodes, self.keep_every = evaluate_every, evaluate_episodes, keep_every
        self._asked_capacity = capacity
        self._counted = 0  # environment steps that updates were already reckoned for
        self._debt = 0.0  # updates owed
        self._ready = False
        self.saved_beliefs: list[torch.Tensor] = []  # of a resumed run, until the model gives them their shape

    def setup(self, stage: str) -> None:
        """Make environments, replay and store. The seed is the one Lightning's ``seed_everything`` set."""
        if self._ready:
            return
        self._ready = True
        seed = torch.initial_seed() & 0x7FFFFFFF
        self._judging = vectorise(self.env, min(self.evaluate_episodes, 10), self.processes)
        self.codec = self._judging.codec
        self.repeat = int(self._judging.metadata.get("action_repeat", 1))
        self.capacity = self._asked_capacity or self._whole_run()
        self.replay = Replay(
            self.capacity, self.codec.observation_space, self.codec.action_size, seed=derive_seed(seed, "replay")
        )
        make = functools.partial(_collector, self.env, self.env_count, self.processes, derive_seed(seed, "collect"))
        self.collector: Collector | Behind = Behind(make) if self.ahead else make()
        self.judge = Collector(self._judging, self.codec, seed=derive_seed(seed, "judge"))
        self.store = self._open_store()

    @property
    def per_round(self) -> int:
        """Steps that one round collects, an action repeated being one."""
        return self.vector_steps * self.env_count

    @property
    def rounds(self) -> int:
        """Rounds of collecting and learning in the whole run."""
        return math.ceil(self.env_steps / (self.per_round * self.repeat))

    @property
    def learning(self) -> bool:
        """Say whether there is something to learn from and the warm-up is over."""
        return self.replay.episodes > 0 and self.collector.env_steps > self.warmup

    def bytes_needed(self) -> int:
        """Return the exact memory of the replay when full."""
        return Replay.bytes_needed(self.capacity, self.codec.observation_space, self.codec.action_size)

    def gather(self, policy: Any) -> list[Episode]:
        """Live through one round of vector steps; store and remember the episodes that ended."""
        try:
            episodes = self.collector.collect(policy, self.vector_steps)
        except BaseException:
            self._remember(self.collector.finished)
            self.collector.finished = []
            self.store.flush()
            raise
        self._remember(episodes)
        return episodes

    def evaluate(self, policy: Policy) -> np.ndarray:
        """Return the returns (N,) of ``evaluate_episodes`` episodes, begun from the same seeds each time."""
        episodes = self.judge.episodes(policy, self.evaluate_episodes)
        return np.array([float(np.sum(np.asarray(episode.reward))) for episode in episodes])

    def draw(self) -> Iterator[Segment]:
        """Yield the batches owed for the environment steps taken since the last call."""
        for _ in range(self._owed()):
            yield self.replay.sample(self.batch, self.length)

    def train_dataloader(self) -> Rounds:
        """Return the run's rounds."""
        return Rounds(self)

    # Not Lightning's state_dict, which it files under the class's name and passes over when that has changed.
    def instant(self) -> dict[str, Any]:
        """Return collector, replay cursor and updates owed, after making what was lived durable in the store."""
        self.store.flush()
        return {
            "collector": self.collector.state_dict(),
            "replay": self.replay.state_dict(),
            "counted": self._counted,
            "debt": self._debt,
            "stored": len(self.store),
            "beliefs": self.replay.beliefs(),
        }

    def go_back(self, instant: dict[str, Any]) -> None:
        """Return to an instant: later episodes go to the store's ``orphans``, slots repeat their actions."""
        self.store.cut(instant["stored"])
        self.replay.rebuild(instant["replay"], self.store, self.codec.scale)
        self.saved_beliefs = instant["beliefs"]
        self._counted, self._debt = instant["counted"], instant["debt"]
        self.collector.load_state_dict(instant["collector"])

    def teardown(self, stage: str) -> None:
        """Close environments and store."""
        if self._ready:
            self.collector.close()
            self._judging.close()
            self.store.close()
            self._ready = False

    def _whole_run(self) -> int:
        """Return a capacity that holds the whole run: its steps, and a row for each episode's last observation."""
        steps = math.ceil(self.env_steps / self.repeat) + self.per_round
        shortest = max(1, int(self._judging.metadata.get("episode_steps") or 100))
        return steps + steps // shortest + self.env_count

    def _owed(self) -> int:
        new = self.collector.env_steps - self._counted
        self._counted = self.collector.env_steps
        if self.learning:
            self._debt += self.updates * new
        owed = int(self._debt)
        self._debt -= owed
        return owed

    def _remember(self, episodes: list[Episode]) -> None:
        for episode in episodes:
            self.store.append(episode)
            self.replay.add(episode, self.codec.scale)

    def _open_store(self) -> Store:
        folder = Path(self.trainer.default_root_dir) / "store"
        if (folder / "store.json").exists():
            return Store(folder)
        rate = self._judging.metadata.get("render_fps")
        return Store.create(folder, self.codec.raw_observation_space, self.codec.raw_action_space, rate=rate)


class OnPolicy(Experience):
    """An environment, and after each round exactly the steps just lived in it, as one batch.

    Every part of an episode is a row of that batch (B, T), those that go on included; what is made of it, passes
    and minibatches, is the objective's (``dreamsim.training.objectives.ppo``). Nothing comes before learning: collect
    by ``dreamsim.imagination.explore.AsItIs``.

    Args:
        env: makes one raw environment, for example ``dreamsim.envs.control.DeepMindControl``.
        env_steps: environment steps of the whole run, action repeat counted.
        envs: environments stepped together.
        processes: processes that step them; 0: in this one, the fastest for cheap environments.
        vector_steps: steps of all environments in a round.
        evaluate_every: environment steps between evaluations.
        evaluate_episodes: episodes of an evaluation.
        keep_every: environment steps between checkpoints.
    """

    def __init__(
        self,
        env: Callable[[], gym.Env],
        env_steps: int = 100_000,
        envs: int = 8,
        processes: int = 0,
        vector_steps: int = 128,
        evaluate_every: int = 10_000,
        evaluate_episodes: int = 10,
        keep_every: int = 10_000,
    ) -> None:
        super().__init__(
            env,
            env_steps,
            warmup=0,
            envs=envs,
            processes=processes,
            updates=0,
            vector_steps=vector_steps,
            evaluate_every=evaluate_every,
            evaluate_episodes=evaluate_episodes,
            keep_every=keep_every,
        )
        self._lived: list[Episode] = []

    def gather(self, policy: Any) -> list[Episode]:
        """Live through one round of vector steps, and keep what was lived for ``draw``."""
        collector = self.collector
        assert isinstance(collector, Collector)  # none lives ahead: it would act by older weights
        before = lengths(collector.going())
        episodes = super().gather(policy)
        self._lived = lived_since(before, [*episodes, *collector.going()])
        return episodes

    def draw(self) -> Iterator[Segment]:
        """Yield the steps of the last round."""
        yield whole(self._lived, self.codec.observation_space, self.codec.scale)


def _collector(env: Callable[[], gym.Env], count: int, processes: int, seed: int) -> Collector:
    envs = vectorise(env, count, processes)
    return Collector(envs, envs.codec, seed=seed)


def at_least(low: float, **numbers: float) -> None:
    """Raise ValueError, naming it, for a number below ``low``."""
    for name, value in numbers.items():
        if value < low:
            raise ValueError(f"{name} must be {low} or more, got {value}")


class Rounds:
    """The rounds a run has left, as a loader: each item draws its batches only when it is iterated.

    It has a length, so that Lightning takes no item before it is needed.
    """

    def __init__(self, experience: Experience) -> None:
        self.experience = experience
        done = experience.collector.env_steps // (experience.per_round * experience.repeat)
        self._left = max(0, experience.rounds - done)

    def __len__(self) -> int:
        return self._left

    def __iter__(self) -> Iterator[Draws]:
        return (Draws(self.experience) for _ in range(self._left))


class Draws:
    """The batches of one round, drawn while they are iterated."""

    def __init__(self, experience: Experience) -> None:
        self.experience = experience

    def __iter__(self) -> Iterator[Segment]:
        return self.experience.draw()


class Recordings(lightning.LightningDataModule):
    """Batches from a store of recorded episodes; a share of the episodes is held out.

    Args:
        data: folder of the store (``RUN/store`` of a run, or one that was converted), or a recording in any format
            that ``dreamsim convert`` reads; that is converted once, into a store beside it.
        batches: batches to learn from in all.
        batch: windows in a batch.
        length: steps of a window (T).
        hold_out: one of this many episodes is held out; the split is by episode.
        workers: processes that read ahead; 0: this one.
        memory: MiB of the recordings that all these processes together keep in their memory at most, beside the
            batches; 0: what the system likes.
        env: makes the environment the recordings came from, where it exists; the run folder remembers it.
    """

    def __init__(
        self,
        data: str,
        batches: int = 10_000,
        batch: int = 256,
        length: int = 3,
        hold_out: int = 10,
        workers: int = 0,
        memory: int = 0,
        env: Callable[[], gym.Env] | None = None,
    ) -> None:
        super().__init__()
        at_least(1, batches=batches, batch=batch, length=length)
        at_least(2, hold_out=hold_out)
        at_least(0, workers=workers, memory=memory)
        self.data, self.batches, self.batch, self.length = Path(data), batches, batch, length
        self.hold_out, self.workers, self.memory, self.env = hold_out, workers, memory, env
        self.used = 0  # batches learned from so far
        self._ready = False

    def setup(self, stage: str) -> None:
        """Open the store, split it by episode, and say what the windows reach."""
        if self._ready:
            return
        self._ready = True
        self.seed = torch.initial_seed() & 0x7FFFFFFF
        self.data = as_store(self.data, Path(self.trainer.default_root_dir if self.trainer else "."))
        each = self.memory * 2**20 // (self.workers + 1)  # held-out windows are read by this process
        self.store = Store(self.data, limit=each or None)
        self.codec = self.store.codec
        every = min(self.hold_out, max(2, len(self.store)))
        sides = split(len(self.store), every, self.seed)
        self._origin = {"recordings": str(self.data), "episodes": len(self.store), "hold_out": every}
        copies = leaks(self.store, sides)
        if copies:
            warnings.warn(f"{len(copies)} held-out episodes equal training episodes, first {copies[0]}", stacklevel=2)
        cut = functools.partial(Windows, self.store, self.codec, self.length, self.batch, seed=self.seed)
        self.windows, self.held_out = cut(only=sides.train), cut(only=sides.held_out)
        print(f"{self.data}: {self.windows.coverage()}; {len(sides.held_out)} episodes held out")

    def statistics_batch(self) -> Segment:
        """Return windows for the model's statistics, from training episodes only."""
        first = self.windows[0]
        count = min(4096 // self.batch, STATISTICS_BYTES // sum(leaf.nbytes for leaf in tree.leaves(first)))
        parts = [first, *(self.windows[number] for number in range(1, count))]
        return tree.map(lambda *leaves: torch.cat(leaves), *parts)

    def origin(self) -> dict[str, Any]:
        """Say which episodes were learned from and, by ``split``, which were held out."""
        return {"seed": self.seed, **self._origin}

    def environment_part(self) -> dict[str, Description]:
        """Return the part of a run folder that names the environment; empty without one."""
        return {} if self.env is None else {"environment": describe(self.env)}

    def train_dataloader(self) -> Remaining:
        """Return the batches that are not used yet."""
        return Remaining(self)

    def val_dataloader(self) -> Iterable[Segment]:
        """Return all held-out windows in their order."""
        return InOrder(self.held_out)


class Remaining:
    """The batches behind those used; as long as all of them, which is what Lightning counts."""

    def __init__(self, recordings: Recordings) -> None:
        self.recordings = recordings

    def __len__(self) -> int:
        return self.recordings.batches

    def __iter__(self) -> Iterator[Segment]:
        todo = range(self.recordings.used, self.recordings.batches)
        return iter(loader(self.recordings.windows, todo, self.recordings.workers))


class InOrder:
    """All windows once, in the order of the data."""

    def __init__(self, windows: Windows) -> None:
        self.windows = windows

    def __len__(self) -> int:
        return len(self.windows)

    def __iter__(self) -> Iterator[Segment]:
        return (self.windows.in_order(number) for number in range(len(self.windows)))
