"""Any environment of Gymnasium by its id; a wrong id is answered with the right one."""

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from dreamsim.envs.adapt import adapt
from dreamsim.envs.named import Named, shrink


@pytest.mark.filterwarnings("ignore:.*symmetric and normalized")
def test_classic_control_runs_as_it_is():
    env = Named("CartPole-v1")
    obs, _ = env.reset(seed=0)
    assert obs.shape == (4,)
    assert adapt(env).codec.action_size == 2
    check_env(Named("Pendulum-v1").unwrapped, skip_render_check=True)


def test_repeat_and_options_reach_the_env():
    env = Named("dreamsim.envs:dreamsim/Clock-v0", repeat=4, options={"end": 6})
    assert env.metadata["action_repeat"] == 4
    env.reset()
    assert env.step(np.zeros(1))[:3] == (4, 4.0, False)
    assert env.step(np.zeros(1))[:3] == (6, 2.0, True)


@pytest.mark.parametrize("wrong, right", [("CartPole-v9", "CartPole-v1"), ("pendulum", "Pendulum-v1")])
def test_a_wrong_id_is_answered_with_the_nearest(wrong, right):
    with pytest.raises(ValueError, match=right):
        Named(wrong)


def test_a_missing_package_is_named():
    with pytest.raises(ImportError, match="no_such_package"):
        Named("no_such_package:Thing-v0")


def test_a_misspelt_option_is_refused():
    with pytest.raises(TypeError, match="gravitee"):
        Named("Pendulum-v1", options={"gravitee": 1})


def test_frames_are_averaged_down():
    frame = np.zeros((10, 6, 3), np.uint8)
    frame[:5, :3] = 200
    assert shrink(frame, 2)[..., 0].tolist() == [[200, 0], [0, 0]]
    with pytest.raises(ValueError, match="at most"):
        shrink(frame, 7)


def test_mujoco_pixels_survive_a_closed_sibling():
    pytest.importorskip("mujoco")
    one, two = (Named("InvertedPendulum-v5", pixels=32) for _ in range(2))
    first = one.reset(seed=0)[0]["image"]
    assert np.array_equal(first, two.reset(seed=0)[0]["image"]) and first.any()
    one.close()
    assert np.array_equal(two.reset(seed=0)[0]["image"], first)
    two.close()
