"""A run folder: what a training run leaves behind and all that is needed to use it.

``run.json`` (format version, parts, spaces, versions, counters) and ``model.safetensors``
are what others load. ``last.ckpt`` beside them only resumes. The public API of a stored
run is ``load(folder)``.
"""

from __future__ import annotations

import functools
import importlib.metadata
import json
import os
import platform
import re
import subprocess
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from dreamsim.core.leaf import Bytes
from dreamsim.core.parts import BadPart, Description, build, describe, user_modules
from dreamsim.core.random import Stream
from dreamsim.core.spaces import Codec, space_from_json, space_to_json
from dreamsim.core.weights import BadRun, load_weights, pack, unpack, weights

__all__ = ["BadPart", "BadRun", "Run", "build", "describe", "load", "load_weights", "save", "view_space", "weights"]

FORMAT = 1
FIELDS = ("parts", "modules", "observation_space", "action_space", "about")  # of run.json, each an object
# Rule: a change of run.json raises FORMAT and adds {old version: function that returns the next version's dict}.
MIGRATIONS: dict[int, Callable[[dict[str, Any]], dict[str, Any]]] = {}

PACKAGES = ("dreamsim-engine", "torch", "lightning", "gymnasium", "mujoco", "dm_control", "numpy")
SECRET_NAMES = re.compile("KEY|TOKEN|SECRET|PASSWORD|CREDENTIAL", re.IGNORECASE)


class Run:
    """A loaded run. ``about`` holds task, seed, counters, versions, commit and time; ``parts`` the descriptions."""

    def __init__(
        self, folder: Path, codec: Codec, model: Any, policy: Any, parts: dict[str, Description], about: dict[str, Any]
    ) -> None:
        self.folder = folder
        self.codec = codec
        self.model = model
        self.policy = policy
        self.parts = parts
        self.about = about

    @property
    def make_env(self) -> Callable[[], gym.Env]:
        """A maker of the run's real environment, raw, that can go to another process. Raises BadRun without one."""
        if "environment" not in self.parts:
            raise BadRun(f"{self.folder} was trained from recordings and names no environment; name one: --world ENV")
        return functools.partial(build, self.parts["environment"])

    def actor(self) -> Any:
        """Return the run's policy acting without randomness on real observations (B, ...).

        Raises BadRun for a run that holds a world alone.
        """
        if self.policy is None:
            raise BadRun(
                f"{self.folder} holds a world model and no policy; train one in it "
                "(dreamsim.training.policy.FitPolicy) or name one: --policy"
            )
        # The loop stands above core; only this door back to it is needed.
        from dreamsim.imagination.imagine import Believer, Greedy

        if "planner" not in self.parts:
            return Believer(self.model, Greedy(self.policy)).eval()
        from dreamsim.imagination.plan import Deliberate

        planner = build(self.parts["planner"], self.model, self.policy, self.codec.raw_action_space)
        device = next((p.device for p in self.model.parameters()), torch.device("cpu"))
        return Greedy(Deliberate(self.model, planner)).to(device).eval()

    def as_env(self, num_envs: int = 1, horizon: int | None = None, **options: Any) -> Any:
        """Return a Dream of this run, a ``gymnasium.vector.VectorEnv`` that leaves resets to the caller.

        ``horizon`` None: as long as the run's report trusts it; ``options``: of ``envs.run_dream.run_dream``.
        """
        from gymnasium.vector import AutoresetMode

        from dreamsim.envs.run_dream import run_dream

        return run_dream(self, num_envs, horizon, **{"autoreset_mode": AutoresetMode.DISABLED, **options})


