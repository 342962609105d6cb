"""What goes wrong with recordings elsewhere: no environment, merged episodes, file handles shared by workers."""

import hashlib

import gymnasium as gym
import h5py
import minari
import numpy as np
import pytest
import torch
from gymnasium import spaces
from minari.data_collector.episode_buffer import EpisodeBuffer
from minari.dataset.minari_storage import MinariStorage

from dreamsim.core import tree
from dreamsim.data.collect import Collector
from dreamsim.data.formats import child, hdf5
from dreamsim.data.formats import minari as minari_format
from dreamsim.data.module import Recordings
from dreamsim.data.store import Store
from dreamsim.data.windows import Windows, loader
from dreamsim.envs.adapt import vectorise
from dreamsim.envs.toy import Line
from dreamsim.imagination.explore import Noisy
from worldmodels.actors import SquashedGaussian


def read(module, source, target):
    child.read(child.Job("read", "", "", str(source), str(target), 64, 60), module)
    return Store(target)


def minari_dataset(folder, lengths, **metadata):
    seen, action = spaces.Box(-1e3, 1e3, (2,), np.float64), spaces.Box(-1, 1, (1,), np.float32)
    (folder / "data").mkdir(parents=True)
    storage = MinariStorage.new(folder / "data", seen, action, data_format="hdf5")
    storage.update_metadata({"dataset_id": "made/up-v0", "minari_version": minari.__version__, **metadata})
    storage.update_episodes(
        EpisodeBuffer(
            number, None, None, np.full((steps + 1, 2), number) + np.arange(steps + 1)[:, None] / 64,
            np.full((steps, 1), number / 64, np.float32), np.ones(steps), np.zeros(steps, bool),
            np.arange(steps) == steps - 1,
        )
        for number, steps in enumerate(lengths)
    )  # fmt: skip
    return folder


def test_an_environment_that_cannot_be_made_is_not_needed(tmp_path):
    """The spaces stand in the recording; nothing is imported or made to read it, and a module learns from it."""
    spec = gym.envs.registration.EnvSpec("Gone-v3", entry_point="package_that_is_gone:Env").to_json()
    source = minari_dataset(tmp_path / "set", [5] * 12, env_spec=spec)
    with pytest.raises(ModuleNotFoundError):
        minari.MinariDataset(source / "data").recover_environment()
    store = read(minari_format, source, tmp_path / "store")
    assert store.codec.raw_observation_space == spaces.Box(-1e3, 1e3, (2,), np.float64)
    assert "Gone-v3" in store.meta["minari"]["env_spec"]
    module = Recordings(str(tmp_path / "store"), batch=4, length=3)
    module.setup("fit")
    assert module.windows[0].obs["observation"].shape == (4, 4, 2) and module.environment_part() == {}


def test_twenty_rollouts_with_resets_that_nobody_announced_are_twenty_episodes(tmp_path):
    """Whoever collects owns the resets, so none can be forgotten."""
    envs = vectorise(Line, 3)
    actor = Noisy(SquashedGaussian(envs.codec.observation_space, envs.codec.action_space))
    store = Store.create(tmp_path / "store", envs.codec.raw_observation_space, envs.codec.raw_action_space)
    for episode in Collector(envs, envs.codec, seed=1).episodes(actor, 20):
        store.append(episode)
    store.close()
    assert len(store) == 20 and len({episode.meta["seed"] for episode in store}) == 20
    assert len({float(episode.obs["observation"][0, 0]) for episode in store}) == 20


@pytest.mark.parametrize("ending", ["terminals", "timeouts"])
def test_twenty_rollouts_in_one_array_are_twenty_episodes(ending, tmp_path):
    """A recorder that writes rows until the end of the file tells episodes apart by their marks alone."""
    rows, ends = np.arange(200.0), np.arange(200) % 10 == 9
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        file["observations"], file["next_observations"] = rows[:, None], rows[:, None] + 1 - 0.5 * ends[:, None]
        file["actions"], file["rewards"] = np.zeros((200, 1)), np.ones(200)
        file["terminals"] = ends & (ending == "terminals")
        file["timeouts"] = ends & (ending == "timeouts")
    store = read(hdf5, tmp_path / "a.hdf5", tmp_path / "store")
    assert store.steps.tolist() == [10] * 20
    assert [episode.obs["observation"][:, 0].tolist() for episode in store] == [
        [*range(10 * number, 10 * number + 10), 10 * number + 9.5] for number in range(20)
    ]
    assert {episode.terminated for episode in store} == {ending == "terminals"}


def test_twenty_rollouts_in_one_episode_are_split_and_no_step_crosses_a_border(tmp_path):
    """What an end inside an episode led to is either side's observation, so neither learns from it."""
    seen = spaces.Box(-1e3, 1e3, (1,), np.float64)
    (tmp_path / "set" / "data").mkdir(parents=True)
    storage = MinariStorage.new(
        tmp_path / "set" / "data", seen, spaces.Box(-1, 1, (1,), np.float32), data_format="hdf5"
    )
    storage.update_metadata({"dataset_id": "made/up-v0", "minari_version": minari.__version__})
    rows = np.arange(201.0)[:, None]
    ends = np.arange(200) % 10 == 9
    one = EpisodeBuffer(0, None, None, rows, np.zeros((200, 1), np.float32), np.ones(200), np.zeros(200, bool), ends)
    storage.update_episodes([one])
    store = read(minari_format, tmp_path / "set", tmp_path / "store")
    seen = [episode.obs["observation"][:, 0].tolist() for episode in store]
    assert seen[0] == [*range(10)] and seen[19] == [*range(191, 201)]
    assert seen[1:19] == [[*range(10 * number + 1, 10 * number + 10)] for number in range(1, 19)]


def test_four_workers_read_what_none_reads(tmp_path):
    """A handle of HDF5 shared by processes gives wrong bytes; a store is mapped by each process for itself."""
    store = read(minari_format, minari_dataset(tmp_path / "set", [7, 3, 12, 30] * 5), tmp_path / "store")
    windows = Windows(store, store.codec, 5, 8, seed=3)
    sums = {}
    for workers in (0, 4):
        batches = loader(windows, range(12), workers)
        sums[workers] = [hashlib.sha256(b"".join(map(_bytes, tree.leaves(batch)))).hexdigest() for batch in batches]
    assert sums[0] == sums[4] and len(set(sums[0])) == 12


def _bytes(leaf):
    return np.ascontiguousarray(torch.as_tensor(leaf).numpy()).tobytes()
