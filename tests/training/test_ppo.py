"""PPO's losses and advantages against sums by hand, and the way from a round just lived to its minibatches."""

import functools

import pytest
import torch
from gymnasium import spaces
from torch import nn

from dreamsim.core.types import Act, Learned, Segment
from dreamsim.data.module import OnPolicy
from dreamsim.envs.toy import Corridor, Line
from dreamsim.imagination.explore import AsItIs
from dreamsim.training.joint import FitJoint
from dreamsim.training.learner import Learner, run_round
from dreamsim.training.objectives.ppo import ProximalPolicy, Tried, surrogate
from tests.training.conftest import run, weights
from worldmodels.actors import Categorical, Gaussian, PlainV
from worldmodels.still import Still

SPACE, ACTIONS = spaces.Dict({"x": spaces.Box(-9, 9, (2,))}), spaces.Box(-1, 1, (1,))


def made(**options) -> ProximalPolicy:
    torch.manual_seed(0)
    return ProximalPolicy(SPACE, ACTIONS, functools.partial(PlainV, width=8, unit=3.0), **options)


def lived(rows=4, steps=5) -> Segment:
    """Pieces of 5, 5, 3 and 1 steps; the second and the fourth terminated."""
    draw = functools.partial(torch.randn, generator=torch.Generator().manual_seed(1))
    mask = (torch.arange(steps) < torch.tensor([[5], [5], [3], [1]])).float()
    ended = torch.zeros(rows, steps, dtype=torch.bool)
    ended[1, 4] = ended[3, 0] = True
    index = torch.stack([-1 - torch.arange(rows), torch.zeros(rows, dtype=torch.long)], 1)
    trace = {"log_prob": draw(rows, steps), "sample": draw(rows, steps, 1)}
    reward = draw(rows, steps) * mask
    return Segment({"x": draw(rows, steps + 1, 2)}, draw(rows, steps, 1), reward, ended, mask, trace, None, index)


class Fixed(nn.Module):
    """Says a log-probability of x[0] times the sample, and an entropy of x[1]."""

    def log_prob(self, view, action):
        return view["x"][..., 0] * action[..., 0], view["x"][..., 1]


def test_the_surrogate_is_cut_on_the_side_that_pays_and_only_there():
    ratio = torch.tensor([0.5, 0.9, 1.0, 1.1, 1.5] * 2, requires_grad=True)
    advantage = torch.tensor([2.0] * 5 + [-2.0] * 5)
    found = surrogate(ratio, advantage, 0.2)
    torch.testing.assert_close(found, torch.tensor([1.0, 1.8, 2.0, 2.2, 2.4, -1.6, -1.8, -2.0, -2.2, -3.0]))
    (slope,) = torch.autograd.grad(found.sum(), ratio)
    # A good action stops paying above 1.2, a bad one below 0.8; the wrong way is always felt.
    torch.testing.assert_close(slope, torch.tensor([2.0, 2.0, 2.0, 2.0, 0.0, 0.0, -2.0, -2.0, -2.0, -2.0]))


def test_losses_equal_the_sums_by_hand():
    objective, draw = made(entropy=0.1), functools.partial(torch.randn, generator=torch.Generator().manual_seed(2))
    tried = Tried({"x": draw(6, 2)}, draw(6, 1), draw(6) * 0.3, draw(6), draw(6))
    losses = objective.judge(Fixed(), tried).losses
    mean = sum(tried.advantage) / 6
    std = (sum((a - mean) ** 2 for a in tried.advantage) / 6) ** 0.5
    policy = value = entropy = 0.0
    for n in range(6):
        x = tried.view["x"][n]
        ratio = torch.exp(x[0] * tried.sample[n, 0] - tried.log_prob[n]).item()
        advantage = ((tried.advantage[n] - mean) / std).item()
        policy -= min(ratio * advantage, min(max(ratio, 0.8), 1.2) * advantage) / 6
        value += ((3 * objective.critic.net(x)[0] - tried.target[n]) / 3).item() ** 2 / 6
        entropy += x[1].item() / 6
    assert losses["policy"].item() == pytest.approx(policy, rel=1e-5)
    assert losses["value"].item() == pytest.approx(value, rel=1e-5)
    assert losses["bonus"].item() == pytest.approx(-0.1 * entropy, rel=1e-5)


def test_advantages_equal_the_sums_by_hand_whatever_ends_a_piece():
    objective, batch = made(discount=0.9, lam=0.8), lived()
    steps = objective._judged(batch.obs, batch)
    value = objective.critic.value(batch.obs).detach()
    row = 0
    for piece, length in enumerate((5, 5, 3, 1)):
        for t in range(length):
            by_hand, weight = 0.0, 1.0
            for k in range(t, length):
                future = 0 if batch.terminated[piece, k] else 0.9 * value[piece, k + 1].item()
                by_hand += weight * (batch.reward[piece, k].item() + future - value[piece, k].item())
                weight *= 0.9 * 0.8
            assert steps.trace["advantage"][row, 0].item() == pytest.approx(by_hand, abs=1e-5)
            assert steps.trace["return"][row, 0].item() == pytest.approx(by_hand + value[piece, t].item(), abs=1e-5)
            assert torch.equal(steps.obs["x"][row], batch.obs["x"][piece, t : t + 2])
            assert steps.index[row].tolist() == [-1 - piece, t]
            row += 1
    assert row == len(steps.action) == 14


