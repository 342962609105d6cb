"""The store: what was flushed is there, bit for bit, whatever happens; damage is said, not hidden."""

import json
import logging
import multiprocessing
import os
import pickle
import resource
import signal
import struct
import subprocess
import tempfile
import time
import zlib
from pathlib import Path

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dreamsim.core.types import Episode
from dreamsim.data import format as store_format
from dreamsim.data.block import Block, DamagedBlock, decode, encode, write_block
from dreamsim.data.format import DamagedStore
from dreamsim.data.lock import Busy
from dreamsim.data.repair import repair
from dreamsim.data.replay import Replay
from dreamsim.data.store import NotWritten, Store

OBSERVATION = spaces.Dict(
    {
        "count": spaces.Box(-np.inf, np.inf, (1,), np.float32),
        "image": spaces.Box(0, 255, (8, 10, 3), np.uint8),
    }
)
ACTION = spaces.Box(-2.0, 2.0, (2,), np.float32)
fork = multiprocessing.get_context("fork")


def counting(number: int, steps: int = 6, **changes) -> Episode:
    count = 1000.0 * number + np.arange(steps + 1)
    image = np.random.default_rng(number).integers(0, 256, (steps + 1, 3, 8, 10), np.uint8)
    episode = Episode(
        obs={"count": count[:, None].astype(np.float32), "image": image},
        action=np.stack([count[:-1], -count[:-1]], 1).astype(np.float32),
        reward=count[1:].astype(np.float32),
        terminated=bool(number % 2),
        time=count / 50,
        trace={"token": np.arange(steps, dtype=np.int64)},
        meta={"seed": number, "origin": "real", "success": 0.5},
    )
    return episode._replace(**changes)


def new_store(folder, **options) -> Store:
    return Store.create(folder / "store", OBSERVATION, ACTION, rate=50.0, **options)


def same(one: Episode, two: Episode) -> bool:
    """Equal to the bit, in every field, shape and type."""
    return encode(one) == encode(two)


def check_counting(store: Store, count: int) -> None:
    assert len(store) == count
    for number in range(count):
        assert same(store[number], counting(number, len(store[number].action)))


def blocks(store: Store) -> list:
    return sorted((store.folder / "blocks").iterdir())


def orphans(store: Store) -> list:
    return sorted((store.folder / "orphans").iterdir())


# What is kept


def test_episodes_come_back_bit_for_bit_after_reopening(tmp_path):
    with new_store(tmp_path) as store:
        numbers = [store.append(counting(number, 3 + number)) for number in range(20)]
    assert numbers == list(range(20))
    check_counting(Store(store.folder), 20)


def test_a_store_opens_without_its_environment(tmp_path):
    new_store(tmp_path, meta={"task": "reach"}).close()
    store = Store(tmp_path / "store")
    assert store.codec.raw_observation_space == OBSERVATION and store.codec.raw_action_space == ACTION
    assert (store.rate, store.meta, len(store)) == (50.0, {"task": "reach"}, 0)


arrays = st.sampled_from(["?", "i1", "u2", "i8", "f2", "f4", "f8"]).flatmap(
    lambda kind: st.tuples(st.just(kind), st.lists(st.integers(0, 3), max_size=3))
)


@settings(max_examples=50, deadline=None)
@given(
    steps=st.integers(0, 5),
    trace=st.dictionaries(st.text(max_size=5), arrays, max_size=3),
    reward=st.booleans(),
    meta=st.dictionaries(st.text(), st.one_of(st.text(), st.floats(allow_nan=False), st.integers(), st.none())),
)
def test_every_kind_of_field_survives_its_record(steps, trace, reward, meta):
    rng = np.random.default_rng(0)
    fields = {name: (rng.random((steps, *shape)) * 100).astype(kind) for name, (kind, shape) in trace.items()}
    reward = rng.random(steps) if reward else None
    episode = counting(0, steps, trace=fields, reward=reward, time=None, meta=meta)
    back = decode(encode(episode))
    assert back.meta == meta and same(back, episode) and back.trace.keys() == fields.keys()
    assert back.time is None and (back.reward is None) == (reward is None)
    for name, array in fields.items():
        assert np.array_equal(back.trace[name], array) and back.trace[name].dtype == array.dtype