def save(
    folder: str | Path,
    *,
    model: nn.Module,
    policy: nn.Module | None,
    observation_space: spaces.Space,
    action_space: spaces.Space,
    parts: dict[str, Description],
    about: dict[str, Any],
) -> None:
    """Write ``run.json`` and ``model.safetensors``, each replaced whole or not at all.

    The spaces are the environment's own. ``parts`` needs "model", with a policy
    "policy", and may name "environment", "objective" and "planner". ``about`` is plain JSON; versions, commit and
    time are added. Raises BadRun where the value of a secret environment variable would be
    written.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    content = {
        "format": FORMAT,
        "parts": parts,
        "modules": user_modules(*parts.values()),
        "observation_space": space_to_json(observation_space),
        "action_space": space_to_json(action_space),
        "about": {**about, **_origin(), "time": time.strftime("%Y-%m-%dT%H:%M:%S%z")},
    }
    text = json.dumps(content, indent=1)
    _refuse_secrets(text)
    tensors = {f"model.{name}": value for name, value in weights(model).items()}
    if policy is not None:
        tensors |= {f"policy.{name}": value for name, value in weights(policy).items()}
    _replace(folder / "model.safetensors", pack(tensors))
    _replace(folder / "run.json", text.encode())


def load(folder: str | Path, device: torch.device | str = "cpu") -> Run:
    """Return the run in ``folder``, its model and policy on ``device`` and in evaluation mode.

    The user's own modules are named as they are imported; one that has changed since the
    run was written is warned about. Raises BadRun or BadPart with the cure, also for weights that are not finite.
    """
    folder, device = Path(folder), usable(device)
    content = read(folder)
    parts = content["parts"]
    name_modules(content)
    codec = Codec(*_spaces(folder, content))
    with Stream(0):  # initial weights are drawn and thrown away; the caller's random numbers stay untouched
        model = build(parts["model"], codec.observation_space, codec.action_space)
        policy = None
        if "policy" in parts:
            policy = build(parts["policy"], view_space(model, codec.observation_space), codec.action_space)
    stored = unpack(folder)
    for part, owner in (("model", model), ("policy", policy)) if policy is not None else (("model", model),):
        mine = {name.removeprefix(f"{part}."): value for name, value in stored.items() if name.startswith(f"{part}.")}
        load_weights(owner, mine, f"{folder}: {part}")
        owner.to(device).eval()
    return Run(folder, codec, model, policy, parts, content["about"])


def read(folder: Path) -> dict[str, Any]:
    """Return the content of ``run.json``, migrated to this version's format."""
    file = folder / "run.json"
    if not folder.is_dir():
        raise BadRun(f"there is no folder {folder}; {_near(folder)}")
    if not file.is_file():
        raise BadRun(f"{folder} holds no run.json: it is no run folder, or its run ended before it first saved")
    try:
        content = json.loads(file.read_text())
    except (ValueError, RecursionError) as error:  # not JSON, not UTF-8, a number without end, too deep
        raise BadRun(f"{file} is not valid JSON ({error}); restore it from a copy") from error
    version = content.get("format") if isinstance(content, dict) else None
    if type(version) is not int:
        raise BadRun(f"{file} is no record of a run: it names no format; restore it from a copy")
    while version != FORMAT:
        if version not in MIGRATIONS:
            raise BadRun(f"{file} has format {version}, this dreamsim reads {FORMAT}; use the version that wrote it")
        content = MIGRATIONS[version](content)
        version = content["format"]
    wrong = [name for name in FIELDS if not isinstance(content.get(name), dict)]
    wrong += (
        [f"parts/{name}" for name, part in content.get("parts", {}).items() if not _is_part(part)] if not wrong else []
    )
    if wrong or "model" not in content["parts"]:
        raise BadRun(
            f"{file} lacks {wrong[0] if wrong else 'parts/model'} or holds something else there; restore a copy"
        )
    return content


def usable(device: torch.device | str) -> torch.device:
    """Return a device that is here, or raise ValueError with what to do."""
    try:
        found = torch.device(device)
    except RuntimeError as error:
        raise ValueError(f"there is no device {device!r}; name cpu, cuda or cuda:N") from error
    if found.type == "cuda" and not torch.cuda.is_available():
        why = "sees no driver" if torch.version.cuda else "is the CPU build (see CUDA in the README)"
        raise ValueError(f"there is no device {device}: this torch {why}; use cpu")
    if found.type == "cuda" and (found.index or 0) >= torch.cuda.device_count():
        raise ValueError(f"there is no device {device}: this machine has {torch.cuda.device_count()}")
    return found


