import json
import os
import pickle
import sys
import zipfile

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from dreamsim.core.spaces import Codec
from dreamsim.evaluation.foreign import BadPolicy, load

sb3 = pytest.importorskip("stable_baselines3")


def encoded(codec, observations):
    rows = [codec.encode_obs(obs) for obs in observations]
    return {name: torch.from_numpy(np.stack([row[name] for row in rows])) for name in rows[0]}


def agree(model, path, env, count=20):
    """Compare our actions with SB3's own on drawn observations, in the environment's units."""
    codec = Codec(env.observation_space, env.action_space)
    env.observation_space.seed(0)
    drawn = [env.observation_space.sample() for _ in range(count)]
    ours = load(str(path), codec).policy.act(encoded(codec, drawn)).action.numpy()
    for obs, unit in zip(drawn, ours, strict=True):
        theirs, _ = model.predict(obs, deterministic=True)
        np.testing.assert_allclose(np.asarray(codec.decode_action(unit)), theirs, atol=2e-5)


class Made(gym.Env):
    """Any two spaces, random observations."""

    def __init__(self, observation_space, action_space):
        self.observation_space, self.action_space = observation_space, action_space

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.observation_space.sample(), {}

    def step(self, action):
        return self.observation_space.sample(), 0.0, False, False, {}


