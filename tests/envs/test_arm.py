"""The arm that is told no task."""

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from dreamsim.core import checks
from robots.arm import Arm


@pytest.mark.filterwarnings("ignore")
def test_it_keeps_gymnasium_s_contract_and_ours():
    check_env(Arm(), skip_render_check=True)
    assert any("equal episodes" in line for line in checks.check_env(Arm, steps=20))


def test_it_begins_where_it_is_told_and_says_where_its_tip_is():
    arm = Arm()
    obs, info = arm.reset(options={"joints": (0.0, np.pi / 2), "speeds": (0.0, 0.0)})
    np.testing.assert_allclose(obs["pose"], [1, 0, 0, 1], atol=1e-6)
    np.testing.assert_allclose(info["tip"], [0.12, 0.12], atol=1e-3)
    for _ in range(5):
        obs, reward, _, _, info = arm.step(np.array([1.0, 0.0]))
    assert reward == 0 and info["speeds"][0] > 0 and obs["pose"][1] > 0.01


def test_an_episode_is_cut_after_its_steps():
    arm = Arm(steps=3)
    arm.reset(seed=0)
    assert [arm.step(np.zeros(2))[3] for _ in range(3)] == [False, False, True]
    with pytest.raises(ValueError, match="1 or more"):
        Arm(steps=0)
