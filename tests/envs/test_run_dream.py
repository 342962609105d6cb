"""A run folder is an environment by id, single or as a vector."""

import functools

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode

from dreamsim.core.run import BadRun, describe, load, save
from dreamsim.data.collect import Collector
from dreamsim.data.store import Store
from dreamsim.envs.adapt import vectorise
from dreamsim.envs.run_dream import identity, trusted_steps
from dreamsim.envs.toy import Line
from dreamsim.imagination.imagine import Uniform
from worldmodels.decoder_free import DecoderFree

ID = "dreamsim.envs:dreamsim/Dream-v0"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    envs = vectorise(Line, 2)
    codec = envs.codec
    make = functools.partial(DecoderFree, latent=16, width=16, encoder_width=16, bins=21, low=-3.0, high=5.0)
    spaces = {"observation_space": codec.raw_observation_space, "action_space": codec.raw_action_space}
    model = make(codec.observation_space, codec.action_space)
    save(folder, model=model, policy=None, **spaces, parts={"model": describe(make)}, about={})
    with Store.create(folder / "store", *spaces.values()) as store:
        for episode in Collector(envs, codec, seed=0).episodes(Uniform(1), 4):
            store.append(episode)
    return folder


def test_gymnasium_makes_a_vector_of_dreams_by_id(run):
    envs = gym.make_vec(ID, num_envs=3, run=run, horizon=5)
    view, infos = envs.reset(seed=0)
    assert view["latent"].shape == (3, 16) and envs.observation_space.contains(view)
    assert set(infos["start_episode"]) <= {0, 1, 2, 3} and infos["start_step"].tolist() == [0, 0, 0]
    assert identity(load(run)) == infos["model"][0] and "DecoderFree of" in infos["model"][0]
    ends = [envs.step(envs.action_space.sample())[3] for _ in range(6)]
    assert [end.all() for end in ends] == [False, False, False, False, True, False]  # then each begins anew


def test_a_single_dream_keeps_gymnasiums_contract(run):
    env = gym.make(ID, run=run, horizon=5)
    check_env(env.unwrapped, skip_render_check=True)
    first, _ = env.reset(seed=4, options={"start": 2})
    again, info = env.reset(seed=4, options={"start": 2})
    assert np.array_equal(first["latent"], again["latent"]) and info["start_episode"] == 2


def test_a_loaded_run_dreams_as_the_id_does(run):
    ours, theirs = load(run).as_env(2, horizon=5), gym.make_vec(ID, num_envs=2, run=run, horizon=5)
    assert ours.metadata["autoreset_mode"] is AutoresetMode.DISABLED
    assert np.array_equal(ours.reset(seed=1)[0]["latent"], theirs.reset(seed=1)[0]["latent"])


def test_dreams_begin_at_any_recorded_step_where_they_are_asked_to(run):
    store = Store(run / "store")
    dream = load(run).as_env(40, horizon=5, any_step=True)
    _, infos = dream.reset(seed=0)
    steps = infos["start_step"]
    assert len(set(steps)) > 5 and steps.max() <= max(store.steps)
    model = load(run).model
    for row in (0, 1, 2):
        seen = store.episode(int(infos["start_episode"][row])).obs["observation"][steps[row]]
        latent = model.view(model.start({"observation": torch.from_numpy(seen[None].copy())}))["latent"]
        np.testing.assert_allclose(dream.view()["latent"][row], latent[0].detach(), rtol=1e-5)


def test_how_long_a_dream_may_be_is_what_its_report_trusts(run, tmp_path):
    with pytest.raises(BadRun, match="never judged"):
        gym.make_vec(ID, num_envs=2, run=run)
    (tmp_path / "report.json").write_text('{"trusted": 12}')
    assert trusted_steps(tmp_path) == 12
    (tmp_path / "report.json").write_text('{"trusted": 0}')
    with pytest.raises(BadRun, match="trusts none"):
        trusted_steps(tmp_path)


@pytest.mark.filterwarnings("ignore")
def test_torchrl_wraps_a_dream_single_and_as_a_vector(run):
    from torchrl.envs import check_env_specs
    from torchrl.envs.libs.gym import GymEnv, GymWrapper

    env = GymEnv(ID, run=run, horizon=5)
    check_env_specs(env, seed=0)
    rollout = env.rollout(9)
    assert rollout["latent"].shape == (5, 16) and rollout["next", "truncated"][-1].item()
    envs = GymWrapper(gym.make_vec(ID, num_envs=3, run=run, horizon=5, autoreset_mode="Disabled"))
    assert envs.rollout(7, break_when_any_done=False)["next", "reward"].shape == (3, 7, 1)
