"""The dream of a run folder: a vector environment and a single one, reached by id.

gym.make_vec("dreamsim.envs:dreamsim/Dream-v0", num_envs=16, run="runs/cartpole_swingup", horizon=100)
gym.make("dreamsim.envs:dreamsim/Dream-v0", run="runs/cartpole_swingup", horizon=100)
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium.vector import AutoresetMode

from dreamsim.core.run import BadRun, Run, load
from dreamsim.data.store import Store
from dreamsim.envs.believed import asked_space, asked_vector
from dreamsim.envs.dream import Dream
from dreamsim.envs.starts import Starts, from_any_step

Info = dict[str, Any]


def run_dream(
    run: str | Path | Run,
    num_envs: int = 1,
    horizon: int | None = None,
    *,
    starts: Starts | None = None,
    any_step: bool = False,
    seed: int = 0,
    autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
    distrust: float | None = None,
    device: torch.device | str = "cpu",
) -> Dream:
    """Return ``num_envs`` dreams of a run's model, begun where the run's recorded episodes began.

    ``horizon`` None: the horizon that ``dreamsim evaluate`` found to be trusted. ``any_step``:
    begin at any recorded step instead of first observations. ``starts`` replaces both.
    """
    loaded = run if isinstance(run, Run) else load(run, device)
    return Dream(
        loaded.model,
        _recorded(loaded, any_step) if starts is None else starts,
        num_envs,
        horizon if horizon is not None else trusted_steps(loaded.folder),
        loaded.codec,
        seed=seed,
        autoreset_mode=AutoresetMode(autoreset_mode),
        device=device,
        distrust=distrust,
        identity=identity(loaded),
    )


class LoneDream(gym.Env):
    """One dream of a run as a plain ``gymnasium.Env``; the arguments are those of ``run_dream``.

    Discrete actions are Discrete here, all others Box(-1, 1, (A,)). ``render`` shows what a
    model decodes to an image.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 20}

    def __init__(
        self, run: str | Path | Run, horizon: int | None = None, *, render_mode: str | None = None, **options: Any
    ) -> None:
        if render_mode not in (None, "rgb_array"):
            raise ValueError(f"render_mode must be None or 'rgb_array', got {render_mode!r}")
        self.render_mode = render_mode
        self.dream = run_dream(run, 1, horizon, autoreset_mode=AutoresetMode.DISABLED, **options)
        self.observation_space = self.dream.single_observation_space
        self.action_space = asked_space(self.dream.codec.raw_action_space, self.dream.single_action_space)

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[dict[str, np.ndarray], Info]:
        super().reset(seed=seed)
        options = dict(options or {})
        if "start" in options:
            options["start"] = [options["start"]]
        view, infos = self.dream.reset(seed=seed, options=options)
        return _first(view), row_info(infos, 0)

    def step(self, action: Any) -> tuple[dict[str, np.ndarray], float, bool, bool, Info]:
        vector = asked_vector(self.action_space, action)
        view, reward, terminated, truncated, infos = self.dream.step(vector[None])
        return _first(view), float(reward[0]), bool(terminated[0]), bool(truncated[0]), row_info(infos, 0)

    def render(self) -> np.ndarray | None:
        if self.render_mode is None:
            return None
        images = [value for value in self.dream.decoded().values() if value.dtype == torch.uint8 and value.dim() == 4]
        if not images:
            raise ValueError(f"{self.dream.identity} decodes to no image; a dream of it cannot be rendered")
        return images[0][0].permute(1, 2, 0).cpu().numpy()


def row_info(infos: Info, row: int) -> Info:
    """Return one row's info of a vector environment's, without what is not set for it."""
    said = {name: value for name, value in infos.items() if not name.startswith("_")}
    return {
        name: row_info(value, row) if isinstance(value, dict) else value[row]
        for name, value in said.items()
        if f"_{name}" not in infos or infos[f"_{name}"][row]
    }


def identity(run: Run) -> str:
    """Return class, folder and a digest of the weights of a run's model."""
    digest = hashlib.sha256()
    for name, value in sorted(run.model.state_dict().items()):
        digest.update(name.encode())
        digest.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return f"{type(run.model).__name__} of {run.folder} ({digest.hexdigest()[:12]})"


def trusted_steps(folder: Path) -> int:
    """Return the horizon that the run's report trusts, or raise BadRun saying how to get one."""
    file = folder / "report.json"
    trusted = json.loads(file.read_text()).get("trusted") if file.is_file() else None
    if not trusted:
        found = "its report trusts none of it" if file.is_file() else "it was never judged"
        raise BadRun(f"how long may a dream of {folder} be? {found}; give horizon=..., or: dreamsim evaluate {folder}")
    return int(trusted)


def _recorded(run: Run, any_step: bool) -> Starts:
    folder = run.folder / "store"
    if not (folder / "store.json").is_file():
        raise BadRun(f"{folder} holds no episodes to begin a dream from; give starts=... (real first observations)")
    store = Store(folder)
    return from_any_step(store) if any_step else store


def _first(view: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: value[0] for name, value in view.items()}
