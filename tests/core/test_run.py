"""A run folder gives back what was saved, and says clearly what it cannot."""

import functools
import json
import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import torch
import yaml
from gymnasium import spaces
from jsonargparse import ArgumentParser
from torch import nn

from dreamsim.core import run
from dreamsim.core.types import Act

RAW_OBS = spaces.Dict({"place": spaces.Box(-1, 1, (3,), np.float32), "kind": spaces.Discrete(2)})
RAW_ACT = spaces.Box(-2, 2, (1,), np.float32)

MINE = """
from collections.abc import Callable

import gymnasium as gym
import torch
from gymnasium import spaces
from torch import nn

from dreamsim.core.types import Act


class Critic(nn.Module):
    def __init__(self, view_space: spaces.Dict, size: int, width: int = 2) -> None:
        super().__init__()
        self.net = nn.Linear(size, width)


class Model(nn.Module):
    def __init__(
        self,
        observation_space: spaces.Dict,
        action_space: spaces.Space,
        width: int = 4,
        sizes: tuple[int, ...] = (1, 2),
        critic: Callable[[spaces.Dict, int], nn.Module] = Critic,
    ) -> None:
        super().__init__()
        self.sizes = sizes
        self.net = nn.Linear(sum(s.shape[0] for s in observation_space.spaces.values()), width)
        self.critic = critic(observation_space, 3)

    def start(self, obs):
        return {"latent": self.net(torch.cat(list(obs.values()), -1))}

    def view(self, state):
        return state


class Actor(nn.Module):
    def __init__(self, view_space: spaces.Dict, action_space: spaces.Space) -> None:
        super().__init__()
        self.net = nn.Linear(view_space["latent"].shape[0], action_space.shape[0])

    def act(self, view, memory=None, first=None, applied=None):
        return Act(torch.tanh(self.net(view["latent"])))


class World(gym.Env):
    observation_space = spaces.Box(-1, 1, (3,))
    action_space = spaces.Box(-2, 2, (1,))

    def __init__(self, length: int = 3) -> None:
        self.length = length


def small(observation_space: spaces.Dict, action_space: spaces.Space) -> nn.Module:
    return Model(observation_space, action_space, width=2)


def unmarked(observation_space, action_space):
    return Model(observation_space, action_space)


def harm(*args) -> str:
    raise SystemExit("ran")
"""


class Owner:
    """What a config fills, as the modules for training are typed."""

    def __init__(self, build: Callable[[spaces.Dict, spaces.Space], nn.Module]) -> None:
        self.build = build


@pytest.fixture
def mine(tmp_path, monkeypatch):
    (tmp_path / "mine_parts.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    import mine_parts

    yield mine_parts
    del sys.modules["mine_parts"]


def configured(text: str) -> Callable:
    parser = ArgumentParser(exit_on_error=False)
    parser.add_class_arguments(Owner, "owner")
    return parser.instantiate(parser.parse_object({"owner": {"build": yaml.safe_load(text)}})).owner.build


def saved(mine, folder: str = "runs/one", **changes) -> tuple[nn.Module, nn.Module]:
    codec = run.Codec(RAW_OBS, RAW_ACT)
    model = mine.Model(codec.observation_space, codec.action_space, width=5)
    policy = mine.Actor(run.view_space(model, codec.observation_space), codec.action_space)
    parts = {
        "model": run.describe(functools.partial(mine.Model, width=5)),
        "policy": run.describe(mine.Actor),
        "environment": run.describe(functools.partial(mine.World, length=7)),
    }
    given = {"model": model, "policy": policy, "parts": parts, "about": {"task": "toy", "seed": 3}, **changes}
    run.save(folder, observation_space=RAW_OBS, action_space=RAW_ACT, **given)
    return model, policy


def test_a_configured_class_is_described_with_all_its_arguments_nested_factories_too(mine):
    factory = configured(
        "{class_path: mine_parts.Model, init_args: {width: 3, critic: {class_path: mine_parts.Critic}}}"
    )
    description = run.describe(factory)
    assert description == {
        "class_path": "mine_parts.Model",
        "init_args": {
            "width": 3,
            "sizes": {"__tuple__": [1, 2]},
            "critic": {"class_path": "mine_parts.Critic", "init_args": {"width": 2}},
        },
    }
    built = run.build(json.loads(json.dumps(description)), run.Codec(RAW_OBS, RAW_ACT).observation_space, RAW_ACT)
    assert (built.net.out_features, built.sizes, built.critic.net.out_features) == (3, (1, 2), 2)


def test_a_described_factory_survives_a_second_round(mine):
    description = run.describe(functools.partial(mine.Model, critic=functools.partial(mine.Critic, width=9)))
    built = run.build(description, run.Codec(RAW_OBS, RAW_ACT).observation_space, RAW_ACT)
    again = run.describe(functools.partial(run.build, description))
    assert built.critic.net.out_features == 9
    assert again == description


def test_a_bare_function_is_named_by_its_path(mine):
    description = run.describe(configured("mine_parts.small"))
    assert description == {"class_path": "mine_parts.small", "init_args": {}}
    assert run.build(description, run.Codec(RAW_OBS, RAW_ACT).observation_space, RAW_ACT).net.out_features == 2


def test_what_has_no_import_path_is_refused_with_the_cure(mine):
    with pytest.raises(run.BadPart, match="file of its own"):
        run.describe(lambda observation_space, action_space: None)
    with pytest.raises(run.BadPart, match="factory"):
        run.describe(functools.partial(mine.Model, critic=nn.Linear(1, 1)))
    with pytest.raises(run.BadPart, match="by name"):
        run.describe(functools.partial(mine.Model, 1))


def test_only_modules_and_environments_are_ever_called(mine):
    for path in ("mine_parts.harm", "mine_parts.unmarked", "os.system", "builtins.exec", "collections.OrderedDict"):
        with pytest.raises(run.BadPart, match="not trusted"):
            run.build({"class_path": path, "init_args": {}})


def test_a_module_from_elsewhere_is_refused(mine, tmp_path_factory, monkeypatch):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "foreign_parts.py").write_text(MINE)
    monkeypatch.syspath_prepend(elsewhere)
    with pytest.raises(run.BadPart, match="working directory"):
        run.build({"class_path": "foreign_parts.Model", "init_args": {}})
    assert "foreign_parts" not in sys.modules


