"""A dream keeps Gymnasium's contract in every mode, and where the model is exact it is reality."""

import functools

import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from dreamsim.core.protocols import MissingPower
from dreamsim.core.spaces import Codec
from dreamsim.core.types import Act, Before, Segment
from dreamsim.data.collect import Collector
from dreamsim.envs.adapt import adapt
from dreamsim.envs.dream import Dream
from dreamsim.envs.toy import Clock, Corridor, Line

CODEC = adapt(Clock()).codec


class ClockModel:
    """Clock itself: the state is its time, and the step at which it ends."""

    def __init__(self, end=3):
        self.end = end

    def start(self, obs):
        time = obs["observation"]
        return {"time": time, "end": obs.get("end", torch.full_like(time, self.end))}

    def update(self, state, action, obs):
        return {**state, "time": obs["observation"]}

    def step(self, state, action):
        time = state["time"] + 1
        return {**state, "time": time}, torch.ones(len(time)), (time < state["end"]).float()[:, 0]

    def view(self, state):
        return {"observation": state["time"]}


class LineModel:
    """Line itself."""

    def start(self, obs):
        return obs["observation"]

    def step(self, state, action):
        state = (state + 0.1 * action).clamp(-1, 1)
        return state, 1 - (state[:, 0] - Line.GOAL).abs(), torch.ones(len(state))

    def view(self, state):
        return {"observation": state}


class Noisy(LineModel):
    """Moves at random and ends with probability a half."""

    def step(self, state, action):
        state, reward, proceed = super().step(state, action)
        return state + torch.randn_like(state), reward, proceed / 2


ZERO = {"observation": torch.zeros(1, 1)}
NINE = {"observation": torch.arange(9.0)[:, None]}


def actions(steps, rows, seed=0):
    return np.random.default_rng(seed).uniform(-1, 1, (steps, rows, 1)).astype(np.float32)


def same_infos(ours, theirs, mode):
    if mode is AutoresetMode.SAME_STEP and "final_obs" in theirs:
        assert np.array_equal(ours["_final_obs"], theirs["_final_obs"])
        for row in np.flatnonzero(theirs["_final_obs"]):
            assert np.array_equal(ours["final_obs"][row]["observation"], theirs["final_obs"][row]["observation"])
    assert ("final_obs" in ours) == ("final_obs" in theirs)


@pytest.mark.parametrize("mode", list(AutoresetMode))
@pytest.mark.parametrize("terminates", [True, False])
def test_it_behaves_as_gymnasiums_own_vector_env(mode, terminates):
    real = SyncVectorEnv([lambda: adapt(Clock(3, terminates))] * 2, autoreset_mode=mode)
    dream = Dream(ClockModel(3 if terminates else 99), ZERO, 2, 9 if terminates else 3, CODEC, autoreset_mode=mode)
    assert dream.metadata["autoreset_mode"] is mode
    assert dream.observation_space.contains(dream.reset(seed=0)[0])
    real.reset(seed=0)
    for step, action in enumerate(actions(11, 2)):
        ours, theirs = dream.step(action), real.step(action)
        assert np.array_equal(ours[0]["observation"], theirs[0]["observation"]), step
        for mine, other in zip(ours[1:4], theirs[1:4], strict=True):
            assert np.array_equal(mine, other) and mine.dtype == other.dtype
        same_infos(ours[4], theirs[4], mode)
        over = ours[2] | ours[3]
        if mode is AutoresetMode.DISABLED and over.any():
            dream.reset(options={"reset_mask": over})
            real.reset(options={"reset_mask": over})


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_one_dream_that_ends_resets_only_itself(mode):
    starts = {"observation": torch.zeros(3, 1), "end": torch.tensor([[9.0], [2.0], [9.0]])}
    dream = Dream(ClockModel(), starts, 3, 50, CODEC, autoreset_mode=mode)
    dream.reset(options={"start": [0, 1, 2]})
    dream.step(actions(1, 3)[0])
    obs, _, terminated, *_ = dream.step(actions(1, 3)[0])
    assert terminated.tolist() == [False, True, False]
    if mode is AutoresetMode.DISABLED:
        with pytest.raises(RuntimeError, match=r"\[1\] have ended"):
            dream.step(actions(1, 3)[0])
        obs, _ = dream.reset(options={"reset_mask": terminated})
    assert obs["observation"][:, 0].tolist() == [2, {AutoresetMode.NEXT_STEP: 2}.get(mode, 0), 2]
    obs, *_ = dream.step(actions(1, 3)[0])
    assert obs["observation"][:, 0].tolist() == [3, {AutoresetMode.NEXT_STEP: 0}.get(mode, 1), 3]


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_a_collector_reads_a_dream_as_it_reads_reality(mode):
    class Still:
        def act(self, view, memory=None, first=None, applied=None):
            return Act(torch.zeros(len(first), 1))

    starts = {"observation": torch.zeros(6, 1), "end": torch.arange(1.0, 7.0)[:, None]}
    dream = Dream(ClockModel(), starts, 3, 4, CODEC, autoreset_mode=mode)
    episodes = Collector(dream, dream.codec, seed=0, origin="dream").collect(Still(), 40)
    lengths = {len(episode.action) for episode in episodes}
    assert lengths <= {1, 2, 3, 4} and len(lengths) > 2
    for episode in episodes:
        length = len(episode.action)
        assert episode.obs["observation"][:, 0].tolist() == list(range(length + 1))
        assert episode.terminated or length == 4
        assert episode.meta["origin"] == "dream"