def test_stored_arrays_are_read_only_lie_in_the_file_and_outlive_the_store(tmp_path):
    store = new_store(tmp_path)
    store.append(counting(0))
    store.flush()
    episode = store[0]
    with pytest.raises(ValueError, match="read-only"):
        episode.obs["count"][0] = 1
    store.append(counting(1))
    store.close()
    repair(store.folder)
    del store
    assert same(episode, counting(0))


def test_later_changes_of_an_appended_episode_do_not_reach_the_store(tmp_path):
    store = new_store(tmp_path)
    episode = counting(0)
    store.append(episode)
    episode.obs["count"][:] = -1
    assert same(store[0], counting(0))


def test_a_store_is_a_sequence(tmp_path):
    store = new_store(tmp_path)
    for number in range(5):
        store.append(counting(number))
        if number == 2:
            store.flush()
    assert [int(episode.meta["seed"]) for episode in store] == [0, 1, 2, 3, 4]
    assert store[-1].meta["seed"] == 4 and [e.meta["seed"] for e in store[1:4]] == [1, 2, 3]
    assert store.steps.tolist() == [6] * 5
    for beyond in (5, -6):
        with pytest.raises(IndexError, match="has 5"):
            store[beyond]


def test_only_flushed_episodes_are_seen_by_others(tmp_path):
    store = new_store(tmp_path)
    store.append(counting(0))
    assert len(Store(store.folder)) == 0
    store.flush()
    store.append(counting(1))
    check_counting(Store(store.folder), 1)
    check_counting(store, 2)


def test_an_open_reader_goes_on_while_the_writer_adds(tmp_path):
    store = new_store(tmp_path)
    store.append(counting(0))
    store.flush()
    reader = Store(store.folder)
    for number in range(1, 10):
        store.append(counting(number))
        store.flush()
    check_counting(reader, 1)


def test_frequent_flushes_do_not_make_tiny_files(tmp_path):
    store = new_store(tmp_path)
    for number in range(40):
        store.append(counting(number))
        store.flush()
    assert len(blocks(store)) == 1
    check_counting(store, 40)
    check_counting(Store(store.folder), 40)


def test_small_blocks_hold_every_episode_once_and_in_order(tmp_path):
    with new_store(tmp_path, block_bytes=1024) as store:
        for number in range(3):
            store.append(counting(number, 7 + number))
    again = Store(store.folder)
    assert len(blocks(again)) == 3
    check_counting(again, 3)
    assert again.steps.sum() == 7 + 8 + 9


def test_open_files_stay_constant_however_many_blocks_are_read_and_kept(tmp_path):
    with new_store(tmp_path, block_bytes=64) as store:
        for number in range(150):
            store.append(counting(number))
    again = Store(store.folder)
    assert len(blocks(again)) == 150
    before = len(os.listdir("/proc/self/fd"))
    kept = list(again)
    assert len(os.listdir("/proc/self/fd")) == before
    assert all(same(episode, counting(number)) for number, episode in enumerate(kept))


def test_dropped_maps_are_given_back(tmp_path):
    with new_store(tmp_path, block_bytes=64) as store:
        store.append(counting(0))

    def maps() -> int:
        with open("/proc/self/maps") as file:
            return sum(str(store.folder) in line for line in file)

    assert maps() == 0
    episode = Store(store.folder)[0]
    assert maps() == 1
    del episode
    assert maps() == 0


# What is refused


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"obs": {"count": np.zeros((7, 1))}}, "the store's space is"),
        ({"action": np.zeros((6, 3))}, r"action of an episode of 6 steps has shape \(6, 3\), expected \(6, 2\)"),
        ({"action": np.zeros((5, 2))}, r"obs 'count' of an episode of 5 steps has shape \(7, 1\), expected \(6, 1\)"),
        ({"reward": np.zeros(7)}, r"reward .* expected \(6,\)"),
        ({"time": np.zeros(6)}, r"time .* expected \(7,\)"),
        ({"trace": {"x": np.zeros((7, 2))}}, r"trace 'x' .* expected \(6, 2\)"),
        ({"trace": {"x": np.array([None] * 6)}}, "type object; the store holds numbers"),
        ({"meta": {"who": object()}}, "plain JSON"),
    ],
)
def test_episodes_out_of_line_are_refused_by_name(tmp_path, change, message):
    store = new_store(tmp_path)
    with pytest.raises(ValueError, match=message):
        store.append(counting(0)._replace(**change))
    assert len(store) == 0


