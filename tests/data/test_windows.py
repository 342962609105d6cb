"""Recordings: every window once an epoch, the same in any number of workers, from where one stopped."""

import multiprocessing
import pickle
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from dreamsim.core import tree
from dreamsim.core.spaces import Codec
from dreamsim.core.types import Episode
from dreamsim.data.format import DamagedStore
from dreamsim.data.replay import Replay
from dreamsim.data.store import Store
from dreamsim.data.windows import Split, Windows, leaks, loader, permuted, split

CODEC = Codec(spaces.Dict({"count": spaces.Box(-np.inf, np.inf, (1,), np.float32)}), spaces.Box(0.0, 8.0, (2,)))
LENGTHS = [12, 3, 7, 30, 1]


def counting(number: int, steps: int, **changes) -> Episode:
    count = 1000.0 * number + np.arange(steps + 1)
    episode = Episode(
        obs={"count": count[:, None]},
        action=np.stack([count[:-1], -count[:-1]], 1),
        reward=count[1:],
        terminated=bool(number % 2),
        time=None,
        trace={"token": count[:-1].astype(np.int64)},
        meta={},
    )
    return episode._replace(**changes)


def recordings(lengths=LENGTHS) -> list[Episode]:
    return [counting(number, steps) for number, steps in enumerate(lengths)]


def stored(folder, lengths=LENGTHS) -> Store:
    store = Store.create(folder / "store", CODEC.raw_observation_space, CODEC.raw_action_space, block_bytes=2000)
    for episode in recordings(lengths):
        store.append(episode)
    store.close()
    return Store(folder / "store")


def all_windows(lengths, length) -> list[tuple[int, int]]:
    return [(n, offset) for n, steps in enumerate(lengths) for offset in range(max(1, steps - length + 1))]


def drawn(windows, batches) -> list[tuple[int, int]]:
    return [tuple(row) for number in batches for row in windows[number].index.tolist()]


def equal(one, two) -> bool:
    return all(torch.equal(a, b) for a, b in zip(tree.leaves(one), tree.leaves(two), strict=True))


@settings(max_examples=40, deadline=None)
@given(lengths=st.lists(st.integers(1, 20), min_size=1, max_size=8), length=st.integers(1, 25), seed=st.integers(0, 99))
def test_every_row_is_the_window_its_index_names(lengths, length, seed):
    segment = Windows(recordings(lengths), CODEC, length, 16, seed=seed)[0]
    for row, (number, offset) in enumerate(segment.index.tolist()):
        real = min(length, lengths[number] - offset)
        expected = torch.arange(length + 1.0) + 1000 * number + offset
        expected[real + 1 :] = 0
        assert torch.equal(segment.obs["count"][row, :, 0], expected)
        assert segment.mask[row].tolist() == [1.0] * real + [0.0] * (length - real)
        action = torch.where(segment.mask[row].bool(), (expected[:-1] - 4) / 4, torch.tensor(0.0))
        assert torch.equal(segment.action[row, :, 0], action)
        assert torch.equal(segment.reward[row, :real], expected[1 : real + 1]) and not segment.reward[row, real:].any()
        assert torch.equal(segment.trace["token"][row, :real], expected[:real].long())
        ends = [number % 2 == 1 and offset + t + 1 == lengths[number] for t in range(length)]
        assert segment.terminated[row].tolist() == ends
    assert segment.before is None and segment.obs["count"].dtype == segment.action.dtype == torch.float32


def test_recordings_and_replay_give_the_same_segments():
    replay = Replay(200, CODEC.observation_space, 2)
    for episode in recordings():
        replay.add(episode, CODEC.scale)
    live = replay.sample(200, 5)
    rows = {tuple(index): tree.select(live, slice(n, n + 1)) for n, index in enumerate(live.index.tolist())}
    recorded = Windows(recordings(), CODEC, 5, 64)[0]
    shared = 0
    for n, index in enumerate(recorded.index.tolist()):
        if tuple(index) in rows:
            shared += 1
            assert equal(rows[tuple(index)], tree.select(recorded, slice(n, n + 1)))
    assert shared > 30


