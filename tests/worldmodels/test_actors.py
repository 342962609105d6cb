"""What a policy says of its own actions: the same number while acting and when asked later."""

import functools
import math

import pytest
import torch
from gymnasium import spaces

from dreamsim.core.checks import check_policy
from dreamsim.core.protocols import Modes, Weighs, power
from worldmodels.actors import Categorical, Gaussian, PlainV, SquashedGaussian

VIEW, BOX = spaces.Dict({"x": spaces.Box(-9, 9, (3,)), "y": spaces.Box(-9, 9, (2,))}), spaces.Box(-1, 1, (2,))
MAKERS = {
    "squashed": lambda: SquashedGaussian(VIEW, BOX, width=16),
    "plain": lambda: Gaussian(VIEW, BOX, width=16, std=0.3),
    "choice": lambda: Categorical(VIEW, spaces.Discrete(4), width=16),
}


def views(*lead: int) -> dict[str, torch.Tensor]:
    draw = functools.partial(torch.randn, generator=torch.Generator().manual_seed(0))
    return {"x": draw(*lead, 3), "y": draw(*lead, 2)}


def made(name: str):
    torch.manual_seed(0)
    policy = MAKERS[name]()
    with torch.no_grad():
        policy.net[-1].weight.normal_(0, 0.1)
    return policy


@pytest.mark.parametrize("name", MAKERS)
def test_the_traced_log_probability_is_that_of_the_action(name):
    policy, view = made(name), views(50, 4)
    act = policy.act(view)
    found, entropy = power(policy, Weighs)(view, act.trace.get("sample", act.action))
    torch.testing.assert_close(found, act.trace["log_prob"], atol=2e-4, rtol=2e-4)
    assert entropy.shape == (50, 4) and found.requires_grad and entropy.requires_grad
    if name != "squashed":  # TD-MPC2 scales what it traces
        torch.testing.assert_close(entropy, act.trace["entropy"])


def test_densities_integrate_to_one_and_entropies_are_their_means():
    grid = torch.linspace(-1, 1, 20_001)[1:-1, None]
    view = {name: value.expand(len(grid), -1) for name, value in views(1).items()}
    torch.manual_seed(0)
    policy = SquashedGaussian(VIEW, spaces.Box(-1, 1, (1,)), width=16, log_std_low=-2, log_std_high=0)
    log_prob, entropy = policy.log_prob(view, grid)
    density = log_prob.exp()
    assert torch.trapezoid(density, grid[:, 0]).item() == pytest.approx(1, abs=2e-3)
    by_hand = -torch.trapezoid(density * log_prob, grid[:, 0]).item()
    assert entropy.mean().item() == pytest.approx(by_hand, abs=0.02)
    wide = torch.linspace(-9, 9, 20_001)[:, None]
    view = {name: value.expand(len(wide), -1) for name, value in views(1).items()}
    torch.manual_seed(0)
    log_prob, entropy = Gaussian(VIEW, spaces.Box(-1, 1, (1,)), width=16).log_prob(view, wide)
    assert torch.trapezoid(log_prob.exp(), wide[:, 0]).item() == pytest.approx(1, abs=1e-3)
    assert entropy[0].item() == pytest.approx(0.5 * math.log(2 * math.pi * math.e), abs=1e-5)


def test_an_action_at_the_bound_has_a_finite_likelihood_with_a_finite_gradient():
    policy, view = made("squashed"), views(3)
    edge = torch.tensor([[1.0, -1.0], [1.0, 0.0], [-1.0, 1.0]])
    log_prob, _ = policy.log_prob(view, edge)
    log_prob.sum().backward()
    assert log_prob.isfinite().all() and all(p.grad.isfinite().all() for p in policy.parameters())


def test_a_gaussian_starts_near_zero_with_the_same_std_everywhere_and_is_cut_at_the_bounds():
    torch.manual_seed(0)
    policy = Gaussian(VIEW, BOX, width=32, std=2.0)
    view = views(4000)
    act = policy.act(view)
    assert power(policy, Modes)(view).action.abs().max() < 0.02
    torch.testing.assert_close(act.trace["sample"].std(0), torch.full((2,), 2.0), rtol=0.05, atol=0)
    torch.testing.assert_close(act.action, act.trace["sample"].clamp(-1, 1))


@pytest.mark.parametrize("name", MAKERS)
def test_actors_keep_the_contract(name):
    assert check_policy(made(name), VIEW, spaces.Discrete(4) if name == "choice" else BOX)


def test_a_state_value_learns_its_target():
    torch.manual_seed(0)
    critic, view = PlainV(VIEW, width=32), views(64)
    target = view["x"][:, 0] + 2 * view["y"][:, 1]
    optimiser = torch.optim.Adam(critic.parameters(), 1e-2)
    for _ in range(200):
        optimiser.zero_grad()
        critic.fit(view, target).mean().backward()
        optimiser.step()
    torch.testing.assert_close(critic.fit(view, target), (critic.value(view) - target).square())
    assert critic.fit(view, target).mean() < 0.05


def test_other_action_spaces_are_refused_with_advice():
    with pytest.raises(ValueError, match="Categorical"):
        Gaussian(VIEW, spaces.Discrete(2))