def test_save_and_load_give_the_same_actions_environment_and_story(mine, capsys):
    model, policy = saved(mine)
    before = torch.get_rng_state()
    loaded = run.load("runs/one")
    assert torch.equal(before, torch.get_rng_state())
    obs = {"place": torch.randn(4, 3), "kind": torch.eye(2)[[0, 1, 1, 0]]}
    expected = policy.act(model.view(model.start(obs))).action
    assert torch.equal(loaded.actor().act(obs).action, expected)
    assert loaded.make_env().length == 7
    assert (loaded.about["task"], loaded.about["seed"]) == ("toy", 3)
    assert loaded.about["versions"]["torch"] == torch.__version__
    assert loaded.codec.raw_observation_space == RAW_OBS and loaded.codec.raw_action_space == RAW_ACT
    assert "mine_parts" in capsys.readouterr().out


def test_a_fresh_process_loads_and_acts(mine):
    saved(mine)
    code = (
        "import sys; sys.path.insert(0, ''); import torch; from dreamsim.core.run import load; run = load('runs/one');"
        "print(run.actor().act({'place': torch.ones(1, 3), 'kind': torch.ones(1, 2)}).action.isfinite().all())"
    )
    root = str(Path(run.__file__).parents[2])
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": root}
    )
    assert done.stdout.strip().endswith("tensor(True)"), done.stderr


def test_a_changed_module_is_warned_about_and_an_unchanged_one_is_not(mine, tmp_path):
    saved(mine)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run.load("runs/one")
    (tmp_path / "mine_parts.py").write_text(MINE + "\n# changed\n")
    with pytest.warns(UserWarning, match="changed since the run was saved"):
        run.load("runs/one")


def test_compiled_and_eager_weights_are_interchangeable(mine):
    eager = nn.Sequential(nn.Linear(2, 3))
    compiled = nn.Sequential(torch.compile(nn.Linear(2, 3)))
    assert "0._orig_mod.weight" in compiled.state_dict()
    assert run.weights(compiled).keys() == run.weights(eager).keys() == {"0.weight", "0.bias"}
    run.load_weights(compiled, run.weights(eager))
    assert torch.equal(compiled.state_dict()["0._orig_mod.weight"], eager[0].weight)
    run.load_weights(eager, run.weights(compiled))


def test_tied_weights_are_saved(tmp_path):
    tied = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    tied[1].weight = tied[0].weight
    run.save(
        tmp_path, model=tied, policy=nn.Identity(), observation_space=RAW_OBS, action_space=RAW_ACT, parts={}, about={}
    )
    assert (tmp_path / "model.safetensors").is_file()


def test_weights_that_do_not_fit_are_named():
    with pytest.raises(run.BadRun, match=r"missing bias.*unknown odd.*weight has shape \(3, 1\), expected \(3, 2\)"):
        run.load_weights(nn.Linear(2, 3), {"weight": torch.zeros(3, 1), "odd": torch.zeros(1)})