def test_each_step_comes_once_in_every_epoch():
    objective, batch = made(epochs=3, batch=4), lived()
    parts = list(objective.unfold(Still(SPACE, ACTIONS), Fixed(), batch, Learned({}, batch.obs, batch.obs)))
    assert [len(part.action) for part in parts] == [5, 5, 4] * 3
    for epoch in range(3):
        names = torch.cat([part.index for part in parts[3 * epoch : 3 * epoch + 3]])
        assert len(names.unique(dim=0)) == 14
    assert not torch.equal(parts[0].index, parts[3].index)


def test_padding_reaches_no_step():
    objective, batch = made(), lived()
    wild = {"x": batch.obs["x"].clone()}
    wild["x"][2, 4:], wild["x"][3, 2:] = 99.0, 99.0
    one, two = objective._judged(batch.obs, batch), objective._judged(wild, batch)
    torch.testing.assert_close(one.trace, two.trace)


def test_what_was_cut_is_weighed_as_it_was_drawn():
    """The sample, not the action that the bound made of it: without an update the ratio is 1."""
    torch.manual_seed(0)
    policy, view = Gaussian(SPACE, ACTIONS, width=8, std=3.0), {"x": torch.randn(64, 2)}
    act: Act = policy.act(view)
    assert (act.action != act.trace["sample"]).any()
    trace = {name: value.detach() for name, value in act.trace.items()}
    tried = Tried(view, trace["sample"], trace["log_prob"], torch.randn(64), torch.randn(64))
    metrics = made().judge(policy, tried).metrics
    assert metrics["divergence"].abs() < 1e-6 and metrics["clipped"] == 0


def test_steps_without_likelihood_or_judgement_are_refused():
    batch = lived()
    learned = Learned({}, batch.obs, batch.obs)
    with pytest.raises(ValueError, match="log_prob"):
        next(made().unfold(Still(SPACE, ACTIONS), Fixed(), batch._replace(trace={}), learned))
    with pytest.raises(ValueError, match="unfold"):
        made().loss(Still(SPACE, ACTIONS), Fixed(), batch, learned)


def test_a_round_moves_policy_and_critic_by_every_minibatch():
    torch.manual_seed(0)
    policy, objective = Gaussian(SPACE, ACTIONS, width=8), made(epochs=2, batch=7)
    learner = Learner(Still(SPACE, ACTIONS), policy, objective, average=0)
    before = [p.clone() for p in (*policy.parameters(), *objective.critic.parameters())]
    report = run_round(learner, [lived()])
    assert report.gradient_steps == 4 and report.imagined_steps == 0
    after = [*policy.parameters(), *objective.critic.parameters()]
    assert all(not torch.equal(one, two) for one, two in zip(before, after, strict=True))


def small(discrete: bool = False) -> FitJoint:
    return FitJoint(
        Still,
        functools.partial(Categorical if discrete else Gaussian, width=16),
        functools.partial(ProximalPolicy, critic=functools.partial(PlainV, width=16), rate=3e-3, batch=32, epochs=4),
        explore=AsItIs,
        average=0,
    )


def data(discrete: bool = False, **options) -> OnPolicy:
    chosen = {"env_steps": 960, "envs": 4, "vector_steps": 30, "evaluate_every": 480, "keep_every": 240}
    return OnPolicy(Corridor if discrete else Line, **{**chosen, "evaluate_episodes": 4, **options})


def test_a_run_counts_its_steps_and_a_resumed_one_has_the_same_bits(tmp_path):
    """Rounds of 30 steps cut episodes of 20, so that a checkpoint falls into unfinished ones."""
    through = run(tmp_path / "through", module=small(), data=data())
    assert through.counters()["env_steps"] == 960 and through.counters()["gradient_steps"] == 8 * 4 * 3
    half = data()
    half.__class__ = HalfWay
    run(tmp_path / "half", module=small(), data=half)
    resumed = run(tmp_path / "half", resume=True, module=small(), data=data())
    one, two = weights(through), weights(resumed)
    assert one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


class HalfWay(OnPolicy):
    """Ends in the middle of the run."""

    @property
    def rounds(self) -> int:
        return 5


@pytest.mark.parametrize("discrete", [False, True])
def test_it_learns(tmp_path, discrete):
    run(tmp_path, module=small(discrete), data=data(discrete, env_steps=2400, evaluate_every=2400))
    found = float((tmp_path / "metrics.csv").read_text().splitlines()[-1].split(",")[4])
    assert found > (0.9 if discrete else 16.0)