def test_floats_are_not_taken_for_images(tmp_path):
    episode = counting(0)
    episode.obs["image"] = episode.obs["image"] / 255
    with pytest.raises(ValueError, match="'image' of an episode has type float64, expected uint8"):
        new_store(tmp_path).append(episode)


def test_a_store_is_not_made_twice_nor_found_where_there_is_none(tmp_path):
    new_store(tmp_path).close()
    with pytest.raises(FileExistsError, match="already holds a store"):
        new_store(tmp_path)
    with pytest.raises(FileNotFoundError, match="holds no store"):
        Store(tmp_path)


# Cutting


@pytest.mark.parametrize("keep", [0, 1, 4, 5, 6, 11, 12])
def test_cut_keeps_the_first_and_loses_nothing(tmp_path, keep, caplog):
    store = new_store(tmp_path, block_bytes=9000)
    for number in range(12):
        store.append(counting(number))
    moved = store.cut(keep)
    check_counting(store, keep)
    assert moved == orphans(store)
    rest = [episode for path in moved for episode in map(Block(path).episode, range(len(Block(path))))]
    assert [int(episode.meta["seed"]) for episode in rest] == list(range(keep, 12))
    assert all(str(path) in caplog.text for path in moved)
    store.append(counting(keep))
    store.close()
    check_counting(Store(store.folder), keep + 1)


def test_cut_refuses_to_keep_more_than_there_is(tmp_path):
    with pytest.raises(ValueError, match="cannot keep 3 episodes"):
        new_store(tmp_path).cut(3)


def test_replay_rebuilt_from_the_store_draws_what_the_uninterrupted_one_draws(tmp_path):
    def replay(store):
        return Replay(200, store.codec.observation_space, 2, seed=7)

    def live(store, replay, numbers):
        for number in numbers:
            episode = counting(number, 20 + number)
            store.append(episode)
            replay.add(episode, store.codec.scale)

    store = new_store(tmp_path)
    straight = replay(store)
    live(store, straight, range(10))
    straight.sample(16, 5)
    store.flush()
    saved, stored = straight.state_dict(), len(store)
    live(store, straight, range(10, 14))
    expected = straight.sample(16, 5)
    store.close()

    for _ in range(2):  # resuming twice is resuming once
        store = Store(tmp_path / "store")
        store.cut(stored)
        again = replay(store)
        again.rebuild(saved, store, store.codec.scale)
        live(store, again, range(10, 14))
        drawn = again.sample(16, 5)
        assert np.array_equal(drawn.index, expected.index)
        assert np.array_equal(drawn.obs["image"], expected.obs["image"])
        assert again.steps == straight.steps
        store.close()


# Writers


def in_another_process(function, *args) -> str:
    """Run a function in a forked process; return the text of what it returned or raised."""
    ours, theirs = fork.Pipe()

    def run():
        try:
            theirs.send(str(function(*args)))
        except Exception as error:
            theirs.send(f"{type(error).__name__}: {error}")

    process = fork.Process(target=run)
    process.start()
    text = ours.recv() if ours.poll(60) else "no answer"
    process.join(10)
    return text


def append_one(folder) -> int:
    with Store(folder) as store:
        return store.append(counting(len(store)))


def test_a_second_writer_is_refused_and_readers_are_not(tmp_path):
    store = new_store(tmp_path)
    store.append(counting(0))
    store.flush()
    with pytest.raises(Busy, match="already being written by this process"):
        append_one(store.folder)
    answer = in_another_process(append_one, store.folder)
    assert answer.startswith("Busy") and f"process {os.getpid()} on" in answer
    assert in_another_process(lambda: len(Store(store.folder))) == "1"
    store.close()
    assert append_one(store.folder) == 1
    assert in_another_process(append_one, store.folder) == "2"
    check_counting(Store(store.folder), 3)


