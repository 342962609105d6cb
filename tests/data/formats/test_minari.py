"""Minari datasets from Minari's own writer, in every layout, to a store and back, equal in every field."""

import json

import minari
import numpy as np
import pytest
from gymnasium import spaces
from minari.data_collector.episode_buffer import EpisodeBuffer
from minari.dataset.minari_storage import MinariStorage

from dreamsim.data.formats import child, minari_arrow
from dreamsim.data.formats import minari as ours
from dreamsim.data.formats.recording import BadRecording, LeftOut
from dreamsim.data.store import Store

SEEN = spaces.Dict(
    arm=spaces.Box(-1, 1, (3,), np.float64),
    pair=spaces.Tuple((spaces.Discrete(4, start=1), spaces.Text(8))),
    image=spaces.Box(0, 255, (32, 34, 3), np.uint8),
    grid=spaces.MultiDiscrete([3, 4]),
    counts=spaces.Box(0, 2**40, (2,), np.int64),
    bits=spaces.MultiBinary(3),
)
ACTION = spaces.Tuple((spaces.Discrete(3), spaces.Box(-2, 2, (2,), np.float32)))


def buffer(number, steps, ends=None):
    random = np.random.default_rng(number)
    stop = np.arange(steps) == steps - 1
    return EpisodeBuffer(
        number,
        7 + number,
        {"mass": {"arm": 1.5}},
        {
            "arm": random.uniform(-1, 1, (steps + 1, 3)),
            "pair": (random.integers(1, 5, steps + 1), [f"text {k}" for k in range(steps + 1)]),
            "image": np.full((steps + 1, 32, 34, 3), 10 + number, np.uint8),
            "grid": random.integers(0, 3, (steps + 1, 2)),
            "counts": random.integers(0, 2**40, (steps + 1, 2)),
            "bits": random.integers(0, 2, (steps + 1, 3)).astype(np.int8),
        },
        (random.integers(0, 3, steps), random.uniform(-2, 2, (steps, 2)).astype(np.float32)),
        random.normal(size=steps),
        stop & (number == 0) if ends is None else ends,
        stop & (number == 1),
        {"position": random.normal(size=(steps + 1, 2)), "deep": {"won": random.integers(0, 2, steps + 1) > 0}},
    )


def dataset(folder, kind, buffers, space=ACTION, seen=SEEN, jpeg=False):
    (folder / "data").mkdir(parents=True)
    storage = MinariStorage.new(folder / "data", seen, space, data_format=kind, jpeg_encoding=jpeg)
    storage.update_metadata({"dataset_id": "toy/all-v0", "minari_version": minari.__version__, "author": {"me"}})
    storage.update_episodes(buffers)
    return folder


def convert(source, target):
    about = child.read(child.Job("read", "", "minari", str(source), str(target), 64, 60), ours)
    return Store(target), about["notes"]


def same(first, second):
    if isinstance(first, dict):
        assert list(first) == list(second)
        return all(same(first[name], second[name]) for name in first)
    if isinstance(first, tuple):
        return all(same(a, b) for a, b in zip(first, second, strict=True))
    first, second = np.asarray(first), np.asarray(second)
    assert first.dtype == second.dtype and np.array_equal(first, second), (first, second)
    return True


@pytest.mark.parametrize("kind", ["hdf5", "arrow", "parquet"])
def test_every_field_goes_there_and_back(kind, tmp_path):
    source = dataset(tmp_path / "set", kind, [buffer(0, 3), buffer(1, 5), buffer(2, 2)])
    store, notes = convert(source, tmp_path / "store")
    assert [(len(e.action), e.terminated, e.meta["truncated"], e.meta["seed"]) for e in store] == [
        (3, True, False, 7), (5, False, True, 8), (2, False, False, 9),
    ]  # fmt: skip
    assert not notes and store.meta["minari"]["author"] == ["me"]
    original = list(minari.MinariDataset(source / "data"))
    for writer, name in ((ours, "a"), (minari_arrow, "b")):
        assert writer.write(store, tmp_path / name, lambda done, total: None) == []
        written = minari.MinariDataset(tmp_path / name / "data")
        assert written.storage.metadata["dataset_id"] == "toy/all-v0"
        assert [about["options"] for about in written.storage.get_episode_metadata([1])] == [{"mass": {"arm": 1.5}}]
        for before, after in zip(original, written, strict=True):
            for field in ("observations", "actions", "rewards", "terminations", "truncations"):
                assert same(getattr(before, field), getattr(after, field))
            assert same(before.infos["position"], after.infos["position"])


def test_images_kept_as_jpeg_are_read_and_said_to_be_near(tmp_path):
    store, notes = convert(dataset(tmp_path / "set", "hdf5", [buffer(0, 2)], jpeg=True), tmp_path / "store")
    assert abs(store[0].obs["image"].astype(int) - 10).max() <= 2 and "JPEG" in notes[0]


def test_an_action_without_bounds_gets_those_recorded_and_says_so(tmp_path):
    seen, space = spaces.Box(-np.inf, np.inf, (1,), np.float64), spaces.Box(-np.inf, np.inf, (1,), np.float32)
    numbers = np.linspace(-5, 3, 9, dtype=np.float32)[:, None]
    one = EpisodeBuffer(0, None, None, np.zeros((10, 1)), numbers, np.zeros(9), np.zeros(9, bool), np.ones(9, bool) > 1)
    store, notes = convert(dataset(tmp_path / "set", "hdf5", [one], space, seen), tmp_path / "store")
    assert (store.codec.raw_action_space.low, store.codec.raw_action_space.high) == (-5, 3)
    assert "recorded extremes" in notes[0] and (store[0].action == numbers).all()


def test_episodes_that_a_recorder_merged_are_split_without_the_steps_across_the_border(tmp_path):
    ends = np.array([False, True, False, False, False, True])
    store, _ = convert(dataset(tmp_path / "set", "hdf5", [buffer(0, 6, ends)]), tmp_path / "store")
    assert [(len(episode.action), episode.terminated) for episode in store] == [(1, False), (3, True)]
    arm = buffer(0, 6).observations["arm"]
    assert (store[0].obs["arm"] == arm[:2]).all() and (store[1].obs["arm"] == arm[3:]).all()


def test_a_bad_episode_is_named_and_the_rest_loads(tmp_path):
    source = dataset(tmp_path / "set", "arrow", [buffer(0, 3), buffer(1, 5)])
    part = source / "data" / "0" / "part-0.arrow"
    part.write_bytes(part.read_bytes()[:200])
    (source / "data" / "1" / "metadata.json").unlink()
    items = list(ours.read(source).episodes)
    assert isinstance(items[0], LeftOut) and items[0].name == 0 and len(items[1].action) == 5


@pytest.mark.parametrize(
    ("space", "reason"),
    [
        (None, "has no observation_space and no action_space"),
        ('{"type": "Sphere"}', "no kind of space is called 'Sphere'"),
        ('{"type": "Box", "dtype": "O", "shape": [1]}', "a Box of object"),
    ],
)
def test_metadata_that_cannot_be_understood_is_refused(space, reason, tmp_path):
    about = {} if space is None else {"observation_space": space, "action_space": space}
    (tmp_path / "metadata.json").write_text(json.dumps(about))
    (tmp_path / "main_data.hdf5").write_bytes(b"")
    with pytest.raises(BadRecording, match=reason):
        ours.read(tmp_path)
