"""Reward and end of a dream are exchangeable: heads, classifiers, functions with and without a memory."""

import copy
import functools

import numpy as np
import pytest
import torch
from torch import nn

from dreamsim.core.checks import check_world_model
from dreamsim.core.protocols import Decodes, Uncertain, find_power
from dreamsim.core.types import Learned, Segment
from dreamsim.data.collect import Collector
from dreamsim.envs.adapt import adapt, vectorise
from dreamsim.envs.dream import Dream
from dreamsim.envs.toy import Corridor, Line
from dreamsim.evaluation.outcomes import foretell, lines
from dreamsim.imagination.imagine import Uniform, imagine
from dreamsim.imagination.outcome import Classifier, Head, Overruled, as_outcome, fit
from worldmodels.decoder_free import DecoderFree

CODEC = adapt(Line()).codec


class LineModel(nn.Module):
    """Line itself; its reward is 7 and it never ends."""

    def start(self, obs):
        return obs["observation"]

    def update(self, state, action, obs):
        return obs["observation"]

    def step(self, state, action):
        return (state + 0.1 * action).clamp(-1, 1), torch.full((len(state),), 7.0), torch.ones(len(state))

    def view(self, state):
        return {"observation": state}

    def loss(self, batch):
        return Learned({}, torch.zeros(1))

    def decode(self, state):
        return {"observation": state}


class Steps:
    """Counts steps: the reward is how many were taken, life ends after three."""

    def __init__(self, limit=None):
        self.limit = limit

    def begin(self, view):
        return {"count": torch.zeros(len(view["observation"]))}

    def judge(self, memory, view, action, after):
        count = memory["count"] + 1
        return {"count": count}, count if self.limit is None else (count < self.limit).float()


def near(view, action, after):
    return 1 - (after["observation"][:, 0] - Line.GOAL).abs()


def walked(make, count):
    envs = vectorise(make, 2)
    return envs.codec, Collector(envs, envs.codec, seed=0).episodes(Uniform(envs.codec.action_size), count)


def test_a_functions_reward_takes_the_models_place():
    model = Overruled.around(LineModel(), reward=near)
    state = model.start({"observation": torch.tensor([[0.0], [0.5]])})
    _, reward, proceed = model.step(state, torch.tensor([[1.0], [-1.0]]))
    assert reward.tolist() == pytest.approx([1 - abs(0.1 - Line.GOAL), 1 - abs(0.4 - Line.GOAL)])
    assert proceed.tolist() == [1, 1]


def test_a_part_with_a_memory_counts_in_dream_and_reality_alike_and_row_by_row():
    model = Overruled.around(LineModel(), reward=Steps(), proceed=Steps(3))
    starts = {"observation": torch.zeros(1, 1)}
    dream = Dream(model, starts, 2, 50, CODEC)
    dream.reset()
    still = np.zeros((2, 1), np.float32)
    rewards = [dream.step(still)[1].tolist() for _ in range(2)]
    assert rewards == [[1, 1], [2, 2]]
    dream.reset(options={"reset_mask": np.array([True, False])})
    _, reward, terminated, *_ = dream.step(still)
    assert reward.tolist() == [1, 3] and terminated.tolist() == [False, True]
    state = model.update(model.start(starts), torch.zeros(1, 1), starts)
    assert model.step(state, torch.zeros(1, 1))[1].tolist() == [2]  # the real step counted too


def test_what_the_model_can_do_it_still_can_also_as_a_copy():
    model = copy.deepcopy(Overruled.around(LineModel(), reward=Steps()))
    state = model.start({"observation": torch.full((1, 1), 0.25)})
    assert find_power(model, Decodes)(state)["observation"].tolist() == [[0.25]]
    assert find_power(model, Uncertain) is None
    assert model.decode.args[0].__self__ is model.model