@pytest.mark.parametrize("batch", [1, 7, 16, 1000])
def test_every_window_comes_once_in_each_epoch(batch):
    windows = Windows(recordings(), CODEC, 4, batch)
    everything = all_windows(LENGTHS, 4)
    many = drawn(windows, range(-(-3 * len(everything) // batch)))
    epochs = [many[n * len(everything) : (n + 1) * len(everything)] for n in range(3)]
    assert all(sorted(epoch) == everything for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2] and epochs[0] != everything
    assert len(windows) == -(-len(everything) // batch)


def test_the_first_window_of_an_epoch_may_be_any():
    first = [permuted(np.array([0]), 7, seed)[0] for seed in range(2000)]
    expected = 2000 / 7
    assert ((np.bincount(first, minlength=7) - expected) ** 2 / expected).sum() < 22.5  # chi-square, 6 degrees, .001


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 63, 64, 65, 1000])
def test_a_permutation_reaches_every_place_once(size):
    assert sorted(permuted(np.arange(size), size, 3)) == list(range(size))


def test_order_depends_on_the_seed_alone():
    one, two, other = (Windows(recordings(), CODEC, 4, 8, seed=seed) for seed in (1, 1, 2))
    state = torch.get_rng_state()
    assert equal(one[5], two[5]) and not equal(one[5], other[5])
    assert equal(one[0], two[0])  # whatever was asked before
    list(loader(one, range(3)))
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize("workers", [0, 2])
def test_stopping_in_mid_epoch_repeats_and_misses_nothing(tmp_path, workers):
    straight = [segment.index for segment in loader(Windows(stored(tmp_path), CODEC, 4, 5), range(12))]
    parts = []
    for used in (range(0, 7), range(7, 12)):  # the second part: a new program that goes on at batch 7
        batches = iter(loader(Windows(Store(tmp_path / "store"), CODEC, 4, 5), range(used.start, 12), workers))
        parts += [next(batches).index for _ in used]
    assert equal(straight, parts)


def changed(episode: Episode, kind: int) -> Episode:
    """The same episode as another program might have written it."""
    if kind == 1:
        return episode._replace(action=episode.action.astype(np.float32), trace={})
    if kind == 2:
        return episode._replace(
            obs={"count": episode.obs["count"].astype(">f4")}, time=np.arange(len(episode.action) + 1.0)
        )
    return episode


@settings(max_examples=25, deadline=None)
@given(
    rows=st.lists(st.tuples(st.integers(1, 20), st.integers(0, 2)), min_size=1, max_size=8),
    length=st.integers(1, 12),
    limit=st.sampled_from([None, 2**22]),
)
def test_a_store_gives_the_windows_of_its_episodes(rows, length, limit):
    """Whatever their lengths, number types and missing traces, and however little may stay in memory."""
    episodes = [changed(counting(number, steps), kind) for number, (steps, kind) in enumerate(rows)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "store"
        with Store.create(path, CODEC.raw_observation_space, CODEC.raw_action_space, block_bytes=900) as store:
            for episode in episodes:
                store.append(episode)
        one, two = (Windows(side, CODEC, length, 7) for side in (episodes, Store(path, limit=limit)))
        assert all(equal(one[number], two[number]) for number in range(2 * len(one)))
        assert all(equal(one.in_order(number), two.in_order(number)) for number in range(len(one)))


def test_windows_of_a_store_are_what_was_there_at_their_making(tmp_path):
    """A writer that replaces or cuts files changes nothing for whoever reads."""
    windows = Windows(stored(tmp_path), CODEC, 4, 5)
    before = [windows[number] for number in range(6)]
    with Store(tmp_path / "store") as writer:
        writer.append(counting(99, 10))
        writer.flush()
        writer.cut(2)
    assert equal(before, [windows[number] for number in range(6)])


def test_windows_are_not_cut_of_episodes_that_wait(tmp_path):
    store = stored(tmp_path)
    store.append(counting(7, 9))
    with pytest.raises(ValueError, match="flush the store"):
        Windows(store, CODEC, 4, 5)[0]
    store.close()


def test_rows_of_another_shape_and_damage_are_named(tmp_path):
    store = stored(tmp_path)
    store.append(counting(5, 9, trace={"token": np.zeros((9, 2), np.int64)}))
    store.close()
    with pytest.raises(ValueError, match="trace 'token' of episode 5 has rows of shape"):
        list(map(Windows(Store(store.folder), CODEC, 4, 5).in_order, range(20)))
    file = max((store.folder / "blocks").iterdir())
    content = bytearray(file.read_bytes())
    content[-100] ^= 1
    file.write_bytes(content)
    with pytest.raises(DamagedStore, match="do not fit their checksum"):
        list(map(Windows(Store(store.folder), CODEC, 4, 5).in_order, range(20)))


@pytest.mark.parametrize("limit", [12 * 2**20, None])
def test_a_recording_larger_than_memory_is_read_within_its_bound(tmp_path, limit):
    """A recording of 48 MiB is read whole, three times, by a process that may keep 12 MiB of it, or everything."""
    space = spaces.Dict({"image": spaces.Box(0, 255, (3, 64, 64), np.uint8)})
    with Store.create(tmp_path / "store", space, spaces.Box(-1.0, 1.0, (1,)), block_bytes=8 * 2**20) as store:
        image = np.random.default_rng(0).integers(0, 256, (201, 3, 64, 64), np.uint8)
        for number in range(20):
            action = np.full((200, 1), number, np.float32)
            store.append(Episode({"image": image}, action, np.zeros(200, np.float32), False, None, {}, {}))
    context = multiprocessing.get_context("spawn")
    with context.Pool(1) as pool:
        most, seen = pool.apply(read_all, (str(tmp_path / "store"), limit))
    assert seen == 2 * 200 * 20
    assert most < 12.5 * 2**20 if limit else most > 45 * 2**20


def read_all(folder: str, limit: int | None) -> tuple[int, int]:
    """Check a store for leaks and draw all its windows; return the most bytes of it seen in memory, and the windows."""

    def resident() -> int:
        with open("/proc/self/status") as file:
            return next(int(line.split()[1]) * 1024 for line in file if line.startswith("RssFile"))

    store = Store(folder, limit=limit)
    first = Windows(recordings(), CODEC, 1, 16)
    leaks(recordings(), Split(np.array([0]), np.array([1])))
    first[0], first.in_order(0)  # what reading itself needs of the libraries is in memory now
    before, seen, most = resident(), 0, 0
    assert leaks(store, split(len(store))) == []
    for windows in (Windows(store, store.codec, 1, 16, seed=seed) for seed in range(2)):
        for number in range(len(windows)):
            seen += len(windows[number].action)
            most = max(most, resident() - before)
    return most, seen


def test_any_number_of_workers_reads_the_same_bytes(tmp_path):
    windows = Windows(stored(tmp_path, [5 + n % 30 for n in range(60)]), CODEC, 6, 16)
    alone = list(loader(windows, range(20)))
    assert equal(alone, list(loader(windows, range(20), workers=4)))
    assert equal(alone, [pickle.loads(pickle.dumps(windows))[number] for number in range(20)])


def test_in_order_comes_everything_once():
    windows = Windows(recordings(), CODEC, 4, 16)
    batches = [windows.in_order(number) for number in range(len(windows))]
    assert [tuple(row) for batch in batches for row in batch.index.tolist()] == all_windows(LENGTHS, 4)
    with pytest.raises(IndexError, match="there are 3 batches"):
        windows.in_order(3)


def test_short_episodes_are_kept_and_their_padding_reported():
    windows = Windows(recordings([10] * 6), CODEC, 50, 6)
    coverage = windows.coverage()
    assert (coverage.episodes, coverage.windows, coverage.short, coverage.dropped) == (6, 6, 6, {})
    assert coverage.padded == pytest.approx(0.8)
    assert windows[0].mask.sum() == 60 and sorted(windows[0].index[:, 0].tolist()) == list(range(6))
    assert "no episode left out" in str(coverage) and "padding 80.0%" in str(coverage)


def test_nothing_is_left_out_without_a_word():
    windows = Windows(recordings([5, 0, 5, 5]), CODEC, 2, 8, only=np.array([0, 1, 3]), weights=np.array([1, 1, 1, 0.0]))
    coverage = windows.coverage()
    assert coverage.dropped == {"not chosen": 1, "without a step": 1, "of weight 0": 1} and coverage.episodes == 1
    assert "1 left out (without a step)" in str(coverage)
    assert {number for number, _ in drawn(windows, range(10))} == {0}
    with pytest.raises(ValueError, match="no window can be cut from 2 episodes"):
        Windows(recordings([0, 0]), CODEC, 2, 8)
    with pytest.raises(ValueError, match="no window can be cut from 0 episodes"):
        Windows([], CODEC, 2, 8)


def test_weights_set_how_often_each_episode_comes():
    lengths = [40, 4, 4]
    windows = Windows(recordings(lengths), CODEC, 3, 100, weights=np.array([1.0, 1.0, 2.0]))
    rows = drawn(windows, range(200))
    share = np.bincount([number for number, _ in rows], minlength=3) / len(rows)
    assert share == pytest.approx([0.25, 0.25, 0.5], abs=0.02)
    offsets = np.bincount([offset for number, offset in rows if number == 0], minlength=38)
    assert ((offsets - offsets.mean()) ** 2 / offsets.mean()).sum() < 70  # chi-square, 37 degrees, .001
    assert drawn(windows, [7]) == drawn(Windows(recordings(lengths), CODEC, 3, 100, weights=np.array([2, 2, 4])), [7])


@pytest.mark.parametrize("weights", [np.ones(2), np.array([1, -1, 1]), np.array([1, np.nan, 1])])
def test_wrong_weights_are_refused(weights):
    with pytest.raises(ValueError, match="expected 3 weights"):
        Windows(recordings([5, 5, 5]), CODEC, 3, 4, weights=weights)


def test_recordings_without_rewards_and_mixed_ones():
    without = [episode._replace(reward=None) for episode in recordings()]
    assert Windows(without, CODEC, 3, 8)[0].reward is None
    mixed = Windows([without[0], *recordings()[1:]], CODEC, 3, 60)
    with pytest.raises(ValueError, match="some recordings have rewards"):
        mixed[0]


def test_only_what_is_needed_is_read(tmp_path):
    class Reads(list):
        seen = []

        def __getitem__(self, number):
            self.seen.append(number)
            return super().__getitem__(number)

    windows = Windows(Reads(recordings()), CODEC, 4, 3)
    Reads.seen.clear()
    numbers = windows[0].index[:, 0].tolist()
    assert numbers == Reads.seen


# Splits


@settings(max_examples=30, deadline=None)
@given(count=st.integers(4, 100), every=st.integers(2, 4), seed=st.integers(0, 50))
def test_a_split_is_by_episode_whole_seeded_and_stable_when_data_grows(count, every, seed):
    sides = split(count, every, seed)
    assert sorted([*sides.train, *sides.held_out]) == list(range(count))
    assert count // every <= len(sides.held_out) <= -(-count // every)
    grown = split(count + 50, every, seed)
    assert set(sides.train) <= set(grown.train) and set(sides.held_out) <= set(grown.held_out)


def test_seeds_split_differently():
    assert len({tuple(split(30, 5, seed).held_out) for seed in range(20)}) > 15
    with pytest.raises(ValueError, match="one of every 10 of 4 episodes"):
        split(4)


def test_sides_share_no_window_and_a_copied_episode_is_found():
    episodes = recordings([6] * 20)
    sides = split(20, 5)
    train, held_out = (Windows(episodes, CODEC, 3, 8, only=side) for side in sides)
    seen = [{number for number, _ in drawn(side, range(len(side)))} for side in (train, held_out)]
    assert seen[0] == set(sides.train.tolist()) and seen[1] == set(sides.held_out.tolist())
    assert leaks(episodes, sides) == []
    source, copy = int(sides.train[3]), int(sides.held_out[1])
    episodes[copy] = counting(source, 6, meta={"copied": 1})
    assert leaks(episodes, sides) == [(source, copy)]
    assert leaks(episodes, Split(np.array([copy, source]), np.array([0]))) == []
