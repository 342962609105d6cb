"""LeWM: losses by hand, gradients that nothing stops, a history that forgets, and a latent that does not collapse."""

import numpy as np
import pytest
import torch
from gymnasium import spaces

from dreamsim.core import checks
from dreamsim.core.checks import random_segment
from worldmodels import history
from worldmodels.joint_embedding import LeWM, Projector, pieces, published
from worldmodels.sigreg import SIGReg, breadth

VECTORS = spaces.Dict({"pose": spaces.Box(-9, 9, (3,), np.float32), "touch": spaces.Box(-9, 9, (), np.float32)})
IMAGES = spaces.Dict({"image": spaces.Box(0, 255, (3, 16, 16), np.uint8), "pose": spaces.Box(-9, 9, (2,), np.float32)})
ACTIONS = spaces.Box(-1, 1, (2,), np.float32)


def small(observations=VECTORS, **options) -> LeWM:
    torch.manual_seed(0)
    return LeWM(observations, ACTIONS, latent=8, hidden=16, encoder_depth=1, depth=1, heads=2, head_size=4, **options)


# --- SIGReg


def statistic(rows: torch.Tensor, direction: torch.Tensor) -> float:
    """The Epps-Pulley integral by a fine sum over t in [-3, 3]."""
    t = torch.linspace(-3, 3, 6001, dtype=torch.float64)
    along = (rows @ direction).double()
    found = torch.exp(1j * t[:, None] * along[None]).mean(1)
    normal = torch.exp(-t.square() / 2)
    return float(len(rows) * torch.trapezoid((found - normal).abs().square() * normal, t))


def test_sigreg_equals_the_integral():
    torch.manual_seed(0)
    rows = torch.randn(50, 4) * 1.5 + 0.3
    sigreg = SIGReg(projections=3, knots=201)
    torch.manual_seed(1)
    direction = torch.nn.functional.normalize(torch.randn(4, 3), dim=0)
    torch.manual_seed(1)
    found = sigreg(rows[None])
    assert float(found) == pytest.approx(np.mean([statistic(rows, direction[:, i]) for i in range(3)]), rel=1e-3)


def test_the_slope_of_sigreg_is_that_of_its_value():
    torch.manual_seed(0)
    rows = torch.randn(2, 6, 3, dtype=torch.float64, requires_grad=True)
    sigreg = SIGReg(projections=5, knots=9).double()
    real = torch.ones(2, 6, dtype=torch.bool)
    real[1, 4:] = False

    def value(x):
        torch.manual_seed(1)
        return sigreg(x, real)

    assert torch.autograd.gradcheck(value, (rows,), atol=1e-6)


def test_sigreg_tells_a_normal_from_a_point_and_ignores_padding():
    torch.manual_seed(0)
    sigreg = SIGReg(256)
    normal, point = torch.randn(1, 200, 8), torch.zeros(1, 200, 8)
    assert sigreg(normal) < 2 < 20 < sigreg(point)
    padded = torch.cat([normal, 100 * torch.ones(1, 9, 8)], 1)
    real = torch.arange(209)[None] < 200
    torch.manual_seed(1)
    alone = sigreg(normal)
    torch.manual_seed(1)
    torch.testing.assert_close(sigreg(padded, real), alone)


def test_breadth_counts_the_directions_that_are_filled():
    torch.manual_seed(0)
    full, flat = torch.randn(5000, 6), torch.randn(5000, 1) * torch.ones(6)
    assert breadth(full)["latent_rank"] == pytest.approx(6, rel=0.02)
    assert breadth(full)["latent_std"] == pytest.approx(1, rel=0.05)
    assert breadth(flat)["latent_rank"] == pytest.approx(1, rel=0.02)


# --- the history


def test_a_history_keeps_the_newest_in_order_and_knows_how_many():
    state = history.begin(torch.tensor([[0.0]]), 3, 1)
    for number in range(1, 5):
        state = history.act(state, torch.tensor([[10.0 + number]]))
        state = history.follow(state, torch.tensor([[float(number)]]))
    assert state["latents"].flatten().tolist() == [2, 3, 4] and state["count"].tolist() == [3]
    assert state["actions"].flatten().tolist() == [13, 14, 0]
    assert history.newest(state["latents"], state).tolist() == [[4.0]]


def test_rows_of_different_age_do_not_mix():
    old = history.follow(history.act(history.begin(torch.ones(1, 2), 3, 1), torch.ones(1, 1)), 2 * torch.ones(1, 2))
    young = history.begin(5 * torch.ones(1, 2), 3, 1)
    both = {name: torch.cat([old[name], young[name]]) for name in old}
    both = history.follow(history.act(both, torch.ones(2, 1)), 9 * torch.ones(2, 2))
    assert both["latents"][0, :, 0].tolist() == [1, 2, 9] and both["latents"][1, :, 0].tolist() == [5, 9, 0]


# --- the model