def test_an_exact_model_dreams_exactly_the_real_rollout():
    real = SyncVectorEnv([lambda: adapt(Line(20))] * 3, autoreset_mode=AutoresetMode.DISABLED)
    obs, _ = real.reset(seed=4)
    starts = {name: torch.from_numpy(value) for name, value in obs.items()}
    dream = Dream(LineModel(), starts, 3, 20, adapt(Line()).codec)
    first, infos = dream.reset(options={"start": [0, 1, 2]})
    assert np.array_equal(first["observation"], obs["observation"]) and infos["start"].tolist() == [0, 1, 2]
    for action in actions(20, 3):
        ours, theirs = dream.step(action), real.step(action)
        assert np.array_equal(ours[0]["observation"], theirs[0]["observation"])
        np.testing.assert_allclose(ours[1], theirs[1], rtol=1e-6)
        assert np.array_equal(ours[3], theirs[3])


def test_starts_are_drawn_and_named_and_follow_the_row_seed():
    dream = Dream(ClockModel(99), NINE, 4, 5, CODEC)
    obs, infos = dream.reset(seed=[1, 2, 3, 4])
    assert np.array_equal(obs["observation"][:, 0], infos["start"]) and infos["_start"].all()
    assert len(set(infos["start"])) > 1
    again, _ = dream.reset(seed=[4, 3, 2, 1])
    assert np.array_equal(again["observation"][::-1], obs["observation"])
    mask = np.array([False, True, False, False])
    later, infos = dream.reset(seed=[0, 1, 0, 0], options={"reset_mask": mask})
    assert later["observation"][1] == obs["observation"][0] and infos["_start"].tolist() == mask.tolist()


def test_every_start_comes_up():
    dream = Dream(ClockModel(99), NINE, 3, 1, CODEC, autoreset_mode=AutoresetMode.SAME_STEP)
    dream.reset(seed=0)
    seen = {int(value) for action in actions(60, 3) for value in dream.step(action)[0]["observation"][:, 0]}
    assert seen == set(range(9))


def test_histories_are_lived_through_and_padding_is_skipped():
    observed = torch.arange(4.0).repeat(2, 1)[..., None] + torch.tensor([[[0.0]], [[10.0]]])
    mask = torch.tensor([[1.0, 1, 1], [1, 0, 0]])
    observed[1, 2:] = 0
    nothing = torch.zeros(2, 3)
    starts = Segment(
        {"observation": observed}, torch.zeros(2, 3, 1), nothing, nothing.bool(), mask, {}, None, torch.zeros(2, 2)
    )
    dream = Dream(ClockModel(99), starts, 2, 5)  # without a codec: as long as the history's actions
    obs, _ = dream.reset(options={"start": [0, 1]})
    assert obs["observation"][:, 0].tolist() == [3, 11]
    assert dream.step(actions(1, 2)[0])[0]["observation"][:, 0].tolist() == [4, 12]


def test_stored_beliefs_are_begun_from():
    belief = {"time": torch.tensor([[5.0], [0.0]]), "end": torch.tensor([[9.0], [0.0]])}
    before = Before(belief, torch.tensor([True, False]))
    none, seen = torch.zeros(2, 0), {"observation": torch.full((2, 1, 1), 2.0)}
    starts = Segment(seen, none[..., None], none, none.bool(), none, {}, before, torch.zeros(2, 2))
    obs, _ = Dream(ClockModel(), starts, 2, 5, CODEC).reset(options={"start": [0, 1]})
    assert obs["observation"][:, 0].tolist() == [5, 2]


