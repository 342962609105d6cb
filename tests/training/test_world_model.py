"""How the rate of a world model that learns from recordings rises and falls."""

import pytest
from torch import nn

from dreamsim.training.world_model import FitWorldModel, warmed


@pytest.mark.parametrize(
    ("progress", "expected"), [(0.0, 0.0), (0.05, 0.5), (0.1, 1.0), (0.55, 0.5), (1.0, 0.0), (0.325, 0.85355)]
)
def test_the_rate_rises_in_a_line_and_falls_as_a_cosine(progress, expected):
    assert warmed(progress, 0.1) == pytest.approx(expected, abs=1e-5)


def test_only_what_learns_is_optimised_and_decays():
    module = FitWorldModel(nn.Identity, rate=0.5, decay=0.25)
    module.model = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2).requires_grad_(False)])
    (group,) = module.configure_optimizers().param_groups
    assert len(group["params"]) == 2 and group["weight_decay"] == 0.25 and group["lr"] == 0.5


def test_a_share_that_is_none_is_refused():
    with pytest.raises(ValueError, match="between 0 and 1"):
        FitWorldModel(nn.Identity, warm=1.5)
