"""Windows per second drawn from replay: ours, torchrl's, and a plain copy of the same bytes.

torchrl is used as TD-MPC2's released code uses it: one row per step with the number of
its episode, SliceSampler, cached trajectory starts, no transforms; in memory
(LazyTensorStorage) and on disk (LazyMemmapStorage). The copies move exactly the bytes of
our batch out of the same store, contiguously, once into a waiting buffer and once into
fresh memory as a new batch needs.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from gymnasium import spaces

from dreamsim.core import tree
from dreamsim.core.spaces import Scale
from dreamsim.core.types import Episode, Segment
from dreamsim.data.replay import Replay
from tests.benchmarks.measure import Effort, compare, effort, measure, publish


class Case(NamedTuple):
    """One setting: what is stored and how much of it is drawn at a time."""

    name: str
    shape: tuple[int, ...]
    pixels: bool
    actions: int
    episodes: int
    steps: int  # in an episode
    batch: int
    length: int


CASES = (
    Case("state, 64 windows of 3", (5,), False, 1, 200, 500, 64, 3),
    Case("state, 256 windows of 5", (24,), False, 6, 200, 500, 256, 5),
    Case("state, 16 windows of 64", (24,), False, 6, 200, 500, 16, 64),
    Case("64x64 pixels, 64 windows of 3", (3, 64, 64), True, 1, 20, 500, 64, 3),
    Case("64x64 pixels, 16 windows of 64", (3, 64, 64), True, 6, 20, 500, 16, 64),
)


def main() -> None:
    logging.disable(logging.INFO)  # torchrl announces its storages
    asked = effort(__doc__, turns=31, seconds=0.04)
    rows = [row for case in CASES for row in bench(case, asked)]
    publish("replay", rows, asked)


def bench(case: Case, asked: Effort) -> list[dict[str, Any]]:
    """Return the rows of one case."""
    episodes = [_episode(case, number) for number in range(case.episodes)]
    replay = _our_replay(case, episodes)
    with tempfile.TemporaryDirectory() as folder:
        parties = {
            "ours": lambda: len(replay.sample(case.batch, case.length).action),
            "torchrl in memory": torchrl(case, episodes, None),
            "torchrl on disk": torchrl(case, episodes, folder),
            **copies(replay.sample(case.batch, case.length), case),
        }
        rates = measure(parties, asked)
    size = batch_bytes(replay.sample(case.batch, case.length))
    note = {"bytes_a_batch": size, "ours_GB_a_second": float(np.median(rates["ours"].wall)) * size / case.batch / 1e9}
    others = [name for name in parties if name != "ours"]
    return [compare(case.name, rates["ours"], rates[name], "windows/s", name) | note for name in others]


def _episode(case: Case, number: int) -> Episode:
    random = np.random.default_rng(number)
    shape = (case.steps + 1, *case.shape)
    obs = random.integers(0, 256, shape, np.uint8) if case.pixels else random.standard_normal(shape, np.float32)
    action = random.uniform(-1, 1, (case.steps, case.actions)).astype(np.float32)
    reward = random.random(case.steps, np.float32)
    return Episode({"observation": obs}, action, reward, False, None, {}, {})


def _our_replay(case: Case, episodes: list[Episode]) -> Replay:
    bounds = (0, 255, case.shape, np.uint8) if case.pixels else (-np.inf, np.inf, case.shape, np.float32)
    space = spaces.Dict({"observation": spaces.Box(*bounds)})
    replay = Replay(case.episodes * (case.steps + 1), space, case.actions, seed=0)
    scale = Scale(np.zeros(case.actions), np.ones(case.actions))
    for episode in episodes:
        replay.add(episode, scale)
    return replay


def torchrl(case: Case, episodes: list[Episode], folder: str | None) -> Callable[[], float]:
    from tensordict import TensorDict
    from torchrl.data import LazyMemmapStorage, LazyTensorStorage, ReplayBuffer, SliceSampler

    rows = case.episodes * (case.steps + 1)
    storage = LazyMemmapStorage(rows, scratch_dir=folder) if folder else LazyTensorStorage(rows)
    width = case.length + 1
    sampler = SliceSampler(slice_len=width, traj_key="episode", strict_length=True, cache_values=True)
    buffer = ReplayBuffer(storage=storage, sampler=sampler, batch_size=case.batch * width)
    for number, episode in enumerate(episodes):
        fields = {
            "observation": torch.from_numpy(episode.obs["observation"]),
            "action": torch.from_numpy(np.concatenate([episode.action, episode.action[-1:]])),
            "reward": torch.from_numpy(np.append(episode.reward, np.float32(0))),
            "terminated": torch.zeros(case.steps + 1, dtype=torch.bool),
            "episode": torch.full((case.steps + 1,), number),
        }
        buffer.extend(TensorDict(fields, [case.steps + 1]))

    def draw() -> float:
        batch = buffer.sample().reshape(case.batch, width)
        assert batch["observation"].shape[:2] == (case.batch, width)
        return case.batch

    return draw


def copies(batch: Segment, case: Case) -> dict[str, Callable[[], float]]:
    size = batch_bytes(batch)
    store = torch.randint(0, 255, (max(8 * size, 2**28),), dtype=torch.uint8)
    waiting = torch.empty(size, dtype=torch.uint8)
    places = iter(_forever(len(store) - size))

    def into(make: Callable[[], torch.Tensor]) -> Callable[[], float]:
        def copy() -> float:
            place = next(places)
            make().copy_(store[place : place + size])
            return case.batch

        return copy

    return {
        "memcpy of the same bytes": into(lambda: waiting),
        "memcpy into fresh memory": into(lambda: torch.empty(size, dtype=torch.uint8)),
    }


def _forever(limit: int):
    random = np.random.default_rng(0)
    places = random.integers(0, limit, 4096).tolist()
    while True:
        yield from places


def batch_bytes(batch: Segment) -> int:
    fields = [batch.obs, batch.action, batch.reward, batch.terminated]
    return sum(leaf.nbytes for leaf in tree.leaves(fields))


if __name__ == "__main__":
    main()