def test_a_forked_process_does_not_inherit_the_right_to_write(tmp_path):
    store = new_store(tmp_path)
    store.append(counting(0))
    assert in_another_process(lambda: store.append(counting(1))).startswith("Busy")
    store.append(counting(1))
    store.close()
    check_counting(Store(store.folder), 2)


def test_the_lock_of_a_dead_process_does_not_block(tmp_path):
    folder = new_store(tmp_path).folder

    def hold():
        store = Store(folder)
        store.append(counting(0))
        os.kill(os.getpid(), signal.SIGKILL)

    process = fork.Process(target=hold)
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    assert append_one(folder) == 0


def test_a_writer_sees_what_another_wrote_meanwhile(tmp_path):
    new_store(tmp_path).close()
    early = Store(tmp_path / "store")
    assert append_one(tmp_path / "store") == 0
    assert early.append(counting(1)) == 1
    early.close()
    check_counting(Store(tmp_path / "store"), 2)


def test_a_pickled_store_opens_its_own_files(tmp_path):
    store = new_store(tmp_path)
    store.append(counting(0))
    with pytest.raises(RuntimeError, match="flush the store"):
        pickle.dumps(store)
    store.flush()
    check_counting(pickle.loads(pickle.dumps(store)), 1)


# Crashes


def write_until_killed(folder, report) -> None:
    store = Store(folder, block_bytes=20_000)
    number = len(store)
    while True:
        for _ in range(1 + number % 3):
            store.append(counting(number, 3 + number % 5))
            number += 1
        store.flush()
        os.write(report, struct.pack("<I", number))


