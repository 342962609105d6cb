import functools
import zlib

import gymnasium as gym
import numpy as np
import pytest
import torch

from dreamsim.evaluation import pictures
from dreamsim.evaluation.film import CannotFilm, dream_film, film_episode, real_frames, write

iio = pytest.importorskip("imageio_ffmpeg")


def columns(frame):
    """Return truth, dream and error of a strip."""
    width = (frame.shape[1] - 8) // 3
    return frame[:, :width], frame[:, width + 4 : 2 * width + 4], frame[:, 2 * width + 8 :]


def test_frames_are_those_of_the_very_moment(toys):
    (episode,) = toys.episodes(1)
    frames = list(real_frames(toys.Slide, episode, [0, 7, 40]))
    for frame, step in zip(frames, [0, 7, 40], strict=True):
        column = int(np.clip(32 + 16 * episode.obs["position"][step, 0], 2, 61))
        assert np.flatnonzero(frame[24, :, 0] > 100).tolist() == list(range(column - 2, column + 2))


def test_an_environment_that_does_not_repeat_itself_is_not_filmed(toys):
    (episode,) = toys.episodes(1)
    changed = episode._replace(action=episode.action * 0)
    with pytest.raises(CannotFilm, match="did not repeat"):
        list(real_frames(toys.Slide, changed, [30]))
    with pytest.raises(CannotFilm, match="rgb_array"):
        list(real_frames(functools.partial(toys.Slide, visible=False), episode, [0]))
    with pytest.raises(CannotFilm, match="without its seed"):
        list(real_frames(toys.Slide, episode._replace(meta={}), [0]))


def test_mp4_holds_the_frames_at_the_environments_rate(toys, tmp_path):
    (episode,) = toys.episodes(1)
    path = film_episode(toys.Slide, episode, tmp_path / "films" / "real.mp4")
    reader = iio.read_frames(str(path))
    about = next(reader)
    assert about["size"] == (64, 48) and about["fps"] == 20
    assert sum(1 for _ in reader) == 41
    assert [file.name for file in path.parent.iterdir()] == ["real.mp4"]


def test_odd_sizes_and_no_frames(tmp_path):
    write(tmp_path / "odd.mp4", [np.zeros((33, 47, 3), np.uint8)] * 3, 10)
    assert next(iio.read_frames(str(tmp_path / "odd.mp4")))["size"] == (46, 32)
    with pytest.raises(CannotFilm, match="no frames"):
        write(tmp_path / "none.mp4", [], 10)
    assert [file.name for file in tmp_path.iterdir()] == ["odd.mp4"]


def test_a_state_dream_is_shown_by_the_nearest_real_frame(toys):
    episode = toys.episodes(1)[0]
    for decodes in (True, False):
        film = dream_film(toys.Slide, toys.Exact(decodes=decodes), toys.codec, [episode, episode], context=3)
        assert film.columns[1] == "dream (nearest real frame)" and len(film.frames) == 37
        for frame in film.frames:
            truth, dream, error = columns(frame)
            np.testing.assert_array_equal(truth, dream)
            assert not error.any()
    wrong = dream_film(toys.Slide, toys.Exact(drag=1.1), toys.codec, toys.episodes(5), context=3)
    assert columns(wrong.frames[-1])[2].any()


class Seen(gym.ObservationWrapper):
    """Slide as a picture only."""

    def __init__(self, env):
        super().__init__(env)
        self.observation_space = gym.spaces.Dict(image=gym.spaces.Box(0, 255, (48, 64, 3), np.uint8))

    def observation(self, obs):
        return {"image": self.unwrapped.render()}


class Frozen(torch.nn.Module):
    """A model of pictures that believes that nothing ever changes."""

    def start(self, obs):
        return obs

    def update(self, state, action, obs):
        return obs

    def step(self, state, action):
        return state, torch.zeros(len(action)), torch.ones(len(action))

    def view(self, state):
        return state


def test_a_dream_of_pictures_is_shown_as_it_is(toys):
    from dreamsim.core.spaces import Codec
    from dreamsim.evaluation.episodes import evaluate_policy
    from dreamsim.evaluation.openloop import drift

    def make():
        return Seen(toys.Slide())

    env = make()
    codec = Codec(env.observation_space, env.action_space)
    episodes = evaluate_policy(make, toys.Push(0.5), episodes=2).episodes
    film = dream_film(make, Frozen(), codec, episodes, context=1)
    assert film.columns[1] == "dream (decoded)"
    first, last = columns(film.frames[0])[1], columns(film.frames[-1])[1]
    np.testing.assert_array_equal(first, last)
    assert columns(film.frames[-1])[2].any()
    found = drift(Frozen(), episodes, codec, context=1)
    np.testing.assert_allclose(found.observation["image"].model, found.observation["image"].copy)
    assert found.latent == {}


def test_pictures():
    frame = np.arange(8 * 6 * 3, dtype=np.uint8).reshape(8, 6, 3)
    assert pictures.fit(frame, 16).shape == (16, 12, 3)
    assert pictures.fit(frame, 4).shape == (4, 3, 3)
    assert pictures.as_rgb(np.full((1, 5, 4), 300.0)).tolist() == np.full((5, 4, 3), 255).tolist()
    assert not pictures.difference(frame, frame).any()
    raw = pictures.png(frame)
    start = raw.index(b"IDAT") + 4
    size = int.from_bytes(raw[start - 8 : start - 4])
    rows = np.frombuffer(zlib.decompress(raw[start : start + size]), np.uint8).reshape(8, 19)
    np.testing.assert_array_equal(rows[:, 1:].reshape(8, 6, 3), frame)
