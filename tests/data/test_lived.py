"""What a round lived: every step exactly once, wherever rounds and episodes end. Observations count steps."""

import functools

import numpy as np
import torch
from gymnasium import spaces

from dreamsim.core.types import Act
from dreamsim.data.collect import Collector
from dreamsim.data.lived import lengths, lived_since, whole
from dreamsim.envs.adapt import vectorise
from dreamsim.envs.toy import Clock


class Numbered:
    """Acts by 0.01 times the number on the clock, and traces it."""

    def act(self, view, memory=None, first=None, applied=None):
        clock = view["observation"]
        return Act(0.01 * clock, None, {"log_prob": clock[:, 0]})


def rounds(count: int, steps: int, terminates: bool):
    """Live ``count`` rounds on clocks of 3 to 6 steps; return the finished episodes and each round's Segment."""
    envs = vectorise(functools.partial(Clock, 3, terminates, 3), 2)
    collector = Collector(envs, envs.codec, seed=0)
    finished, segments = [], []
    for _ in range(count):
        before = lengths(collector.going())
        episodes = collector.collect(Numbered(), steps)
        pieces = lived_since(before, [*episodes, *collector.going()])
        finished += episodes
        segments.append(whole(pieces, envs.codec.observation_space, envs.codec.scale))
    return finished, segments, collector.going()


def test_each_step_is_handed_out_once_with_its_own_neighbours():
    finished, segments, going = rounds(5, 4, True)
    seen = []
    for segment in segments:
        assert segment.mask.sum() == 8  # two slots, four steps
        for row, step in segment.mask.nonzero().tolist():
            now, after = segment.obs["observation"][row, step : step + 2, 0].tolist()
            assert after == now + 1 and segment.trace["log_prob"][row, step] == now
            assert abs(segment.action[row, step, 0] - 0.01 * now) < 1e-6 and segment.reward[row, step] == 1
            seen.append(int(now))
    lived = [number for episode in [*finished, *going] for number in range(len(episode.action))]
    assert sorted(seen) == sorted(lived)


def test_only_the_last_step_of_an_episode_terminates_and_a_cut_never_does():
    for terminates in (True, False):
        finished, segments, _ = rounds(5, 4, terminates)
        ends = sum(int(segment.terminated.sum()) for segment in segments)
        assert ends == (len(finished) if terminates else 0)
        for segment in segments:
            last = segment.mask.sum(1).long() - 1
            for row, step in segment.terminated.nonzero().tolist():
                assert step == last[row]


def test_padding_is_zero_and_rows_are_none_of_a_replay():
    _, segments, _ = rounds(3, 4, True)
    for segment in segments:
        gone = segment.mask == 0
        assert not segment.reward[gone].any() and not segment.action[gone].any() and not segment.terminated[gone].any()
        assert (segment.index[:, 0] < 0).all() and len(segment.index[:, 0].unique()) == len(segment.index)


def test_actions_come_in_units_and_a_trace_that_one_piece_lacks_is_left_out():
    codec = vectorise(functools.partial(Clock, 3), 1).codec
    finished, _, _ = rounds(3, 4, True)
    bare = finished[1]._replace(trace={})
    segment = whole([finished[0], bare], codec.observation_space, codec.scale)
    assert segment.trace == {} and segment.obs["observation"].dtype == torch.float32
    assert isinstance(codec.observation_space, spaces.Dict) and np.isfinite(segment.action.numpy()).all()