def test_episodes_and_functions_serve_as_starts():
    class Still:
        def act(self, view, memory=None, first=None, applied=None):
            return Act(torch.zeros(len(first), 1))

    from dreamsim.envs.adapt import vectorise

    envs = vectorise(functools.partial(Line, 2), 2)
    episodes = Collector(envs, envs.codec, seed=0).collect(Still(), 4)
    dream = Dream(LineModel(), lambda: episodes, 2, 5, envs.codec)
    obs, infos = dream.reset(seed=3)
    for row, start in enumerate(infos["start"]):
        assert np.array_equal(obs["observation"][row], episodes[start].obs["observation"][0])
    with pytest.raises(ValueError, match="at least one"):
        Dream(LineModel(), [], 2, 5, envs.codec)


def test_equal_seeds_give_equal_bits_beside_another_and_leave_the_global_generator_alone():
    one, two = (Dream(Noisy(), NINE, 3, 6, CODEC, seed=7, autoreset_mode=AutoresetMode.NEXT_STEP) for _ in range(2))
    before = torch.get_rng_state()
    assert np.array_equal(one.reset()[0]["observation"], two.reset()[0]["observation"])
    for action in actions(30, 3):
        ours, theirs = one.step(action), two.step(action)
        assert np.array_equal(ours[0]["observation"], theirs[0]["observation"])
        assert np.array_equal(ours[2], theirs[2])
    assert torch.equal(before, torch.get_rng_state())
    other = Dream(Noisy(), NINE, 3, 6, CODEC, seed=8)
    other.reset()
    one.reset(seed=5)
    two.reset(seed=5)
    assert np.array_equal(one.step(actions(1, 3)[0])[0]["observation"], two.step(actions(1, 3)[0])[0]["observation"])


def test_termination_is_drawn_with_the_models_probability():
    dream = Dream(Noisy(), NINE, 500, 99, CODEC)
    dream.reset(seed=0)
    assert 0.4 < dream.step(actions(1, 500)[0])[2].mean() < 0.6


def test_a_snapshot_is_gone_back_to_exactly():
    dream = Dream(Noisy(), NINE, 3, 6, CODEC, autoreset_mode=AutoresetMode.SAME_STEP)
    dream.reset(seed=1)
    dream.step(actions(1, 3)[0])
    kept = dream.snapshot()

    def go_on():
        return np.stack([dream.step(action)[0]["observation"] for action in actions(8, 3)])

    first = go_on()
    dream.restore(kept)
    assert np.array_equal(first, go_on())
    with pytest.raises(ValueError, match="3 rows"):
        Dream(Noisy(), NINE, 2, 6, CODEC).restore(kept)


def test_a_fork_goes_on_from_here_in_many_ways():
    dream = Dream(Noisy(), NINE, 2, 9, CODEC, autoreset_mode=AutoresetMode.NEXT_STEP)
    dream.reset(seed=1)
    now = dream.view()["observation"].clone()
    fork = dream.fork(3)
    assert np.array_equal(fork.view()["observation"], now.repeat_interleave(3, 0))
    obs, *_ = fork.step(np.zeros((6, 1), np.float32))
    assert len(set(obs["observation"][:, 0])) == 6
    assert fork.observation_space.contains(obs)
    assert torch.equal(dream.view()["observation"], now)


def test_tensors_flow_with_their_gradient():
    dream = Dream(LineModel(), {"observation": torch.zeros(1, 1)}, 2, 9, adapt(Line()).codec)
    dream.reset()
    action = torch.full((2, 1), 0.5, requires_grad=True)
    stepped = dream.step_torch(action)
    stepped.reward.sum().backward()
    assert action.grad.tolist() == [[pytest.approx(0.1)]] * 2
    assert stepped.truncated.dtype == torch.bool and stepped.view["observation"].shape == (2, 1)


