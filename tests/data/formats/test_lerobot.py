"""LeRobot datasets in and out: the right frame at the right step, and nothing lost on the way back."""

from __future__ import annotations

import json

import av
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from gymnasium import spaces

from dreamsim.core.types import Episode
from dreamsim.data.convert import convert, recognise
from dreamsim.data.formats import lerobot
from dreamsim.data.formats.recording import BadRecording, LeftOut
from dreamsim.data.store import Store
from tests.data.formats import lerobot_source as source

MAKERS = [
    pytest.param(source.v21, "video", id="2.1-video"),
    pytest.param(source.v21, "image", id="2.1-image"),
    pytest.param(source.v30, "video", id="3.0-video"),
    pytest.param(source.v30, "image", id="3.0-image"),
]
KB = 1 / 1024


def read(path, **options):
    """Return (episodes, names of those left out, recording)."""
    recording = lerobot.read(path, **options)
    items = list(recording.episodes)
    good = [item for item in items if isinstance(item, Episode)]
    return good, [item for item in items if isinstance(item, LeftOut)], recording


def stored(recording, folder):
    with Store.create(
        folder, recording.observation_space, recording.action_space, rate=recording.rate, meta=recording.meta
    ) as store:
        for episode in recording.episodes:
            store.append(episode)
    return store


def quiet(done, total):
    pass


@pytest.mark.parametrize(("make", "kind"), MAKERS)
def test_each_step_has_its_own_frame(tmp_path, make, kind):
    episodes, left, recording = read(make(tmp_path / "set", cameras=("top",), kind=kind))
    assert (len(episodes), left, recording.rate) == (3, [], 30)
    first = 0
    for number, (episode, length) in enumerate(zip(episodes, (8, 6, 7), strict=True)):
        index = first + np.arange(length)
        assert source.decoded(episode.obs["top"]).tolist() == index.tolist()
        assert episode.obs["state"][:, 0].tolist() == index.tolist()
        assert episode.action.shape == (length - 1, 2)
        assert episode.action[:, 0] == pytest.approx(index[:-1] * 0.001)
        assert episode.reward.tolist() == index[:-1].tolist()
        assert episode.time == pytest.approx(np.arange(length) / 30)
        assert episode.meta["last"]["action"][0] == pytest.approx(index[-1] * 0.001)
        assert (episode.meta["last"]["reward"], episode.meta["last"]["terminated"]) == (index[-1], True)
        assert not episode.terminated
        assert (episode.meta["task"], episode.meta["success"]) == (source.TASKS[number % 2], number % 2 == 0)
        first += length


def test_cameras_are_bound_by_name(tmp_path):
    made = source.v21(tmp_path / "set", cameras=("top", "wrist"), layout=("channels", "height", "width"))
    episodes, _, _ = read(made)
    assert source.decoded(episodes[1].obs["top"]).tolist() == [8, 9, 10, 11, 12, 13]
    assert source.decoded(episodes[1].obs["wrist"]).tolist() == [108, 109, 110, 111, 112, 113]
    chosen, _, recording = read(made, cameras=["wrist"])
    assert set(recording.observation_space.spaces) == {"state", "wrist"}
    assert source.decoded(chosen[1].obs["wrist"])[0] == 108
    with pytest.raises(BadRecording, match="no camera 'side' in the data; it has 'top', 'wrist'"):
        lerobot.read(made, cameras=["top", "side"])


def test_a_declared_size_the_pictures_do_not_have_is_named(tmp_path):
    made = source.v21(tmp_path / "set", cameras=("top",))
    about = json.loads((made / "meta/info.json").read_text())
    about["features"]["observation.images.top"]["shape"] = [24, 32, 3]
    (made / "meta/info.json").write_text(json.dumps(about))
    _, left, _ = read(made)
    assert len(left) == 3 and "declared 24 high and 32 wide, but its pictures are 32 and 32" in left[0].reason