def test_it_is_a_world_model_like_any_other():
    make = functools.partial(
        Overruled, model=functools.partial(DecoderFree, latent=16, width=16, encoder_width=16), reward=Head
    )
    model = make(CODEC.observation_space, CODEC.action_space)
    assert check_world_model(model, CODEC.observation_space, CODEC.action_space)
    state = model.start({"observation": torch.zeros(3, 1)})
    assert imagine(model, Uniform(1), state, 4).reward.shape == (3, 4)
    assert any("reward_part" in name for name, _ in model.named_parameters())


def test_a_head_learns_the_reward_and_is_calibrated_beside_the_models_own():
    codec, episodes = walked(Line, 12)
    torch.manual_seed(0)
    head = Head(codec.observation_space, codec.action_space)
    fit(head, LineModel(), windows(episodes, codec), 400)
    own, judged = (foretell(m, episodes, codec) for m in (LineModel(), Overruled.around(LineModel(), reward=head)))
    assert judged.reward.error < 0.1 * own.reward.error and judged.reward.correlation > 0.95
    assert own.reward.bias == pytest.approx(7 - np.mean([e.reward.mean() for e in episodes]), abs=1e-3)
    assert np.isnan(own.reward.correlation) and "bias" in lines(own)[0]


class CorridorModel(LineModel):
    """Corridor's cell, one-hot, moved by a one-hot choice; it never ends by itself."""

    def step(self, state, action):
        cell = state.argmax(1) + 2 * action.argmax(1) - 1
        state = nn.functional.one_hot(cell.clamp(0, Corridor.CELLS - 1), Corridor.CELLS).float()
        return state, torch.zeros(len(state)), torch.ones(len(state))


def test_a_classifier_learns_where_life_ends():
    codec, episodes = walked(Corridor, 40)
    torch.manual_seed(0)
    part = Classifier(codec.observation_space, codec.action_space, threshold=0.5)
    fit(part, CorridorModel(), windows(episodes, codec), 400)
    found = foretell(Overruled.around(CorridorModel(), proceed=part), episodes, codec).ends
    ends = sum(episode.terminated for episode in episodes)
    assert found.ends == ends > 0 and found.recall > 0.9 and found.precision > 0.9 and found.brier < found.base / 2
    never = foretell(CorridorModel(), episodes, codec)
    assert never.ends.recall == 0 and np.isnan(never.ends.precision)
    assert never.ends.brier == pytest.approx(ends / never.ends.steps)


def windows(episodes, codec):
    longest = max(len(episode.action) for episode in episodes)

    def padded(rows, length):
        return torch.from_numpy(np.concatenate([rows, np.zeros((length - len(rows), *rows.shape[1:]), rows.dtype)]))

    done = [
        np.arange(len(e.action)) == len(e.action) - 1 if e.terminated else np.zeros(len(e.action)) for e in episodes
    ]
    return Segment(
        {n: torch.stack([padded(e.obs[n], longest + 1) for e in episodes]) for n in episodes[0].obs},
        torch.stack([padded(codec.scale.unit(e.action).astype(np.float32), longest) for e in episodes]),
        torch.stack([padded(np.asarray(e.reward, np.float32), longest) for e in episodes]),
        torch.stack([padded(np.asarray(end, bool), longest) for end in done]),
        torch.stack([padded(np.ones(len(e.action), np.float32), longest) for e in episodes]),
        {},
        None,
        torch.zeros(len(episodes), 2, dtype=torch.int64),
    )


def test_misuse_is_named():
    with pytest.raises(TypeError, match="expected an Outcome"):
        as_outcome(3)
    model = Overruled.around(LineModel(), reward=lambda view, action, after: after["observation"])
    with pytest.raises(ValueError, match=r"one number for each of 2 rows, got shape \(2, 1\)"):
        model.step(model.start({"observation": torch.zeros(2, 1)}), torch.zeros(2, 1))
    with pytest.raises(ValueError, match="between 0 and 1"):
        Classifier(CODEC.observation_space, CODEC.action_space, threshold=2)