def test_discrete_actions_reach_the_model_one_hot_and_bounds_are_kept():
    class Last(LineModel):
        def step(self, state, action):
            self.action = action
            return state, torch.zeros(len(state)), torch.ones(len(state))

    model = Last()
    dream = Dream(model, ZERO, 1, 9, adapt(Corridor()).codec)
    assert dream.codec.action_space == spaces.Discrete(2)
    dream.reset()
    dream.step(np.array([[0.3, 0.4]]))
    assert model.action.tolist() == [[0, 1]]
    dream = Dream(model, ZERO, 1, 9, Codec(Clock().observation_space, spaces.Box(0, 5, (1,))))
    dream.reset()
    dream.step(np.array([[7.0]]))
    assert model.action.tolist() == [[1]]


def test_misuse_is_named():
    dream = Dream(ClockModel(), NINE, 2, 5, CODEC)
    with pytest.raises(RuntimeError, match="reset the dream"):
        dream.step_torch(torch.zeros(2, 1))
    with pytest.raises(ValueError, match="indices below 9"):
        dream.reset(options={"start": [0, 9]})
    with pytest.raises(ValueError, match="'strat'"):
        dream.reset(options={"strat": [0, 1]})
    dream.reset()
    with pytest.raises(ValueError, match=r"row 1 .* step 0"):
        dream.step(np.array([[0.0], [np.nan]]))

    class Sure(LineModel):
        def step(self, state, action):
            return state, torch.zeros(len(state)), torch.full((len(state),), 2.0)

    wrong = Dream(Sure(), NINE, 2, 5, CODEC)
    wrong.reset()
    with pytest.raises(ValueError, match="no probability"):
        wrong.step(np.zeros((2, 1)))


def test_text_stays_bytes():
    class Words:
        def start(self, obs):
            return obs["text"]

        def step(self, state, action):
            return state, torch.zeros(len(state)), torch.ones(len(state))

        def view(self, state):
            return {"text": state}

    text = torch.tensor([[104, 105, 255, 255]], dtype=torch.uint8)
    dream = Dream(Words(), {"text": text}, 2, 5, CODEC)
    obs, _ = dream.reset()
    assert obs["text"].dtype == np.uint8 and dream.observation_space.contains(obs)
    assert dream.codec.encode_obs({"text": obs["text"][0]})["text"].dtype == np.uint8


class Doubtful(LineModel):
    """Doubts what it dreams by the size of the action; not at all by numbers where it is asked to lie still."""

    def uncertainty(self, state, action):
        return torch.where(action[:, 0] < 0, torch.nan, action[:, 0])


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_a_row_that_is_not_trusted_is_cut_and_no_other(mode):
    dream = Dream(Doubtful(), ZERO, 3, 50, adapt(Line()).codec, autoreset_mode=mode, distrust=0.5)
    dream.reset()
    _, _, terminated, truncated, infos = dream.step(np.array([[0.25], [0.75], [-1.0]], np.float32))
    assert truncated.tolist() == [False, True, True] and not terminated.any()
    assert infos["uncertainty"][:2].tolist() == [0.25, 0.75] and np.isnan(infos["uncertainty"][2])
    assert infos["_uncertainty"].all()


def test_doubt_is_told_even_where_nothing_is_cut_and_asked_for_only_where_known():
    dream = Dream(Doubtful(), ZERO, 1, 50, adapt(Line()).codec)
    dream.reset()
    *_, truncated, infos = dream.step(np.ones((1, 1), np.float32))
    assert infos["uncertainty"].tolist() == [1] and not truncated.any()
    with pytest.raises(MissingPower, match="uncertainty"):
        Dream(LineModel(), ZERO, 1, 50, adapt(Line()).codec, distrust=0.5)


def test_infos_say_what_dreams_and_whence_it_began():
    nothing = torch.zeros(2, 1)
    observed = torch.tensor([[0.0, 1.0], [5.0, 0.0]])[..., None]
    mask, index = torch.tensor([[1.0], [0.0]]), torch.tensor([[7, 3], [8, 5]])
    starts = Segment({"observation": observed}, nothing[..., None], nothing, nothing.bool(), mask, {}, None, index)
    dream = Dream(ClockModel(99), starts, 2, 5, identity="the clock")
    _, infos = dream.reset(options={"start": [0, 1]})
    assert infos["start_episode"].tolist() == [7, 8] and infos["start_step"].tolist() == [4, 5]
    assert infos["model"].tolist() == ["the clock"] * 2 and infos["_model"].all()
    assert Dream(ClockModel(99), NINE, 2, 5, CODEC).reset()[1]["start_episode"].tolist() == [-1, -1]