@pytest.mark.parametrize("video", [True, False])
def test_a_round_trip_gives_everything_back(tmp_path, video):
    before = stored(lerobot.read(source.v30(tmp_path / "set", cameras=("top",), kind="image")), tmp_path / "before")
    assert lerobot.write(before, tmp_path / "made", quiet, video=video) == []
    after = stored(lerobot.read(tmp_path / "made"), tmp_path / "after")
    assert after.codec.raw_observation_space == before.codec.raw_observation_space
    assert after.codec.raw_action_space == before.codec.raw_action_space
    assert after.rate == before.rate and after.meta == before.meta
    for one, other in zip(before, after, strict=True):
        assert np.array_equal(one.obs["state"], other.obs["state"])
        assert np.abs(one.obs["top"].astype(int) - other.obs["top"]).max() <= (8 if video else 0)
        assert np.array_equal(one.action, other.action) and one.action.dtype == other.action.dtype
        assert np.array_equal(one.reward, other.reward) and one.terminated == other.terminated
        assert one.meta == other.meta
        assert np.array_equal(one.time, other.time)


def test_files_that_are_full_roll_over_and_indices_go_on(tmp_path):
    store = stored(lerobot.read(source.v30(tmp_path / "set", cameras=("top",))), tmp_path / "store")
    made = tmp_path / "made"
    caps = {"data_files_size_in_mb": KB, "video_files_size_in_mb": KB}
    lerobot.write(store, made, quiet, **caps, chunks_size=2)
    assert check_schema(made) == {"episodes": 3, "frames": 21, "data files": 3, "video files": 3}
    assert (made / "data/chunk-001/file-000.parquet").is_file()
    lerobot.write(store, tmp_path / "one", quiet)
    assert check_schema(tmp_path / "one") == {"episodes": 3, "frames": 21, "data files": 1, "video files": 1}
    assert set(read(tmp_path / "one", cameras=[])[2].observation_space.spaces) == {"state"}
    again, left, _ = read(tmp_path / "one")
    assert left == [] and source.decoded(again[2].obs["top"]).tolist() == list(range(14, 21))


def test_a_store_without_last_actions_is_written_and_comes_back(tmp_path):
    rng = np.random.default_rng(0)
    seen = spaces.Dict(
        {
            "grey": spaces.Box(0, 255, (32, 32, 1), np.uint8),
            "mode": spaces.Discrete(3),
            "grid": spaces.Box(-9, 9, (2, 3), np.float64),
            "said": spaces.Text(8),
        }
    )
    with Store.create(tmp_path / "store", seen, spaces.Discrete(4, start=1), rate=12.5) as store:
        for length, ends in ((3, True), (4, False)):
            raw = [{**seen.sample(), "said": "hé" * i} for i in range(length + 1)]
            rows = [store.codec.encode_obs(one) for one in raw]
            obs = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
            action = np.stack([store.codec.flatten_action(1 + i) for i in range(length)])
            trace = {"log_prob": rng.normal(size=length).astype(np.float32)}
            store.append(Episode(obs, action, rng.normal(size=length), ends, None, trace, {"seed": 7}))
    notes = lerobot.write(store, tmp_path / "made", quiet, video=False)
    assert any("grey" in note for note in notes) and any("2 episodes have no action" in note for note in notes)
    check_schema(tmp_path / "made")
    done = pq.read_table(tmp_path / "made/data/chunk-000/file-000.parquet")["next.done"].to_pylist()
    assert done == [False, False, True, True, False, False, False, False, False]
    episodes, left, recording = read(tmp_path / "made")
    assert left == [] and recording.observation_space == seen and recording.action_space == spaces.Discrete(4, start=1)
    for one, other in zip(store, episodes, strict=True):
        assert all(np.array_equal(one.obs[name], other.obs[name]) for name in one.obs)
        assert np.array_equal(one.action, other.action) and np.array_equal(one.reward, other.reward)
        assert np.array_equal(one.trace["log_prob"], other.trace["log_prob"])
        assert other.terminated == one.terminated and other.meta["seed"] == 7 and "last" not in other.meta