@pytest.mark.parametrize("observations", [VECTORS, IMAGES])
def test_the_contract_is_kept(observations):
    checks.check_world_model(small(observations, reward=8), observations, ACTIONS)


def test_the_loss_is_the_error_of_the_next_latent_and_sigreg():
    model, data = small(), random_segment(VECTORS, ACTIONS, rows=5, steps=5)
    data = data._replace(mask=torch.ones(5, 5))
    model.fit_statistics(data)
    torch.manual_seed(3)
    losses = model.loss(data).losses
    latents, _ = model.encode(data)
    total, told = [], []
    for row in range(5):
        for start in range(3):  # pieces of 3 steps out of 5
            actions = model.action(data.action[row : row + 1, start : start + 3])
            told.append(model.predictor(latents[row : row + 1, start : start + 3], actions)[0])
            total.append(latents[row, start + 1 : start + 4])
    error = (model.aim(torch.cat(told), True) - torch.cat(total)).square().mean()
    torch.testing.assert_close(losses["prediction"], error)
    torch.manual_seed(3)
    torch.testing.assert_close(losses["sigreg"], 0.09 * model.sigreg(latents.transpose(0, 1)))


def test_no_gradient_is_stopped_at_the_target():
    """The encoder feels the error through what is to be foretold as well as through what foretells."""
    model, data = small(), random_segment(VECTORS, ACTIONS, rows=6, steps=3)
    obs = {"pose": data.obs["pose"].requires_grad_(), "touch": data.obs["touch"]}
    model.loss(data._replace(obs=obs, mask=torch.ones(6, 3))).losses["prediction"].backward()
    assert (data.obs["pose"].grad[:, -1].abs().sum(-1) > 0).all()  # the last one is a target alone


def test_padding_is_not_learned_from():
    model, data = small(), random_segment(VECTORS, ACTIONS, rows=4, steps=4)
    mask = torch.ones(4, 4)
    mask[0, 2:] = 0
    changed = {name: value.clone() for name, value in data.obs.items()}
    changed["pose"][0, 3:] = 77.0
    found = []
    for obs in (data.obs, changed):
        torch.manual_seed(1)
        found.append(model.loss(data._replace(obs=obs, mask=mask)).losses)
    for name in found[0]:
        torch.testing.assert_close(found[0][name], found[1][name])


def test_dreaming_foretells_what_the_loss_foretells():
    """One real history, then a step: the same latent as the predictor's last place in a window."""
    model, data = small().eval(), random_segment(VECTORS, ACTIONS, rows=3, steps=3)
    data = data._replace(mask=torch.ones(3, 3))
    model.fit_statistics(data)
    model.eval()
    state = model.start({name: value[:, 0] for name, value in data.obs.items()})
    for t in range(2):
        state = model.update(state, data.action[:, t], {name: value[:, t + 1] for name, value in data.obs.items()})
    dreamt, reward, proceed = model.step(state, data.action[:, 2])
    latents, _ = model.encode(data)
    told = model.aim(model.predictor(latents[:, :3], model.action(data.action))[:, -1])
    torch.testing.assert_close(model.view(dreamt)["latent"], told)
    assert (reward == 0).all() and (proceed == 1).all()


def test_a_projector_s_rows_know_nothing_of_each_other_once_settled():
    projector, rows = Projector(3, 5, 2), torch.randn(40, 3) * 4 + 1
    projector.settle(rows)
    torch.testing.assert_close(projector(rows), projector(rows, batch=True), atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(projector(rows[:1]), projector(rows)[:1])


def test_windows_are_cut_into_all_their_pieces():
    x = torch.arange(10.0).view(2, 5)[..., None]
    assert pieces(x, 3)[..., 0].tolist() == [[0, 1, 2], [1, 2, 3], [2, 3, 4], [5, 6, 7], [6, 7, 8], [7, 8, 9]]


def test_a_latent_that_is_held_broad_does_not_collapse_and_one_that_is_not_does():
    """The same world, with and without SIGReg; without it the shortest way to no error is a point."""
    data = random_segment(VECTORS, ACTIONS, rows=64, steps=3)
    data = data._replace(mask=torch.ones(64, 3))
    spread = {}
    for weight in (0.0, 0.09):
        model = small(weight=weight, projections=64)
        optimiser = torch.optim.Adam(model.parameters(), 3e-3)
        for _ in range(80):
            optimiser.zero_grad()
            learned = model.loss(data)
            sum(learned.losses.values()).backward()
            optimiser.step()
        spread[weight] = float(learned.metrics["latent_std"])
    assert spread[0.0] < 0.3 < 0.5 < spread[0.09]


def test_the_published_size():
    with torch.device("meta"):
        model = published(spaces.Dict({"image": spaces.Box(0, 255, (3, 224, 224), np.uint8)}), ACTIONS)
    assert 15e6 < sum(p.numel() for p in model.parameters()) < 22e6
