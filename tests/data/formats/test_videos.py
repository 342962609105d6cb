"""Folders of videos with actions: counts that fit or not, every kind of actions file, frames at their steps."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from gymnasium import spaces

from dreamsim.core.types import Episode
from dreamsim.data.convert import recognise
from dreamsim.data.formats import videos
from dreamsim.data.formats.recording import BadRecording, LeftOut
from dreamsim.data.formats.videos_codec import Reel, encode, from_image, join, to_png
from tests.data.formats import lerobot_source as source


def folder(path, frames=20, name="swing", camera="", first=0, times=None):
    source.film(path / camera / f"{name}.mp4", source.coded(first + np.arange(frames)), times=times)
    return path


def actions(count, first=0):
    return (np.stack([first + np.arange(count), np.ones(count)], 1) / 256).astype(np.float32)


def write(path, array):
    rows = array.tolist()
    if path.suffix == ".csv":
        path.write_text("x,y\n" + "".join(f"{x},{y}\n" for x, y in rows))
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps({"action": row}) + "\n" for row in rows))
    elif path.suffix == ".npy":
        np.save(path, array)
    else:
        pq.write_table(pa.table({"action": rows}), path)


def read(path, **options):
    recording = videos.read(path, **options)
    items = list(recording.episodes)
    return (
        [item for item in items if isinstance(item, Episode)],
        [item for item in items if isinstance(item, LeftOut)],
        recording,
    )


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".npy", ".parquet"])
@pytest.mark.parametrize("count", [19, 20])
def test_frames_and_actions_meet(tmp_path, suffix, count):
    write(folder(tmp_path) / f"swing{suffix}", actions(count))
    assert recognise(tmp_path) == "videos"
    (episode,), left, recording = read(tmp_path)
    assert left == [] and recording.rate == 30
    assert source.decoded(episode.obs["image"]).tolist() == list(range(20))
    assert np.array_equal(episode.action, actions(count)[:19])
    assert episode.time == pytest.approx(np.arange(20) / 30, abs=1e-6)
    if count == 19:
        assert "last" not in episode.meta and "one frame more than actions" in recording.notes[-1]
    else:
        assert episode.meta["last"]["action"] == pytest.approx(actions(20)[19].tolist())
        assert "as many frames as actions" in recording.notes[-1]


def test_other_counts_are_left_out_by_name(tmp_path):
    write(folder(tmp_path) / "swing.csv", actions(20))
    write(folder(tmp_path, name="short", frames=10) / "short.csv", actions(7))
    episodes, left, _ = read(tmp_path)
    assert len(episodes) == 1 and left[0].name == "short"
    assert left[0].reason == "10 frames and 7 actions; expected as many, or one frame more than actions"


def test_one_file_for_all_with_cameras_rewards_and_ends(tmp_path):
    for name, first in (("a", 0), ("b", 50)):
        for camera in ("top", "side"):
            folder(tmp_path, 6, name, camera, first + (100 if camera == "side" else 0))
    lines = ["video,action,reward,terminated"]
    lines += [f"{name}.mp4,{i % 3},{10 * i},{int(i == 4)}" for name in "ab" for i in range(5)]
    (tmp_path / "actions.csv").write_text("\n".join(lines))
    episodes, left, recording = read(tmp_path)
    assert left == [] and recording.action_space == spaces.Discrete(3)
    assert set(recording.observation_space.spaces) == {"side", "top"}
    assert source.decoded(episodes[1].obs["top"]).tolist() == list(range(50, 56))
    assert source.decoded(episodes[1].obs["side"]).tolist() == list(range(150, 156))
    assert episodes[1].action.argmax(1).tolist() == [0, 1, 2, 0, 1]
    assert episodes[0].reward.tolist() == [0, 10, 20, 30, 40] and episodes[0].terminated


def test_a_video_with_a_hole_is_cut_there(tmp_path):
    folder(tmp_path, times=np.delete(np.arange(21), 7))
    write(tmp_path / "swing.npy", actions(20))
    episodes, _, recording = read(tmp_path)
    assert recording.rate == 30
    assert [source.decoded(episode.obs["image"]).tolist() for episode in episodes] == [
        list(range(7)),
        list(range(7, 20)),
    ]
    assert episodes[0].meta["last"]["action"][0] == 6 / 256  # what it led to, nobody saw
    assert "episode swing: masked: 1 frames missing after frame 6; cut there into 2 pieces" in recording.notes


def test_what_has_no_partner_is_named(tmp_path):
    write(folder(tmp_path, 5) / "swing.csv", actions(5))
    write(tmp_path / "nobody.csv", actions(5))
    with pytest.raises(BadRecording, match=r"nobody\.csv is not called like a video"):
        folder(tmp_path, 5, "alone")
        videos.read(tmp_path)
    (tmp_path / "nobody.csv").unlink()
    _, _, recording = read(tmp_path)
    assert any("orphans" in note and "alone" in note for note in recording.notes)


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("swing.csv", b"1,2\n3,4\n", "expected a first line that names each column"),
        ("swing.csv", b"x,y\n1,2\n3\n", "line 3: expected 2 values, got 1"),
        ("swing.csv", b"x,y\n1,left\n", "column y"),
        ("swing.csv", b"x\n\xff\xfe\n", "cannot be read as CSV"),
        ("swing.jsonl", b'{"action": [1]}\n{"action"', "line 2 is no JSON"),
        ("swing.jsonl", b'{"action": [1]}\n{"action": [1, 2]}\n', "as many in each row"),
        ("swing.jsonl", b"[" * 100_000, "no JSON"),
        ("swing.npy", b"\x93NUMPY\x01\x00", "cannot be read as numbers"),
        ("swing.parquet", b"PAR1PAR1", "cannot be read as Parquet"),
    ],
)
def test_an_actions_file_that_is_wrong_is_one_error(tmp_path, name, content, complaint):
    (folder(tmp_path, 2) / name).write_bytes(content)
    with pytest.raises(BadRecording, match=complaint):
        videos.read(tmp_path)


def test_objects_in_an_actions_file_are_never_loaded(tmp_path):
    folder(tmp_path, 2)
    np.save(tmp_path / "swing.npy", np.array([{"a": 1}], object), allow_pickle=True)
    with pytest.raises(BadRecording, match="objects are never loaded"):
        videos.read(tmp_path)


def test_a_playlist_is_no_video(tmp_path):
    """A playlist called .mp4 would make the decoder open whatever it names."""
    (tmp_path / "swing.mp4").write_text("#EXTM3U\n#EXTINF:1,\nfile:///etc/passwd\n#EXT-X-ENDLIST\n")
    with pytest.raises(BadRecording, match=r"swing\.mp4 cannot be opened as a video"):
        Reel(tmp_path / "swing.mp4")


@pytest.mark.parametrize("keep", [0.0, 0.3, 0.9])
def test_a_truncated_video_is_one_error(tmp_path, keep):
    path = folder(tmp_path) / "swing.mp4"
    path.write_bytes(path.read_bytes()[: int(keep * path.stat().st_size)])
    with pytest.raises(BadRecording, match=r"swing\.mp4"):
        Reel(path).rest()


@pytest.mark.parametrize("rate", [10.1, 12.5, 29.97, 60])
@pytest.mark.parametrize("side", [32, 40])
def test_joined_videos_keep_every_frame_at_its_time(tmp_path, rate, side):
    pictures = np.zeros((35, side, side, 3), np.uint8)
    pictures[:, :32, :32] = source.coded(np.arange(35))
    parts = [tmp_path / "0.mp4", tmp_path / "1.mp4"]
    encode(parts[0], pictures[:20], rate)
    encode(parts[1], pictures[20:], rate)
    join(tmp_path / "all.mp4", parts, [20, 15], rate)
    reel = Reel(tmp_path / "all.mp4")
    seen = reel.take(np.arange(35) / rate, 1e-4).transpose(0, 3, 1, 2)[..., :32, :32]
    assert source.decoded(seen).tolist() == list(range(35))
    again = reel.take(np.array([7, 9]) / rate, 1e-4).transpose(0, 3, 1, 2)[..., :32, :32]  # goes back
    assert source.decoded(again).tolist() == [7, 9]
    with pytest.raises(BadRecording, match="no frame at"):
        reel.take(np.array([35 / rate]), 1e-4)


def test_png_loses_nothing():
    picture = np.random.default_rng(0).integers(0, 256, (33, 31, 3), np.uint8)
    assert np.array_equal(from_image(to_png(picture)), picture)
    with pytest.raises(BadRecording, match="neither PNG nor JPEG"):
        from_image(b"GIF89a")
    with pytest.raises(BadRecording, match="damaged"):
        from_image(to_png(picture)[:50])
