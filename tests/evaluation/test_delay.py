import numpy as np

from dreamsim.evaluation.delay import Delayed, delayed_returns
from dreamsim.evaluation.episodes import evaluate_policy
from dreamsim.imagination.imagine import Believer


def test_actions_arrive_late_and_nothing_is_pushed_before(toys):
    late, plain = Delayed(toys.Slide(), 2), toys.Slide()
    late.reset(seed=0)
    plain.reset(seed=0)
    actions = [np.array([value], np.float32) for value in (2, -1, 0.5, 1.5)]
    for sent, applied in zip(actions, [np.zeros(1, np.float32)] * 2 + actions, strict=False):
        one, other = late.step(sent)[0], plain.step(applied)[0]
        np.testing.assert_array_equal(one["position"], other["position"])
    late.reset(seed=0)
    plain.reset(seed=0)
    np.testing.assert_array_equal(late.step(actions[0])[0]["velocity"], plain.step(actions[0] * 0)[0]["velocity"])


def test_no_delay_is_the_plain_evaluation_and_delay_costs(toys):
    policy = Believer(toys.Exact(), toys.Wave())
    plain = evaluate_policy(toys.Slide, policy, 3).returns
    found = delayed_returns(toys.Slide, policy, (0, 3), 3, 0)
    np.testing.assert_array_equal(found[0], plain)
    assert (found[3] != plain).all()
