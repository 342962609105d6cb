"""A picture shows what is there, the right way up, and never blackness for want of a context."""

import os

import mujoco
import numpy as np
import pytest

from dreamsim.envs import render
from dreamsim.envs.control import DeepMindControl

SCENE = """
<mujoco>
  <visual><headlight ambient="1 1 1" diffuse="0 0 0" specular="0 0 0"/></visual>
  <worldbody>
    <camera name="front" pos="0 -4 0" xyaxes="1 0 0 0 0 1"/>
    <camera name="away" pos="0 -4 0" xyaxes="-1 0 0 0 0 1"/>
    <geom type="sphere" size=".3" pos="-1 0 0" rgba="1 0 0 1"/>
    <geom type="sphere" size=".3" pos="1 0 0" rgba="0 0 1 1"/>
    <geom type="sphere" size=".3" pos="0 0 1" rgba="0 1 0 1"/>
  </worldbody>
</mujoco>
"""

try:
    render.choose_backend()
except render.NoPicture as error:
    pytest.skip(str(error), allow_module_level=True)


@pytest.fixture
def scene():
    model = mujoco.MjModel.from_xml_string(SCENE)
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    return model, data


def centre(frame, channel):
    """Row and column of the middle of what has this colour."""
    colour = frame[..., channel].astype(int) - np.delete(frame, channel, -1).max(-1)
    return np.argwhere(colour > 100).mean(0)


def test_red_is_left_blue_is_right_green_is_on_top(scene):
    model, data = scene
    frame = render.Eye(model).see(data, 64, 64, "front")
    assert frame.shape == (64, 64, 3) and frame.dtype == np.uint8
    middle = 31.5
    scale = 32 / np.tan(np.deg2rad(45 / 2)) / 4  # pixels a metre at the distance of the spheres
    for channel, (x, z) in enumerate([(-1, 0), (0, 1), (1, 0)]):
        np.testing.assert_allclose(centre(frame, channel), [middle - z * scale, middle + x * scale], atol=1.0)


def test_frames_of_every_size_come_from_one_eye(scene):
    model, data = scene
    eye = render.Eye(model)
    shapes = [eye.see(data, height, width, "front").shape for height, width in ((16, 32), (700, 900), (64, 64))]
    assert shapes == [(16, 32, 3), (700, 900, 3), (64, 64, 3)]


def test_a_camera_is_bound_by_name(scene):
    model, data = scene
    with pytest.raises(ValueError, match=r"no camera 'wrist'; it has \['front', 'away'\]"):
        render.Eye(model).see(data, 8, 8, "wrist")
    with pytest.raises(ValueError, match="no camera 2"):
        render.Eye(model).see(data, 8, 8, 2)


def test_black_is_an_error_not_a_frame(scene):
    model, data = scene
    with pytest.raises(render.NoPicture, match="black"):
        render.Eye(model).see(data, 8, 8, "away")


def test_a_sibling_that_closes_blackens_nothing():
    envs = [DeepMindControl("pendulum", "swingup", pixels=32) for _ in range(3)]
    frames = [env.reset(seed=0)[0]["image"] for env in envs]
    assert all(np.array_equal(frame, frames[0]) and frame.any() for frame in frames)
    envs[0].close()
    assert np.array_equal(envs[1].reset(seed=0)[0]["image"], frames[0])
    envs[2].close()
    assert np.array_equal(envs[1].reset(seed=0)[0]["image"], frames[0])
    assert np.array_equal(envs[0].reset(seed=0)[0]["image"], frames[0])  # it opens again
    for env in envs:
        env.close()


def test_opening_and_closing_leaves_nothing_behind():
    def held():
        return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))

    counts = []
    for _ in range(6):
        env = DeepMindControl("pendulum", "swingup", pixels=16)
        env.reset(seed=0)
        env.close()
        counts.append(held())
    assert counts[1:] == counts[1:2] * 5


def test_pixels_are_the_observation_and_a_film_frame_is_larger():
    env = DeepMindControl("pendulum", "swingup", pixels=24)
    obs, _ = env.reset(seed=0)
    assert list(obs) == ["image"] and env.observation_space.contains(obs) and obs["image"].shape == (24, 24, 3)
    assert env.render().shape == (480, 480, 3)
    env.step(np.ones(1))
    assert not np.array_equal(env.step(np.ones(1))[0]["image"], obs["image"])
    env.close()


def test_a_probe_says_why_a_back_end_does_not_work(monkeypatch):
    assert render.probe(render.choose_backend()) is None
    with pytest.raises(ValueError, match="known: egl, osmesa, glfw"):
        render.draw_sphere("vulkan")
    monkeypatch.setenv("DISPLAY", "")
    assert "glfw" in (render.probe("glfw") or "glfw works here")