def name_modules(content: dict[str, Any]) -> None:
    """Print the user's own modules that a run names, and warn of those that have changed since it was saved."""
    recorded = content["modules"]
    for name, module in user_modules(*content["parts"].values()).items():
        print(f"your module {name}: {module['file']} (sha256 {module['sha256'][:12]})")
        before = recorded.get(name)
        if before is not None and before["sha256"] != module["sha256"]:
            warnings.warn(
                f"{module['file']} has changed since the run was saved (sha256 then {before['sha256'][:12]}, "
                f"now {module['sha256'][:12]}); results may differ",
                stacklevel=3,
            )


@torch.no_grad()
def view_space(model: Any, observation_space: spaces.Dict) -> spaces.Dict:
    """Return the space of ``model.view(state)``, found by starting the model on one observation."""
    obs = {
        name: torch.zeros((1, *(part.shape or ())), dtype=_dtype(part))
        for name, part in observation_space.spaces.items()
    }
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    training = model.training
    with Stream(0, device):
        view = model.eval().view(model.start({name: value.to(device) for name, value in obs.items()}))
    model.train(training)
    return spaces.Dict({name: view_box(value[0]) for name, value in view.items()})


def view_box(row: Tensor) -> spaces.Box:
    """Return the space of one row of a view: text, image or numbers."""
    shape = tuple(row.shape)
    if row.dtype == torch.uint8:
        return Bytes(*shape) if len(shape) == 1 else spaces.Box(0, 255, shape, np.uint8)
    return spaces.Box(-np.inf, np.inf, shape, np.float32)


def _dtype(part: spaces.Space) -> torch.dtype:
    return torch.uint8 if part.dtype == "uint8" else torch.float32


def _replace(file: Path, content: bytes) -> None:
    temporary = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        with temporary.open("wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(file)
    finally:
        temporary.unlink(missing_ok=True)


def _origin() -> dict[str, Any]:
    return {"versions": _versions(), "commit": _commit(Path.cwd())}


@functools.cache
def _versions() -> dict[str, str]:
    installed = {d.metadata["Name"].lower().replace("_", "-"): d.version for d in importlib.metadata.distributions()}
    wanted = {name: installed.get(name.replace("_", "-")) for name in PACKAGES}
    return {"python": platform.python_version(), **{name: version for name, version in wanted.items() if version}}


@functools.cache
def _commit(folder: Path) -> str | None:
    """Return the commit of the checkout around a folder, with "+changes" where it differs; None outside git."""
    try:
        run = functools.partial(subprocess.run, cwd=folder, capture_output=True, text=True, timeout=10)
        head = run(["git", "rev-parse", "HEAD"])
        changed = run(["git", "status", "--porcelain", "--untracked-files=no"])
    except (OSError, subprocess.TimeoutExpired):
        return None
    if head.returncode:
        return None
    return head.stdout.strip() + ("+changes" if changed.stdout.strip() else "")


def _refuse_secrets(text: str) -> None:
    for name, value in os.environ.items():
        if SECRET_NAMES.search(name) and len(value) >= 8 and json.dumps(value)[1:-1] in text:
            raise BadRun(
                f"the value of the environment variable {name} would be written to run.json; "
                "let the part read the variable itself instead of taking its value as an argument"
            )


def _is_part(part: Any) -> bool:
    return isinstance(part, dict) and isinstance(part.get("class_path"), str)


def _spaces(folder: Path, content: dict[str, Any]) -> Iterator[spaces.Space]:
    for name in ("observation_space", "action_space"):
        try:
            yield space_from_json(content[name])
        except (KeyError, TypeError, ValueError) as error:
            raise BadRun(f"{folder / 'run.json'}: {name} cannot be read ({error!r}); restore a copy") from error


def _near(folder: Path) -> str:
    places = sorted(p.parent for p in Path("runs").glob("**/run.json")) if Path("runs").is_dir() else []
    return f"runs here: {', '.join(map(str, places[:8]))}" if places else "no run was found under runs/"