def test_nested_observations_and_composite_actions_come_back(tmp_path):
    arm = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    seen = spaces.Dict(
        {"arms": spaces.Tuple((arm, arm)), "eye": spaces.Dict({"left": spaces.Box(0, 255, (3, 8, 8), np.uint8)})}
    )
    acts = spaces.Dict({"grip": spaces.Discrete(2), "move": spaces.Box(-2, 2, (3,), np.float32)})
    with Store.create(tmp_path / "store", seen, acts, rate=10) as store:
        rows = [store.codec.encode_obs(seen.sample()) for _ in range(5)]
        obs = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
        action = np.stack([store.codec.flatten_action(acts.sample()) for _ in range(4)])
        store.append(Episode(obs, action, None, True, None, {}, {}))
    notes = lerobot.write(store, tmp_path / "made", quiet, video=False)
    assert any("composite" in note for note in notes)
    check_schema(tmp_path / "made")
    (episode,), left, recording = read(tmp_path / "made")
    assert left == [] and recording.observation_space == seen and recording.action_space == acts
    assert all(np.array_equal(obs[name], episode.obs[name]) for name in obs)
    assert np.array_equal(episode.action, action) and episode.terminated and episode.reward is None


def test_what_we_kept_beside_it_is_not_needed(tmp_path):
    """Others may edit a dataset of ours, or damage what only we read."""
    store = stored(lerobot.read(source.v30(tmp_path / "set", cameras=("top",))), tmp_path / "store")
    lerobot.write(store, tmp_path / "made", quiet)
    about = json.loads((tmp_path / "made/meta/info.json").read_text())
    for kept in (None, {}, {"keys": 3}, {**about["dreamsim"], "observation_space": {"type": "Box"}}):
        (tmp_path / "made/meta/info.json").write_text(json.dumps({**about, "dreamsim": kept}))
        episodes, left, _ = read(tmp_path / "made")
        assert left == [] and source.decoded(episodes[2].obs["top"]).tolist() == list(range(14, 21))


def test_times_off_the_beat_are_kept(tmp_path):
    space = spaces.Box(-1, 1, (1,), np.float32)
    times = np.array([5.0, 5.1, 5.25, 5.3])
    with Store.create(tmp_path / "store", space, space, rate=10) as store:
        numbers = np.arange(4, dtype=np.float32)[:, None]
        store.append(Episode({"observation": numbers}, numbers[:3] / 4, None, False, times, {}, {}))
    assert any("recorded_time" in note for note in lerobot.write(store, tmp_path / "made", quiet))
    check_schema(tmp_path / "made")
    episodes, _, _ = read(tmp_path / "made")
    assert np.array_equal(episodes[0].time, times) and episodes[0].reward is None


def test_ends_inside_an_episode_cut_it(tmp_path):
    made = source.v21(tmp_path / "set", lengths=(10,))
    path = made / "data/chunk-000/episode_000000.parquet"
    table = pq.read_table(path)
    done = pa.array([number in (4, 9) for number in range(10)])
    pq.write_table(table.set_column(table.column_names.index("next.done"), "next.done", done), path)
    episodes, left, recording = read(made)
    assert left == [] and [episode.obs["state"][:, 0].tolist() for episode in episodes] == [
        [0, 1, 2, 3, 4],
        [6, 7, 8, 9],
    ]
    assert "last" not in episodes[0].meta and episodes[1].meta["last"]["reward"] == 9
    assert any("several episodes in one" in note for note in recording.notes)


def test_a_bad_episode_is_named_and_the_rest_loads(tmp_path):
    made = source.v21(tmp_path / "set", cameras=("top",))
    film = made / "videos/chunk-000/observation.images.top/episode_000001.mp4"
    film.write_bytes(film.read_bytes()[:300])
    (made / "data/chunk-000/episode_000009.parquet").write_bytes(b"nobody's")
    episodes, left, recording = read(made)
    assert len(episodes) == 2 and [item.name for item in left] == [1]
    assert not any("global index" in note for note in recording.notes)
    assert "episode_000001.mp4" in left[0].reason
    assert any("orphan" in note and "episode_000009.parquet" in note for note in recording.notes)