VECTOR, PUSH = spaces.Box(-1, 1, (3,), np.float32), spaces.Box(np.float32([-1, -3]), np.float32([2, 3]))
QUICK = {"learning_starts": 20, "batch_size": 16, "buffer_size": 500, "device": "cpu"}
CASES = {
    "PPO, choices": (lambda: sb3.PPO("MlpPolicy", "CartPole-v1", n_steps=64, batch_size=32, device="cpu"), 128),
    "PPO, clipped box": (lambda: sb3.PPO("MlpPolicy", "Pendulum-v1", n_steps=64, batch_size=32, device="cpu"), 128),
    "SAC": (lambda: sb3.SAC("MlpPolicy", "Pendulum-v1", **QUICK), 60),
    "TD3 on uneven bounds": (lambda: sb3.TD3("MlpPolicy", Made(VECTOR, PUSH), **QUICK), 0),
    "DQN": (lambda: sb3.DQN("MlpPolicy", "CartPole-v1", policy_kwargs={"net_arch": [16]}, **QUICK), 60),
    "A2C, own layers": (
        lambda: sb3.A2C("MlpPolicy", "CartPole-v1", policy_kwargs={"activation_fn": nn.ELU, "net_arch": [8, 8, 8]}),
        20,
    ),
    "PPO, several choices of choices": (
        lambda: sb3.PPO("MlpPolicy", Made(spaces.Discrete(5), spaces.MultiDiscrete([3, 2])), device="cpu"),
        0,
    ),
    "SAC, dict": (
        lambda: sb3.SAC("MultiInputPolicy", Made(spaces.Dict(b=VECTOR, a=spaces.MultiDiscrete([2, 3])), PUSH), **QUICK),
        0,
    ),
    "PPO, dict with image": (
        lambda: sb3.PPO(
            "MultiInputPolicy", Made(spaces.Dict(eye=spaces.Box(0, 255, (36, 36, 3), np.uint8), arm=VECTOR), PUSH)
        ),
        0,
    ),
    "PPO, image, extractors apart": (
        lambda: sb3.PPO(
            "CnnPolicy",
            Made(spaces.Box(0, 255, (3, 36, 36), np.uint8), spaces.Discrete(3)),
            policy_kwargs={"share_features_extractor": False},
        ),
        0,
    ),
    "PPO, grid of codes": (
        lambda: sb3.PPO("MlpPolicy", Made(spaces.Box(0, 255, (5, 5, 3), np.uint8), spaces.Discrete(3))),
        0,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_actions_equal_those_of_sb3(name, tmp_path):
    make, steps = CASES[name]
    model = make()
    if steps:
        model.learn(steps)
    model.save(tmp_path / "policy.zip")
    env = model.get_env().envs[0].unwrapped
    agree(model, tmp_path / "policy.zip", env)


class Touch:
    """A pickle that makes a file when it is loaded."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.system, (f"touch {self.path}",)


@pytest.fixture
def saved(tmp_path):
    sb3.PPO("MlpPolicy", "CartPole-v1", device="cpu").save(tmp_path / "policy.zip")
    with zipfile.ZipFile(tmp_path / "policy.zip") as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def rewritten(tmp_path, members):
    with zipfile.ZipFile(tmp_path / "changed.zip", "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return str(tmp_path / "changed.zip")


CARTPOLE = Codec(*(getattr(gym.make("CartPole-v1"), name) for name in ("observation_space", "action_space")))


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
def test_no_pickle_in_the_zip_is_ever_run(saved, tmp_path):
    trap = tmp_path / "sprung"
    data = json.loads(saved["data"])
    code = __import__("base64").b64encode(pickle.dumps(Touch(trap))).decode()
    for value in data.values():
        if isinstance(value, dict) and ":serialized:" in value:
            value[":serialized:"] = code
    path = rewritten(tmp_path, {**saved, "data": json.dumps(data)})
    load(path, CARTPOLE).policy.act({"observation": torch.zeros(1, 4)})
    path = rewritten(tmp_path, {**saved, "policy.pth": pickle.dumps(Touch(trap))})
    with pytest.raises(BadPolicy, match="could run code"):
        load(path, CARTPOLE)
    evil = tmp_path / "evil.pth"
    torch.save({"action_net.weight": Touch(trap)}, evil)
    with pytest.raises(BadPolicy, match="could run code"):
        load(rewritten(tmp_path, {**saved, "policy.pth": evil.read_bytes()}), CARTPOLE)
    assert not trap.exists()


def test_what_is_not_a_standard_policy_is_refused_with_the_cure(saved, tmp_path):
    data = json.loads(saved["data"])
    data["policy_class"]["__module__"] = "mine.policies"
    with pytest.raises(BadPolicy, match=r"mine\.policies.*ONNX"):
        load(rewritten(tmp_path, {**saved, "data": json.dumps(data)}), CARTPOLE)
    data = json.loads(saved["data"])
    data["policy_kwargs"] = {"features_extractor_class": "<class 'mine.Extractor'>"}
    with pytest.raises(BadPolicy, match="ONNX"):
        load(rewritten(tmp_path, {**saved, "data": json.dumps(data)}), CARTPOLE)
    stored = tmp_path / "more.pth"
    weights = torch.load(__import__("io").BytesIO(saved["policy.pth"]), weights_only=True)
    torch.save({**weights, "mystery.weight": torch.zeros(2)}, stored)
    with pytest.raises(BadPolicy, match="mystery"):
        load(rewritten(tmp_path, {**saved, "policy.pth": stored.read_bytes()}), CARTPOLE)
    (tmp_path / "no.zip").write_bytes(b"nothing")
    with pytest.raises(BadPolicy, match="no Stable-Baselines3 zip"):
        load(str(tmp_path / "no.zip"), CARTPOLE)
    with pytest.raises(BadPolicy, match="no file"):
        load(str(tmp_path / "absent.zip"), CARTPOLE)


def test_a_policy_of_another_environment_is_refused(saved, tmp_path):
    path = rewritten(tmp_path, saved)
    with pytest.raises(BadPolicy, match="reads 4 numbers, the environment gives 3"):
        load(path, Codec(VECTOR, spaces.Discrete(2)))
    with pytest.raises(BadPolicy, match="gives 2 numbers"):
        load(path, Codec(spaces.Box(-1, 1, (4,)), spaces.Discrete(7)))
    sb3.SAC("MlpPolicy", "Pendulum-v1", **QUICK).save(tmp_path / "sac.zip")
    with pytest.raises(BadPolicy, match="trained for actions"):
        load(str(tmp_path / "sac.zip"), Codec(VECTOR, spaces.Box(-1, 1, (1,))))
    with pytest.raises(BadPolicy, match="acts in a Box"):
        load(str(tmp_path / "sac.zip"), Codec(VECTOR, spaces.Discrete(2)))


@pytest.fixture
def own(tmp_path, monkeypatch):
    """Write a user's file into the working directory."""

    def write(name, text):
        (tmp_path / f"{name}.py").write_text(text)
        return f"{name}.load"

    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)
    yield write
    for name in set(sys.modules) - before:
        if name.startswith("mine_"):
            del sys.modules[name]


WORLD = Codec(spaces.Dict(eye=spaces.Box(0, 255, (8, 8, 3), np.uint8), arm=VECTOR), spaces.Box(-2.0, 2.0, (2,)))


def some(codec, count=3):
    codec.raw_observation_space.seed(1)
    drawn = [codec.raw_observation_space.sample() for _ in range(count)]
    return drawn, encoded(codec, drawn)


def test_a_users_function_sees_raw_observations_and_acts_in_raw_units(own):
    path = own("mine_function", "def load():\n    return lambda obs: obs['arm'][:2] + obs['eye'][0, 0, :2] / 255.0\n")
    drawn, view = some(WORLD)
    act = load(path, WORLD).policy.act(view)
    expected = np.stack([obs["arm"][:2] + obs["eye"][0, 0, :2] / 255.0 for obs in drawn]) / 2
    np.testing.assert_allclose(act.action.numpy(), expected, atol=1e-6)


def test_predict_acts_without_randomness_and_keeps_each_rows_state(own):
    path = own(
        "mine_object",
        "class Counts:\n"
        "    def predict(self, observation, state=None, deterministic=False):\n"
        "        assert deterministic\n"
        "        state = 0 if state is None else state + 1\n"
        "        return observation['arm'][:2] * 0 + state, state\n"
        "def load():\n    return Counts()\n",
    )
    policy = load(path, WORLD).policy
    _, view = some(WORLD)
    first = policy.act(view)
    second = policy.act(view, first.memory, torch.tensor([False, True, False]))
    assert (first.action == 0).all()
    assert second.action[:, 0].tolist() == [0.5, 0.0, 0.5]


def test_code_that_says_it_takes_batches_is_called_once(own):
    path = own(
        "mine_batched",
        "class Many:\n    batched = True\n    calls = 0\n"
        "    def predict(self, observation):\n"
        "        Many.calls += 1\n        return observation['arm'][:, :2]\n"
        "def load():\n    return Many()\n",
    )
    drawn, view = some(WORLD)
    act = load(path, WORLD).policy.act(view)
    np.testing.assert_allclose(act.action.numpy(), np.stack([obs["arm"][:2] for obs in drawn]) / 2, atol=1e-6)
    assert sys.modules["mine_batched"].Many.calls == 1


def test_mistakes_in_a_users_policy_are_told_in_their_words(own):
    _, view = some(WORLD)
    with pytest.raises(BadPolicy, match=r"mine_shape\.load must return an action"):
        load(own("mine_shape", "def load():\n    return lambda obs: 0.3\n"), WORLD).policy.act(view)
    with pytest.raises(BadPolicy, match="takes arguments"):
        load(own("mine_args", "def load(obs):\n    return 1\n"), WORLD)
    with pytest.raises(BadPolicy, match="expected a callable"):
        load(own("mine_number", "def load():\n    return 3\n"), WORLD)
    with pytest.raises(ValueError, match="mine_absent"):
        load("mine_absent.load", WORLD)


class Arm(nn.Module):
    def forward(self, arm):
        return torch.tanh(arm[:, :2]) * 2


class Both(nn.Module):
    def forward(self, eye, arm):
        return arm[:, :2] + eye.float().mean((1, 2))[:, :2] / 255


def exported(module, inputs, names, path, dynamic=True, output="action"):
    axes = {name: {0: "batch"} for name in (*names, output)} if dynamic else None
    torch.onnx.export(
        module, inputs, str(path), input_names=names, output_names=[output], dynamic_axes=axes, dynamo=False
    )
    return str(path)


@pytest.mark.filterwarnings("ignore")
def test_onnx_inputs_are_matched_by_name_and_shape(tmp_path):
    drawn, view = some(WORLD)
    eye, arm = torch.zeros(1, 8, 8, 3, dtype=torch.uint8), torch.zeros(1, 3)
    path = exported(Both(), (eye, arm), ["eye", "arm"], tmp_path / "both.onnx")
    expected = [obs["arm"][:2] + obs["eye"].mean((0, 1))[:2] / 255 for obs in drawn]
    np.testing.assert_allclose(load(path, WORLD).policy.act(view).action.numpy(), np.stack(expected) / 2, atol=1e-5)
    fixed = exported(Both(), (eye, arm), ["eye", "arm"], tmp_path / "fixed.onnx", dynamic=False)
    np.testing.assert_allclose(load(fixed, WORLD).policy.act(view).action.numpy(), np.stack(expected) / 2, atol=1e-5)


@pytest.mark.filterwarnings("ignore")
def test_onnx_may_read_all_fields_end_to_end_in_the_environments_order(tmp_path):
    codec = Codec(spaces.Dict(leg=VECTOR, arm=VECTOR), spaces.Box(-2.0, 2.0, (2,)))
    drawn, view = some(codec)
    path = exported(Arm(), (torch.zeros(1, 6),), ["x"], tmp_path / "flat.onnx")
    first = next(iter(codec.raw_observation_space.spaces))
    expected = np.tanh(np.stack([obs[first][:2] for obs in drawn]))
    np.testing.assert_allclose(load(path, codec).policy.act(view).action.numpy(), expected, atol=1e-5)


@pytest.mark.filterwarnings("ignore")
def test_onnx_that_does_not_fit_is_refused(tmp_path):
    path = exported(Arm(), (torch.zeros(1, 3),), ["arm"], tmp_path / "arm.onnx")
    with pytest.raises(BadPolicy, match="does not fit the observations"):
        load(path, Codec(spaces.Dict(leg=VECTOR, eye=VECTOR), spaces.Box(-2, 2, (2,))))
    with pytest.raises(BadPolicy, match="output action has shape"):
        load(path, Codec(VECTOR, spaces.Box(-2, 2, (3,))))
    (tmp_path / "broken.onnx").write_bytes(b"nothing")
    with pytest.raises(BadPolicy, match="no valid ONNX"):
        load(str(tmp_path / "broken.onnx"), WORLD)


@pytest.mark.filterwarnings("ignore")
def test_onnx_scores_and_integers_choose(tmp_path):
    class Choice(nn.Module):
        def forward(self, x):
            return x.argmax(1)

    codec = Codec(VECTOR, spaces.Discrete(3, start=-1))
    view = {"observation": torch.eye(3)}
    scores = exported(nn.Identity(), (torch.zeros(1, 3),), ["x"], tmp_path / "scores.onnx")
    assert torch.equal(load(scores, codec).policy.act(view).action, torch.eye(3))
    integers = exported(Choice(), (torch.zeros(1, 3),), ["x"], tmp_path / "integers.onnx")
    codec = Codec(VECTOR, spaces.Discrete(3))
    assert torch.equal(load(integers, codec).policy.act(view).action, torch.eye(3))