def test_every_flushed_episode_outlives_a_kill_at_any_instant(tmp_path):
    folder = new_store(tmp_path).folder
    rng = np.random.default_rng(0)
    flushed = 0
    for _ in range(15):
        read, report = os.pipe()
        writer = fork.Process(target=write_until_killed, args=(folder, report))
        writer.start()
        os.close(report)
        os.read(read, 4)  # it is at work
        time.sleep(rng.uniform(0, 0.03))
        os.kill(writer.pid, signal.SIGKILL)
        writer.join(60)
        while data := os.read(read, 4):
            (flushed,) = struct.unpack("<I", data)
        os.close(read)
        store = Store(folder)
        assert len(store) >= flushed
        for number in range(len(store)):
            assert same(store[number], counting(number, 3 + number % 5))
        assert not list((folder / "blocks").glob("*.tmp"))
    assert flushed > 30


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Two blocks of three and two episodes."""
    store = new_store(tmp_path_factory.mktemp("whole"), block_bytes=100_000)
    for number in range(5):
        store.append(counting(number))
        if number == 2:
            store.flush()
    store.close()
    first, last = blocks(store)
    assert len(Block(first)) == 3 and len(Block(last)) == 2
    return [first.read_bytes(), last.read_bytes()]


def with_blocks(folder, contents) -> Store:
    """Open a store whose block files hold these bytes."""
    store = new_store(Path(tempfile.mkdtemp(dir=folder)))
    for number, content in enumerate(contents):
        (store.folder / "blocks" / f"{number:08d}.block").write_bytes(content)
    return Store(store.folder)


repeat = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@repeat
@given(share=st.floats(0, 1, exclude_max=True))
def test_a_torn_tail_is_reported_and_moved_aside(tmp_path, whole, share, caplog):
    torn = whole[1][: int(share * len(whole[1]))]
    caplog.clear()
    store = with_blocks(tmp_path, [whole[0], torn])
    assert len(caplog.records) == 1 and "the last block is damaged" in caplog.text
    assert [path.read_bytes() for path in orphans(store)] == [torn]
    check_counting(store, 3)
    store.append(counting(3))
    store.close()
    caplog.clear()
    check_counting(Store(store.folder), 4)
    assert not caplog.records


@repeat
@given(place=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7), last=st.booleans())
def test_a_flipped_bit_never_reads_as_data(tmp_path, whole, place, bit, last):
    contents = [bytearray(content) for content in whole]
    contents[last][int(place * len(whole[last]))] ^= 1 << bit
    try:
        store = with_blocks(tmp_path, contents)
    except DamagedStore as error:
        assert "repair(folder)" in str(error) and not last
        return
    unreadable = 0
    for number in range(len(store)):
        try:
            assert same(store[number], counting(number))
        except DamagedStore as error:
            unreadable += 1
            assert "repair(folder)" in str(error)
    assert unreadable <= 1
    assert len(store) == 5 or (last and len(store) == 3 and len(orphans(store)) == 1)


@repeat
@given(content=st.one_of(st.binary(max_size=300), st.binary(max_size=300).map(lambda data: b"dreamsim" + data)))
def test_any_bytes_in_a_block_file_give_one_clear_error(tmp_path, whole, content):
    with pytest.raises(DamagedStore, match=r"00000000\.block"):
        with_blocks(tmp_path, [content, whole[1]])
    assert len(with_blocks(tmp_path, [content])) == 0


json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=4)),
    lambda inner: st.one_of(st.lists(inner, max_size=5), st.dictionaries(st.text(max_size=3), inner, max_size=3)),
)
field_parts = st.one_of(
    json_values,
    st.sampled_from(["obs", "trace", "x", "<f4", ">i8", "f4,f4", "|O", "<f99"]),
    st.lists(st.integers(-2, 10**12), max_size=3),
)
heads = st.fixed_dictionaries(
    {
        "fields": st.lists(st.one_of(json_values, st.lists(field_parts, min_size=5, max_size=5)), max_size=2),
        "terminated": json_values,
        "meta": json_values,
    }
)


@repeat
@given(head=st.one_of(json_values, heads))
def test_a_forged_record_with_a_right_checksum_gives_one_clear_error(tmp_path_factory, head):
    text = json.dumps(head).encode()
    path = tmp_path_factory.getbasetemp() / "forged.block"
    write_block(path, [struct.pack("<I", len(text)) + text + bytes(64)], [0])
    with pytest.raises(DamagedBlock, match="episode 0 in it cannot be read"):
        Block(path).episode(0)


def test_a_block_missing_in_the_middle_is_said(tmp_path, whole):
    store = with_blocks(tmp_path, [whole[0], whole[1]])
    blocks(store)[0].unlink()
    with pytest.raises(DamagedStore, match=r"00000000\.block: missing, though 00000001\.block is there"):
        Store(store.folder)


def test_repair_keeps_every_readable_episode(tmp_path, whole):
    broken = bytearray(whole[0])
    broken[-1000] ^= 1  # in the last of its three records
    store = new_store(tmp_path)
    for number, content in enumerate([whole[0], b"nonsense", bytes(broken), whole[1]]):
        (store.folder / "blocks" / f"{number:08d}.block").write_bytes(content)
    with pytest.raises(DamagedStore):
        Store(store.folder)
    moved = repair(store.folder)
    assert [path.read_bytes() for path in moved] == [b"nonsense", bytes(broken)]
    assert [int(episode.meta["seed"]) for episode in Store(store.folder)] == [0, 1, 2, 0, 1, 3, 4]
    assert repair(store.folder) == []


def test_a_new_flush_does_not_depend_on_a_damaged_last_block(tmp_path, whole):
    broken = bytearray(whole[0])
    broken[-1000] ^= 1
    store = with_blocks(tmp_path, [broken])
    store.append(counting(3))
    store.flush()
    assert same(store[0], counting(0)) and same(store[3], counting(3))
    with pytest.raises(DamagedStore, match="do not fit their checksum"):
        store[2]


# Full disks


def fill_the_disk(folder, limit) -> str:
    """Write until the system refuses, then lift the limit and go on; return what was said."""
    store = Store(folder)
    store.append(counting(0))
    store.flush()
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    for number in range(1, 30):
        store.append(counting(number))
    try:
        store.flush()
    except NotWritten as error:
        said = str(error)
    check_counting(Store(folder), 1)
    check_counting(store, 30)
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    store.append(counting(30))
    store.close()
    return said


def test_a_full_disk_is_one_error_and_the_store_goes_on(tmp_path):
    folder = new_store(tmp_path).folder
    size = 29 * len(encode(counting(9)))
    said = in_another_process(fill_the_disk, folder, 5000)
    assert f"cannot write {size} bytes (29 episodes) to {folder}/blocks/00000000.block" in said
    assert "bytes are free" in said and "flush again" in said
    check_counting(Store(folder), 31)
    assert [path.name for path in (folder / "blocks").iterdir()] == ["00000000.block"]


def test_a_small_disk_that_is_really_full(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", disk], capture_output=True)
    if mounted.returncode:
        pytest.skip("this user may not mount a small disk")
    try:
        store = new_store(disk, block_bytes=40_000)
        with pytest.raises(NotWritten, match="No space left"):
            for number in range(1000):
                store.append(counting(number))
        stored = len(Store(store.folder))
        assert 0 < stored < len(store)
        subprocess.run(["mount", "-o", "remount,size=4m", disk], check=True)
        taken = len(store)
        assert store.append(counting(taken)) == taken
        store.close()
        check_counting(Store(store.folder), taken + 1)
        del store
    finally:
        subprocess.run(["umount", "-l", disk], check=True)


# Versions


def test_a_newer_store_is_refused(tmp_path):
    store = new_store(tmp_path)
    about = (store.folder / "store.json").read_text()
    (store.folder / "store.json").write_text(about.replace('"format": 1', '"format": 2'))
    with pytest.raises(DamagedStore, match="format 2, this program reads up to 1; update"):
        Store(store.folder)


def test_an_older_store_is_brought_up_to_date_once(tmp_path, monkeypatch, caplog):
    store = new_store(tmp_path)
    path = store.folder / "store.json"
    path.write_text(path.read_text().replace('"format": 1', '"format": 0').replace('"rate"', '"hertz"'))
    with pytest.raises(DamagedStore, match="no rule brings a store of format 0 to 1"):
        Store(store.folder)
    monkeypatch.setitem(
        store_format.MIGRATIONS, 0, lambda folder: path.write_text(path.read_text().replace('"hertz"', '"rate"'))
    )
    caplog.set_level(logging.WARNING)
    assert Store(store.folder).rate == 50.0
    assert "from format 0 to 1" in caplog.text
    caplog.clear()
    assert Store(store.folder).rate == 50.0 and not caplog.text


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 1}', '{"format": "x"}', "\x00"])
def test_an_unreadable_description_is_said(tmp_path, text):
    store = new_store(tmp_path)
    (store.folder / "store.json").write_text(text)
    with pytest.raises(DamagedStore, match=r"store\.json"):
        Store(store.folder)


def test_the_format_is_what_its_description_says(tmp_path):
    """A reader written from the docstring alone finds the rewards."""
    write_block(tmp_path / "one.block", [encode(counting(3))], [6])
    data = (tmp_path / "one.block").read_bytes()
    magic, version, count, size, crc = struct.unpack_from("<8sIIQI", data)
    assert (magic, version, count, size) == (b"dreamsim", 1, 1, len(data))
    assert crc == zlib.crc32(data[:24] + data[28 : 28 + 32])
    offset, length, steps, record_crc, zero = struct.unpack_from("<QQQII", data, 28)
    record = data[offset : offset + length]
    assert (steps, zero, record_crc, offset % 64) == (6, 0, zlib.crc32(record), 0)
    (text_length,) = struct.unpack_from("<I", record)
    head = json.loads(record[4 : 4 + text_length])
    where = {(group, name): (kind, shape, start) for group, name, kind, shape, start in head["fields"]}
    kind, shape, start = where["step", "reward"]
    assert np.frombuffer(record, kind, 6, start).tolist() == [3001.0, 3002.0, 3003.0, 3004.0, 3005.0, 3006.0]
    assert shape == [6] and head["terminated"] is True and head["meta"]["seed"] == 3