def test_metadata_that_names_the_wrong_file_is_seen_through(tmp_path):
    made = source.v30(tmp_path / "set", per_file=1)
    path = made / "meta/episodes/chunk-000/file-000.parquet"
    table = pq.read_table(path)
    wrong = pa.array([0, 0, 2])
    pq.write_table(table.set_column(table.column_names.index("data/file_index"), "data/file_index", wrong), path)
    episodes, left, recording = read(made)
    assert left == [] and episodes[1].obs["state"][:, 0].tolist() == list(range(8, 14))
    assert any("other data files" in note for note in recording.notes)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"codebase_version": "v1.6"}, "v2.0, v2.1 and v3.0 can be read"),
        ({"fps": 0}, "expected fps above 0"),
        ({"features": []}, "expected features"),
        ({"data_path": "../../secret/{episode_index}"}, "leads out of the dataset"),
        ({"data_path": "{nothing}"}, "cannot be filled in"),
    ],
)
def test_metadata_that_is_wrong_is_refused_by_name(tmp_path, change, complaint):
    made = source.v21(tmp_path / "set", lengths=(3,))
    about = json.loads((made / "meta/info.json").read_text()) | change
    (made / "meta/info.json").write_text(json.dumps(about))
    with pytest.raises(BadRecording, match=complaint):
        list(lerobot.read(made).episodes)


def test_it_goes_through_the_child(tmp_path):
    made = source.v30(tmp_path / "set", cameras=("top",))
    assert recognise(made) == "lerobot"
    done = convert(made, tmp_path / "store", reading={"cameras": []})
    assert (done.source_format, done.episodes, done.steps) == ("lerobot", 3, 18)
    assert set(Store(tmp_path / "store").codec.observation_space.spaces) == {"state"}
    with pytest.raises(BadRecording, match="no option 'camera' to read; it takes clock, cameras"):
        convert(made, tmp_path / "other", reading={"camera": ["top"]})


@pytest.mark.parametrize("name", ["meta/info.json", "meta/tasks.parquet", "meta/episodes/chunk-000/file-000.parquet"])
@pytest.mark.parametrize("keep", [0.0, 0.5, 0.97])
def test_truncated_metadata_is_one_clear_error(tmp_path, name, keep):
    made = source.v30(tmp_path / "set", lengths=(3, 3))
    data = (made / name).read_bytes()
    (made / name).write_bytes(data[: int(keep * len(data))])
    with pytest.raises(BadRecording, match=name.rpartition("/")[2]):
        list(lerobot.read(made).episodes)


def test_noise_in_any_file_ends_in_one_error(tmp_path):
    """Bytes changed at random: what cannot be read is named, and nothing crashes or hangs."""
    rng = np.random.default_rng(0)
    made = source.v30(tmp_path / "set", lengths=(4, 4), cameras=("top",), per_file=1)
    files = [path for path in sorted(made.rglob("*")) if path.is_file()]
    for path in files:
        whole = path.read_bytes()
        for round_ in range(12):
            noisy = np.frombuffer(whole, np.uint8).copy()
            noisy[rng.integers(0, len(noisy), 1 + 3 * round_)] = rng.integers(0, 256)
            path.write_bytes(noisy.tobytes()[: len(whole) if round_ % 2 else int(rng.integers(1, len(whole)))])
            try:
                for item in lerobot.read(made).episodes:
                    assert isinstance(item, (Episode, LeftOut))
            except BadRecording:
                pass
        path.write_bytes(whole)