def test_missing_and_damaged_files_are_clear_errors(mine):
    saved(mine)
    with pytest.raises(run.BadRun, match="runs here: runs/one"):
        run.load("runs/two")
    Path("runs/two").mkdir()
    with pytest.raises(run.BadRun, match=r"no run\.json"):
        run.load("runs/two")
    Path("runs/one/model.safetensors").write_bytes(b"torn")
    with pytest.raises(run.BadRun, match="damaged"):
        run.load("runs/one")
    Path("runs/one/model.safetensors").unlink()
    with pytest.raises(run.BadRun, match=r"no model\.safetensors"):
        run.load("runs/one")
    Path("runs/one/run.json").write_text("{")
    with pytest.raises(run.BadRun, match="not valid JSON"):
        run.load("runs/one")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda content: [], "names no format"),
        (lambda content: {}, "names no format"),
        (lambda content: {"format": content["format"]}, "lacks parts"),
        (lambda content: {**content, "parts": {}}, "lacks parts/model"),
        (lambda content: {**content, "parts": {"model": 3}}, "lacks parts/model"),
        (lambda content: {**content, "action_space": {"type": "Box"}}, "action_space cannot be read"),
    ],
)
def test_a_record_that_is_none_is_a_clear_error(mine, change, message):
    saved(mine)
    file = Path("runs/one/run.json")
    file.write_text(json.dumps(change(json.loads(file.read_text()))))
    with pytest.raises(run.BadRun, match=message):
        run.load("runs/one")


def test_weights_that_are_not_finite_or_not_those_saved_are_named(mine):
    model, policy = saved(mine)
    file = Path("runs/one/model.safetensors")
    torn = bytearray(file.read_bytes())
    torn[-3] ^= 1
    file.write_bytes(torn)
    with pytest.raises(run.BadRun, match="not those that were saved"):
        run.load("runs/one")
    model.net.weight.data[1, 0] = float("nan")
    saved(mine, model=model, policy=policy)
    with pytest.raises(run.BadRun, match=r"net.weight holds 1 numbers of 25 that are NaN"):
        run.load("runs/one")


def test_a_device_that_is_not_here_is_named_with_the_reason(mine):
    saved(mine)
    with pytest.raises(ValueError, match="there is no device 'gpu'"):
        run.load("runs/one", "gpu")
    if not torch.cuda.is_available():
        with pytest.raises(ValueError, match=r"there is no device cuda:0.*use cpu"):
            run.load("runs/one", "cuda:0")


def test_an_older_format_is_migrated_and_a_newer_one_refused(mine, monkeypatch):
    saved(mine)
    monkeypatch.setattr(run, "FORMAT", run.FORMAT + 1)
    with pytest.raises(run.BadRun, match="has format 1"):
        run.load("runs/one")
    monkeypatch.setitem(run.MIGRATIONS, 1, lambda old: {**old, "format": 2, "about": {**old["about"], "moved": True}})
    assert run.load("runs/one").about["moved"]


def test_a_secret_never_reaches_a_run(mine, monkeypatch):
    monkeypatch.setenv("SOME_API_KEY", 'abc"123456')
    with pytest.raises(run.BadRun, match="SOME_API_KEY"):
        saved(mine, about={"endpoint": 'abc"123456'})
    assert not Path("runs/one/run.json").exists()


def test_a_run_without_an_environment_says_so(mine):
    parts = {"model": run.describe(functools.partial(mine.Model, width=5)), "policy": run.describe(mine.Actor)}
    saved(mine, parts=parts)
    with pytest.raises(run.BadRun, match="--world ENV"):
        run.load("runs/one").make_env()


def test_a_failed_save_leaves_the_last_good_one(mine, monkeypatch):
    model, _ = saved(mine)
    monkeypatch.setattr(os, "fsync", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(OSError, match="No space"):
        saved(mine)
    loaded = run.load("runs/one")
    assert torch.equal(loaded.model.net.weight, model.net.weight)
    assert sorted(p.name for p in Path("runs/one").iterdir()) == ["model.safetensors", "run.json"]


def test_the_view_space_is_found_by_asking_and_disturbs_nothing():
    class Frames(nn.Module):
        def start(self, obs):
            return torch.rand(1) + obs["image"]

        def view(self, state):
            return {"image": state.to(torch.uint8), "note": torch.zeros(1, 4)}

    before = torch.get_rng_state()
    model = Frames()
    space = run.view_space(model, spaces.Dict({"image": spaces.Box(0, 255, (3, 8, 8), np.uint8)}))
    assert space["image"].shape == (3, 8, 8) and space["image"].dtype == np.uint8
    assert space["note"].shape == (4,) and space["note"].dtype == np.float32
    assert model.training and torch.equal(before, torch.get_rng_state())


def test_an_actor_is_a_policy_on_real_observations(mine):
    saved(mine)
    act = run.load("runs/one").actor().act({"place": torch.zeros(2, 3), "kind": torch.zeros(2, 2)})
    assert isinstance(act, Act) and act.action.shape == (2, 1)
    assert isinstance(run.load("runs/one").make_env(), gym.Env)
