"""Windows per second drawn from recordings on disk: ours, stable-worldmodel's loaders, torchrl's mapped replay.

Every party holds the same episodes and draws windows of T steps (T + 1 observations) in a
random order in this one process. stable-worldmodel reads HDF5 and Lance through torch's
DataLoader, as its training scripts do; its Lance format keeps images as JPEG, so that its
pixels are not the same bytes. torchrl is set up as in ``bench_replay``, on disk. The
copies move exactly the bytes of our batch out of memory, once into a waiting buffer and
once into fresh memory as a new batch needs. Files lie in the system's cache for all.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium import spaces

from dreamsim.core.types import Episode
from dreamsim.data.store import Store
from dreamsim.data.windows import Windows
from tests.benchmarks.bench_replay import Case, batch_bytes, copies, torchrl
from tests.benchmarks.measure import Effort, compare, effort, measure, publish, quantity

CASES = (
    Case("64x64 pixels, 64 windows of 16", (3, 64, 64), True, 6, 40, 500, 64, 16),
    Case("state, 256 windows of 16", (24,), False, 6, 200, 500, 256, 16),
)
BOUND = 64 * 2**20  # bytes: the recordings of the first case are four times that


def main() -> None:
    logging.disable(logging.INFO)
    asked = effort(__doc__, turns=15, seconds=0.15)
    rows = [row for case in CASES for row in bench(case, asked)]
    publish("loader", rows, asked)


def bench(case: Case, asked: Effort) -> list[dict[str, Any]]:
    """Return the rows of one case."""
    episodes = [_episode(case, number) for number in range(case.episodes)]
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        store = _store(case, episodes, folder / "ours")
        windows = Windows(store, store.codec, case.length, case.batch)
        for number in range(len(windows)):  # every record is compared with its checksum at its first reading
            batch = windows[number]
        bounded = Store(store.folder, limit=BOUND)
        parties = {
            "ours": _drawing(windows, case),
            "ours, bounded": _drawing(Windows(bounded, bounded.codec, case.length, case.batch), case),
            "torchrl, mapped files": torchrl(case, episodes, str(folder)),
            "stable-worldmodel, HDF5": _hdf5(case, episodes, folder / "peer.h5"),
            "stable-worldmodel, Lance": _lance(case, episodes, folder / "peer.lance"),
            **copies(batch, case),
        }
        rates = measure(parties, asked)
    size = batch_bytes(batch)
    note = {"bytes_a_batch": size, "ours_GB_a_second": float(np.median(rates["ours"].wall)) * size / case.batch / 1e9}
    others = [name for name in parties if not name.startswith("ours")]
    rows = [compare(case.name, rates["ours"], rates[name], "windows/s", name) | note for name in others]
    within = f"{case.name}, within {BOUND // 2**20} MiB"
    return [*rows, quantity(within, float(np.median(rates["ours, bounded"].wall)), "windows/s")]


def _episode(case: Case, number: int) -> Episode:
    """Return an episode; images vary smoothly, which suits JPEG."""
    random = np.random.default_rng(number)
    obs = random.standard_normal((case.steps + 1, *case.shape), np.float32)
    if case.pixels:
        obs = random.uniform(0, 255, (case.steps + 1, 3, 4, 4)).repeat(16, 2).repeat(16, 3).astype(np.uint8)
    action = random.uniform(-1, 1, (case.steps, case.actions)).astype(np.float32)
    return Episode({"observation": obs}, action, random.random(case.steps, np.float32), False, None, {}, {})


def _drawing(windows: Windows, case: Case) -> Callable[[], float]:
    numbers = iter(range(10**9))

    def draw() -> float:
        assert len(windows[next(numbers)].action) == case.batch
        return case.batch

    return draw


def _store(case: Case, episodes: list[Episode], folder: Path) -> Store:
    bounds = (0, 255, case.shape, np.uint8) if case.pixels else (-np.inf, np.inf, case.shape, np.float32)
    space = spaces.Dict({"observation": spaces.Box(*bounds)})
    with Store.create(folder, space, spaces.Box(-1.0, 1.0, (case.actions,))) as store:
        for episode in episodes:
            store.append(episode)
    return Store(folder)


def _columns(case: Case, episodes: list[Episode]) -> Iterator[dict[str, list[np.ndarray]]]:
    """Yield the peers' episodes: columns of equal length, images (H, W, C); the last action and reward are not used."""
    for episode in episodes:
        assert episode.reward is not None
        obs = episode.obs["observation"]
        yield {
            "pixels" if case.pixels else "state": list(obs.transpose(0, 2, 3, 1) if case.pixels else obs),
            "action": list(np.concatenate([episode.action, episode.action[-1:]])),
            "reward": list(np.append(episode.reward, np.float32(0))[:, None]),
        }


def _hdf5(case: Case, episodes: list[Episode], path: Path) -> Callable[[], float]:
    from stable_worldmodel.data.formats.hdf5 import HDF5Dataset, HDF5Writer

    with HDF5Writer(path) as writer:
        writer.write_episodes(_columns(case, episodes))
    return _loading(HDF5Dataset(path=path, num_steps=case.length + 1), case)


def _lance(case: Case, episodes: list[Episode], path: Path) -> Callable[[], float]:
    from stable_worldmodel.data.formats.lance import LanceDataset, LanceWriter

    with LanceWriter(path) as writer:
        writer.write_episodes(_columns(case, episodes))
    return _loading(LanceDataset(path=path, num_steps=case.length + 1), case)


def _loading(dataset: Any, case: Case) -> Callable[[], float]:
    loader = torch.utils.data.DataLoader(dataset, case.batch, shuffle=True, drop_last=True)
    batches = iter(_endless(loader))

    def draw() -> float:
        assert next(batches)["action"].shape[:2] == (case.batch, case.length + 1)
        return case.batch

    return draw


def _endless(loader: Any) -> Iterator[Any]:
    while True:
        yield from loader


if __name__ == "__main__":
    main()