def check_schema(root) -> dict[str, int]:
    """Check a dataset against the documented layout of version 3.0; return what is in it.

    Follows huggingface/lerobot, src/lerobot/datasets: ``create_empty_dataset_info``, ``_save_episode_data``,
    ``_save_episode_video``, ``_save_episode_metadata``, ``get_hf_features_from_features``.
    """
    info = json.loads((root / "meta/info.json").read_text())
    assert info["codebase_version"] == "v3.0" and info["splits"] == {"train": f"0:{info['total_episodes']}"}
    assert {"robot_type", "total_tasks", "chunks_size", "data_files_size_in_mb", "video_files_size_in_mb"} <= set(info)
    cameras = [key for key, kind in info["features"].items() if kind["dtype"] == "video"]
    columns = [key for key in info["features"] if key not in cameras]
    tasks = pq.read_table(root / "meta/tasks.parquet")
    assert json.loads(tasks.schema.metadata[b"pandas"])["index_columns"] == ["__index_level_0__"]
    assert tasks["task_index"].to_pylist() == list(range(info["total_tasks"]))
    files = sorted((root / "meta/episodes").glob("*/*.parquet"))
    rows = [row for path in files for row in pq.read_table(path).to_pylist()]
    assert [row["episode_index"] for row in rows] == list(range(info["total_episodes"]))
    at, places = 0, []
    for row in rows:
        assert (row["dataset_from_index"], row["dataset_to_index"]) == (at, at + row["length"])
        place = row["data/chunk_index"], row["data/file_index"]
        table = pq.read_table(root / info["data_path"].format(chunk_index=place[0], file_index=place[1]))
        assert table.column_names == columns
        mine = table.filter(pa.compute.equal(table["episode_index"], row["episode_index"]))
        assert mine["index"].to_pylist() == list(range(at, at + row["length"]))
        assert mine["frame_index"].to_pylist() == list(range(row["length"]))
        assert np.allclose(mine["timestamp"].to_numpy(), np.arange(row["length"]) / info["fps"], atol=1e-4)
        for key in columns:
            check_column(key, table.schema.field(key).type, info["features"][key])
        at, places = at + row["length"], [*places, place]
    assert at == info["total_frames"] and places == sorted(places)
    videos = sum(check_videos(root, info, key, rows) for key in cameras)
    stats = json.loads((root / "meta/stats.json").read_text())
    numbers = {key for key, kind in info["features"].items() if kind["dtype"] != "string"}
    assert set(stats) == numbers and set(stats["index"]) >= {"min", "max", "mean", "std", "count"}
    assert stats["index"]["max"] == [at - 1] and stats["index"]["count"] == [at]
    assert stats["index"]["mean"] == pytest.approx([(at - 1) / 2])
    assert stats["index"]["std"] == pytest.approx([np.arange(at).std()])
    assert all(np.shape(stats[key]["mean"]) == (3, 1, 1) for key in stats if ".images." in key)
    return {"episodes": len(rows), "frames": at, "data files": len(set(places)), "video files": videos}


def check_column(key, kind, feature):
    shape = feature["shape"]
    if feature["dtype"] == "image":
        assert kind == pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    elif shape == [1]:
        assert str(kind) == {"float32": "float", "float64": "double"}.get(feature["dtype"], feature["dtype"]), key
    elif len(shape) == 1:
        assert pa.types.is_fixed_size_list(kind) and kind.list_size == shape[0]
    else:
        assert pa.types.is_list(kind)


def check_videos(root, info, key, rows) -> int:
    used: dict[tuple[int, int], float] = {}
    for row in rows:
        place = row[f"videos/{key}/chunk_index"], row[f"videos/{key}/file_index"]
        start, stop = (row[f"videos/{key}/{side}_timestamp"] for side in ("from", "to"))
        assert start == pytest.approx(used.get(place, 0.0)) and stop - start == pytest.approx(
            row["length"] / info["fps"]
        )
        used[place] = stop
    assert list(used) == sorted(used)
    for place, seconds in used.items():
        path = root / info["video_path"].format(video_key=key, chunk_index=place[0], file_index=place[1])
        with av.open(str(path)) as film:
            times = [frame.time for frame in film.decode(video=0)]
        grid = np.arange(round(seconds * info["fps"])) / info["fps"]
        assert np.allclose(times, grid, atol=1e-4)  # LeRobot's tolerance
        assert info["features"][key]["info"]["video.fps"] == info["fps"]
    return len(used)
