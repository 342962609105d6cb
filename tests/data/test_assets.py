"""The recordings that ship are whole and readable by this version."""

from pathlib import Path

import numpy as np

from dreamsim.data.inspect import examine, tell
from dreamsim.data.store import Store

PENDULUM = Path(__file__).parents[2] / "assets" / "pendulum"


def test_the_recorded_pendulum_swings_by_the_laws_it_was_recorded_under():
    store = Store(PENDULUM, mend=False)
    assert store.steps.tolist() == [200] * 10 and store.rate == 20
    for episode in store:
        cos, sin, speed = episode.obs["observation"].astype(np.float64).T
        torque = np.clip(episode.action[:, 0], -2, 2)
        later = np.clip(speed[:-1] + (15 * sin[:-1] + 3 * torque) * 0.05, -8, 8)
        np.testing.assert_allclose(later, speed[1:], atol=1e-4)
        assert np.allclose(cos**2 + sin**2, 1, atol=1e-5) and not episode.terminated
    assert any("nothing wrong" in line for line in tell(examine(PENDULUM)))
