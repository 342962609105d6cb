"""A model of several tasks: each has its vector, its actions and its discount, and padding changes nothing."""

import numpy as np
import pytest
import torch
from gymnasium import spaces

from dreamsim.core import checks
from dreamsim.core.types import Segment
from dreamsim.imagination.imagine import imagine
from dreamsim.imagination.plan import MPPI
from dreamsim.imagination.returns import discounts
from dreamsim.training.objectives.policy_prior import PolicyPrior
from worldmodels import tasks
from worldmodels.actors import QEnsemble, SquashedGaussian
from worldmodels.decoder_free import DecoderFree

SPACE = spaces.Dict(
    {
        "observation": spaces.Box(-9, 9, (4,), np.float32),
        "task/name": spaces.Box(0, 1, (3,), np.float32),
        "task/acts": spaces.Box(0, 1, (2,), np.float32),
        "task/steps": spaces.Box(1, 999, (1,), np.float32),
    }
)
ACTIONS = spaces.Box(-1, 1, (2,), np.float32)


def small(**options) -> DecoderFree:
    torch.manual_seed(1)
    return DecoderFree(SPACE, ACTIONS, latent=16, width=24, encoder_width=24, embedding=5, **options).eval()


def observed(task: int, acts: tuple[int, int], steps: float, rows: int = 3) -> dict[str, torch.Tensor]:
    torch.manual_seed(2)
    return {
        "observation": torch.randn(rows, 4),
        "task/name": torch.eye(3)[task].expand(rows, -1),
        "task/acts": torch.tensor(acts, dtype=torch.float32).expand(rows, -1),
        "task/steps": torch.full((rows, 1), steps),
    }


def windows(obs: dict[str, torch.Tensor], action: torch.Tensor) -> Segment:
    rows, steps = action.shape[:2]
    return Segment(
        {name: value[:, None].expand(-1, steps + 1, -1).contiguous() for name, value in obs.items()},
        action,
        torch.rand(rows, steps, generator=torch.Generator().manual_seed(3)),
        torch.zeros(rows, steps, dtype=torch.bool),
        torch.ones(rows, steps),
        {},
        None,
        torch.zeros(rows, 2, dtype=torch.long),
    )


def test_the_contract_is_kept_and_the_view_tells_a_policy_its_task():
    model = small()
    checks.check_world_model(model, SPACE, ACTIONS)
    view = model.view(model.start(observed(1, (1, 0), 500)))
    assert {name: tuple(part.shape) for name, part in view.items()} == {
        name: (3, *part.shape) for name, part in model.view_space.items()
    }
    torch.testing.assert_close(view["discount"], torch.full((3, 1), 0.99))


@pytest.mark.parametrize(("steps", "expected"), [(10, 0.95), (250, 0.98), (500, 0.99), (5000, 0.995)])
def test_the_discount_follows_the_released_heuristic(steps, expected):
    torch.testing.assert_close(tasks.discount(torch.tensor([float(steps)])), torch.tensor([expected]))
    assert discounts({"latent": torch.zeros(2, 3)}, 0.9) == 0.9


def test_what_fills_an_action_that_a_task_lacks_changes_nothing():
    """Not the dream, not the losses of model and critics, not the policy's likelihood and entropy."""
    model = small()
    policy = SquashedGaussian(model.view_space, ACTIONS, width=24)
    objective = PolicyPrior(model.view_space, ACTIONS, lambda view, size: QEnsemble(view, size, width=24, dropout=0))
    torch.nn.init.normal_(objective.critic.net.weight3)
    torch.nn.init.normal_(model.reward[-1].weight)
    obs = observed(1, (1, 0), 500)
    found = []
    for filling in (-1.0, 0.7):
        action = torch.tensor([0.3, filling]).expand(3, 4, 2)
        state, reward, _ = model.step(model.start(obs), action[:, 0])
        view = model.view(state)
        objective.scale.value.fill_(1.0)
        torch.manual_seed(4)
        data = windows(obs, action)
        learned = model.loss(data)
        judged = objective.loss(model, policy, data, learned)
        value = objective.critic.value(view, action[:, 0])
        likelihood = policy.log_prob(view, torch.tanh(action[:, 0]))[0]
        found.append([state["latent"], reward, value, likelihood, *learned.losses.values(), *judged.losses.values()])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)


def test_a_policy_does_nothing_with_what_its_task_lacks_and_its_entropy_does_not_count_it():
    model = small()
    policy = SquashedGaussian(model.view_space, ACTIONS, width=24)
    lone = model.view(model.start(observed(1, (1, 0), 500)))
    act = policy.act(lone)
    assert (act.action[:, 1] == 0).all() and (policy.mode(lone).action[:, 1] == 0).all()
    torch.testing.assert_close(act.trace["entropy"], -act.trace["log_prob"])  # of one component, not of two
    both = model.view(model.start(observed(1, (1, 1), 500)))
    act = policy.act(both)
    torch.testing.assert_close(act.trace["entropy"], -2 * act.trace["log_prob"])


def test_tasks_are_told_apart_by_vectors_of_norm_one_at_most():
    model = small()
    one, two = (model.start(observed(task, (1, 1), 500))["latent"] for task in (0, 1))
    model.tasks.weight.data[1] = 10 * torch.ones(5)
    far = model.start(observed(1, (1, 1), 500))
    assert not torch.equal(one, two) and not torch.equal(two, far["latent"])
    torch.testing.assert_close(model.view(far)["task"].norm(dim=-1), torch.ones(3))
    loss = sum(model.loss(windows(observed(2, (1, 1), 500), torch.zeros(3, 2, 2))).losses.values())
    loss.backward()
    moved = model.tasks.weight.grad.abs().sum(-1)
    assert moved[2] > 0 and moved[:2].sum() == 0


def test_a_dream_keeps_its_task_and_a_planner_sees_its_discount():
    model = small()
    policy = SquashedGaussian(model.view_space, ACTIONS, width=24)
    state = model.start(observed(2, (1, 0), 250))
    dreamt = imagine(model, policy, state, 4)
    assert (dreamt.view["discount"] == 0.98).all() and (dreamt.action[..., 1] == 0).all()
    planner = MPPI(model, policy, ACTIONS, samples=16, elites=4, proposals=4, iterations=2)
    assert torch.isfinite(planner.plan(state).action).all()


def test_a_task_that_is_named_in_part_only_is_refused():
    part = spaces.Dict({name: space for name, space in SPACE.items() if name != "task/acts"})
    with pytest.raises(ValueError, match="together"):
        DecoderFree(part, ACTIONS, latent=16)
