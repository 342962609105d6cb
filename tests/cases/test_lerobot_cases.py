"""Faults of datasets that bit users of other tools: clocks that miss, indices at a file's end, cameras by position."""

from __future__ import annotations

import numpy as np
import pytest

from dreamsim.core.types import Episode
from dreamsim.data.formats import lerobot
from dreamsim.data.formats.lerobot_clock import CLOCKS, listen
from dreamsim.data.formats.recording import BadRecording, LeftOut
from dreamsim.data.store import Store
from tests.data.formats import lerobot_source as source

DROPPED = 7  # the frame that a camera at 30 fps lost


def stamps(frames: int = 20) -> np.ndarray:
    """Return the times of ``frames`` frames at 30 fps of which one was dropped, with 4 ms of jitter either way."""
    number = np.delete(np.arange(frames + 1), DROPPED)
    return number / 30 + np.resize([0.004, -0.004], frames) * (number > 0)


def read(path, **options):
    recording = lerobot.read(path, **options)
    return list(recording.episodes), recording.notes


def test_a_dropped_frame_and_jitter_are_heard():
    beats = listen(stamps(), 30)
    assert (beats.gaps.tolist(), beats.missing, beats.back.tolist()) == ([DROPPED - 1], 1, [])
    assert beats.jitter == pytest.approx(0.008)


def test_mask_lets_no_step_span_the_gap(tmp_path):
    episodes, notes = read(source.v21(tmp_path / "set", lengths=(20,), cameras=("top",), stamps=stamps()))
    assert [source.decoded(episode.obs["top"]).tolist() for episode in episodes] == [
        list(range(7)),
        list(range(7, 20)),
    ]
    assert [episode.meta["part"] for episode in episodes] == [0, 1]
    assert all(np.diff(episode.time).max() < 1.5 / 30 for episode in episodes)
    assert notes[-1] == "episode 0: masked: 1 frames missing after frame 6; cut there into 2 pieces"


def test_drop_leaves_the_episode_out_by_name(tmp_path):
    made = source.v21(tmp_path / "set", lengths=(20,), stamps=stamps())
    (left,), _ = read(made, clock="drop")
    assert left == LeftOut(0, "dropped: 1 frames missing after frame 6")


def test_interpolate_puts_every_frame_on_the_beat(tmp_path):
    made = source.v21(tmp_path / "set", lengths=(20,), cameras=("top",), stamps=stamps())
    (episode,), notes = read(made, clock="interpolate")
    assert isinstance(episode, Episode)
    assert np.allclose(np.diff(episode.time), 1 / 30) and len(episode.time) == 21
    state = episode.obs["state"][:, 0]
    assert state[DROPPED] == pytest.approx(6.5, abs=0.15)  # between its neighbours 6 and 7, which stood 8 ms apart
    assert source.decoded(episode.obs["top"]).tolist() == [*range(7), 6, *range(7, 20)]  # pictures are held
    assert notes[-1].startswith("episode 0: interpolated: 1 frames missing after frame 6, jitter of 8.0 ms")


def test_a_film_that_leaves_out_frames_is_read_by_its_times(tmp_path):
    """A video with a hole: the frame that belongs to each row is found by time, not by count."""
    made = source.v21(tmp_path / "set", lengths=(20,), cameras=("top",), stamps=np.delete(np.arange(21), DROPPED) / 30)
    path = made / "videos/chunk-000/observation.images.top/episode_000000.mp4"
    shown = np.delete(np.arange(21), DROPPED)
    source.film(path, source.coded(np.arange(20)), times=shown)
    episodes, _ = read(made)
    assert [source.decoded(episode.obs["top"]).tolist() for episode in episodes] == [
        list(range(7)),
        list(range(7, 20)),
    ]


def test_time_that_runs_back_is_no_step(tmp_path):
    made = source.v21(tmp_path / "set", lengths=(6,), stamps=np.array([0, 1, 2, 1, 2, 3]) / 30)
    episodes, notes = read(made)
    assert [episode.obs["state"][:, 0].tolist() for episode in episodes] == [[0, 1, 2], [3, 4, 5]]
    assert "time does not rise after frame 2" in notes[-1]
    (left,), _ = read(made, clock="interpolate")
    assert isinstance(left, LeftOut)
    with pytest.raises(BadRecording, match="no clock called 'mend'; choose one of drop, mask, interpolate"):
        lerobot.read(made, clock="mend")


@pytest.mark.parametrize("clock", CLOCKS)
def test_a_clock_that_keeps_time_is_left_alone(tmp_path, clock):
    (episode,), notes = read(source.v21(tmp_path / "set", lengths=(20,)), clock=clock)
    assert len(episode.action) == 19 and not any("episode 0" in note for note in notes)


@pytest.mark.parametrize("kind", ["video", "image"])
def test_a_file_that_is_full_does_not_shift_the_next_episode(tmp_path, kind):
    """1 KB a file, 3 episodes: ranges rise and sum to the frames; every picture is its own row's."""
    recording = lerobot.read(source.v30(tmp_path / "set", cameras=("top",), kind=kind))
    with Store.create(tmp_path / "store", recording.observation_space, recording.action_space, rate=30) as store:
        for episode in recording.episodes:
            store.append(episode)
    caps = {"data_files_size_in_mb": 1 / 1024, "video_files_size_in_mb": 1 / 1024}
    lerobot.write(store, tmp_path / "made", lambda done, total: None, video=kind == "video", **caps)
    assert len(list((tmp_path / "made/data").rglob("*.parquet"))) == 3
    rows = lerobot.lerobot_info.load(tmp_path / "made").rows
    assert [row.length for row in rows] == [8, 6, 7] and len({row.data for row in rows}) == 3
    episodes, notes = read(tmp_path / "made")
    seen = np.concatenate([source.decoded(episode.obs["top"]) for episode in episodes])
    assert seen.tolist() == list(range(21))
    assert not any("index" in note or "orphan" in note for note in notes)


def test_data_of_other_cameras_is_refused_by_name(tmp_path):
    """A world that sees {top, wrist} is given recordings of {top, side}."""
    made = source.v21(tmp_path / "set", lengths=(4,), cameras=("top", "side"))
    with pytest.raises(BadRecording, match="no camera 'wrist' in the data; it has 'side', 'top'"):
        lerobot.read(made, cameras=["top", "wrist"])
    other = lerobot.read(source.v21(tmp_path / "other", lengths=(4,), cameras=("top", "wrist")))
    given = next(iter(lerobot.read(made).episodes))
    with (
        Store.create(tmp_path / "store", other.observation_space, other.action_space) as store,
        pytest.raises(ValueError, match=r"'side', 'state', 'top'.*'state', 'top', 'wrist'"),
    ):
        store.append(given)
