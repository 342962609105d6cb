"""A dream as an environment: any world model behind Gymnasium's vector interface."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from torch import Tensor

from dreamsim.core import tree
from dreamsim.core.plain import from_plain, to_plain
from dreamsim.core.protocols import Decodes, Uncertain, WorldModel, find_power, power
from dreamsim.core.random import Stream, derive_seed
from dreamsim.core.run import view_box
from dreamsim.core.spaces import Codec
from dreamsim.core.types import Obs, State
from dreamsim.envs.adapt import checked_mask, row_seeds, unit_box
from dreamsim.envs.starts import Starts, Table

Info = dict[str, Any]


class Stepped(NamedTuple):
    """One dreamt step of every row, as tensors."""

    view: Obs  # (N, ...)
    reward: Tensor  # (N,)
    terminated: Tensor  # (N,) bool
    truncated: Tensor  # (N,) bool
    uncertainty: Tensor | None  # (N,) of the step just dreamt; None: the model knows none


class Dream(VectorEnv):
    """``num_envs`` dreams of one model, each begun from a real start and ended on its own.

    ``starts``: real first observations as a dict of (S, ...) tensors, real histories as a
    Segment (S, c steps; padding after a short history is skipped), Episodes (their first
    observations), or a function that returns one of these, asked at every full reset. A reset
    draws among the S starts, or takes those of ``options={"start": (N,) indices}``;
    ``infos["start"]`` says which, ``infos["start_episode"]`` and ``infos["start_step"]`` (-1:
    unknown) whence it came, ``infos["model"]`` what dreams (``identity``).

    Observations are the model's view, actions (N, A) in [-1, 1] are settled as the real
    environment would (clipped, one-hot). A row terminates with probability 1 - ``proceed``,
    drawn from a random stream of the dream's own, and is truncated after ``horizon`` steps.
    A model with the power Uncertain tells ``infos["uncertainty"]`` (N,) of each step; above
    ``distrust`` the row is truncated as well (``dreamsim.evaluation.calibration`` finds a value).
    ``codec`` is the real environment's, None: actions are already in [-1, 1] and as long as
    those of the Segment; ``dream.codec`` keeps its action form and serves a Collector.
    All of ``autoreset_mode`` are offered; DISABLED asks for
    ``reset(options={"reset_mask": (N,) bool})``. Equal seeds and actions give equal bits.
    The model is used as it is: put it in eval mode yourself.
    """

    def __init__(
        self,
        model: WorldModel,
        starts: Starts | Callable[[], Starts],
        num_envs: int,
        horizon: int,
        codec: Codec | None = None,
        *,
        seed: int = 0,
        autoreset_mode: AutoresetMode = AutoresetMode.DISABLED,
        device: torch.device | str = "cpu",
        distrust: float | None = None,
        identity: str = "",
    ) -> None:
        if num_envs < 1 or horizon < 1:
            raise ValueError(f"a dream needs 1 or more rows and steps, got num_envs={num_envs}, horizon={horizon}")
        self.num_envs, self._model, self._horizon, self._device = num_envs, model, horizon, torch.device(device)
        self._given, self._mode = starts, autoreset_mode
        self._doubt = find_power(model, Uncertain) if distrust is None else power(model, Uncertain)
        self._distrust, self.identity = distrust, identity or type(model).__name__
        self._table = self._read_starts()
        actions = codec.raw_action_space if codec is not None else self._table.action_space()
        self._stream = Stream(derive_seed("dream", seed), device)
        self._state: State = None
        self._view: Obs = {}
        self._steps = np.zeros(num_envs, np.int64)
        self._start = np.zeros(num_envs, np.int64)
        self._over = np.zeros(num_envs, bool)
        self.metadata = {"render_modes": [], "autoreset_mode": autoreset_mode}
        self.autoreset_mode = autoreset_mode  # where others, such as torchrl, look for it
        self.codec = Codec(self._view_space(), actions)
        self.single_observation_space, self.single_action_space = self.codec.observation_space, unit_box(self.codec)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)

    # --- as a Gymnasium vector environment

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: Info | None = None
    ) -> tuple[dict[str, np.ndarray], Info]:
        options = dict(options or {})
        everyone = np.ones(self.num_envs, bool)
        mask = checked_mask(options.pop("reset_mask", everyone), self.num_envs)
        chosen = options.pop("start", None)
        if options:
            raise ValueError(f"unknown options {sorted(options)}; a dream knows 'start' and 'reset_mask'")
        seeds = row_seeds(seed, self.num_envs)
        if mask.all():
            self._table = self._read_starts() if callable(self._given) else self._table
            if seed is not None:
                self._stream = Stream(derive_seed("dream", *(str(one) for one in seeds)), self._device)
        elif self._state is None:
            raise RuntimeError("a dream must be reset whole before single rows of it can be")
        self._begin(mask, seeds, None if chosen is None else np.asarray(chosen, np.int64))
        return _numpy(self._view), self._said(mask)

    def step(self, actions: np.ndarray) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray, np.ndarray, Info]:
        if not np.isfinite(actions).all():
            row = int(np.flatnonzero(~np.isfinite(actions).all(1))[0])
            raise ValueError(f"dream row {row} was given the action {actions[row]} at step {self._steps[row]}")
        unit = self.codec.scale.unit(self.codec.settle(actions))
        waiting = self._over.copy()
        if self._mode == AutoresetMode.DISABLED and waiting.any():
            raise RuntimeError(f"dreams {np.flatnonzero(waiting).tolist()} have ended; reset them by reset_mask")
        with torch.no_grad():
            stepped = self.step_torch(torch.from_numpy(unit).to(self._device))
        reward = stepped.reward.double().cpu().numpy()
        terminated, truncated = stepped.terminated.cpu().numpy(), stepped.truncated.cpu().numpy()
        infos = self._doubted(stepped.uncertainty, ~waiting)
        if self._mode == AutoresetMode.NEXT_STEP and waiting.any():
            reward[waiting], terminated[waiting], truncated[waiting] = 0.0, False, False
            self._begin(waiting)
            infos |= self._said(waiting)
        over = terminated | truncated
        if self._mode == AutoresetMode.SAME_STEP and over.any():
            infos |= self._final(over)
            self._begin(over)
            infos |= self._said(over)
        return _numpy(self._view), reward, terminated, truncated, infos

    # --- as tensors

    def view(self) -> Obs:
        """Return what a policy may see now, (N, ...)."""
        return self._view

    def decoded(self) -> Obs:
        """Return what is dreamt now as observations (N, ...). Raises MissingPower for a model that decodes nothing."""
        with torch.no_grad(), self._stream:
            return power(self._model, Decodes)(self._state)

    def step_torch(self, action: Tensor) -> Stepped:
        """Dream one step of all rows without leaving the device; nothing resets itself here.

        ``action`` (N, A) in [-1, 1] is taken as it is, and gradients flow unless the caller stops them.
        """
        if self._state is None:
            raise RuntimeError("reset the dream before stepping it")
        with self._stream:
            uncertainty = None if self._doubt is None else self._doubt(self._state, action)
            self._state, reward, proceed = self._model.step(self._state, action)
            lasts = torch.rand(self.num_envs, device=self._device) < proceed
            self._view = self._model.view(self._state)
        if not bool(((proceed >= -1e-4) & (proceed <= 1.0001)).all()):
            raise ValueError(f"{type(self._model).__name__}.step gave proceed {proceed.tolist()}: no probability")
        self._steps += 1
        truncated = self._steps >= self._horizon
        if self._distrust is not None:  # not a number is not trusted either
            truncated |= ~(uncertainty <= self._distrust).cpu().numpy()
        self._over = truncated | ~lasts.cpu().numpy()
        return Stepped(self._view, reward, ~lasts, torch.from_numpy(truncated).to(self._device), uncertainty)

    # --- branching

    def snapshot(self) -> dict[str, Any]:
        """Return this instant as plain tensors, numbers and lists; ``restore`` goes on from it exactly."""
        return {
            "state": to_plain(self._state),
            "view": to_plain(self._view),
            "steps": self._steps.tolist(),
            "start": self._start.tolist(),
            "over": self._over.tolist(),
            "stream": self._stream.state_dict(),
        }

    def restore(self, snapshot: dict[str, Any]) -> None:
        """Return to an instant that ``snapshot`` kept, of a dream with as many rows."""
        if len(snapshot["steps"]) != self.num_envs:
            raise ValueError(f"the snapshot holds {len(snapshot['steps'])} rows, this dream {self.num_envs}")
        self._state = from_plain(snapshot["state"], self._device)
        self._view = from_plain(snapshot["view"], self._device)
        self._steps = np.array(snapshot["steps"], np.int64)
        self._start = np.array(snapshot["start"], np.int64)
        self._over = np.array(snapshot["over"], bool)
        self._stream.load_state_dict(snapshot["stream"])

    def fork(self, copies: int, seed: int = 0) -> Dream:
        """Return a new dream in which every row goes on ``copies`` times, side by side.

        Row i becomes the rows i * copies ... (i + 1) * copies - 1; their random numbers are new.
        """
        if self._state is None:
            raise RuntimeError("reset the dream before forking it")
        rows = np.repeat(np.arange(self.num_envs), copies)
        other = copy.copy(self)
        other.num_envs = len(rows)
        other.observation_space = batch_space(self.single_observation_space, len(rows))
        other.action_space = batch_space(self.single_action_space, len(rows))
        other._stream = Stream(derive_seed("fork", seed), self._device)
        index = torch.from_numpy(rows).to(self._device)
        other._state, other._view = tree.select(self._state, index), tree.select(self._view, index)
        other._steps, other._start, other._over = self._steps[rows], self._start[rows], self._over[rows]
        return other

    # --- inside

    @torch.no_grad()
    def _begin(self, mask: np.ndarray, seeds: list[int | None] | None = None, chosen: np.ndarray | None = None) -> None:
        """Start the rows of ``mask`` (N,); the model starts on those rows only."""
        rows = np.flatnonzero(mask)
        with self._stream:
            index = self._draw(rows, seeds) if chosen is None else self._checked(chosen)[rows]
            begun = self._table.believe(self._model, torch.from_numpy(index).to(self._device))
            view = self._model.view(begun)
        where = torch.from_numpy(rows).to(self._device)
        self._state = begun if mask.all() else tree.put(self._state, where, begun)
        self._view = view if mask.all() else tree.put(self._view, where, view)
        self._start[rows], self._steps[rows], self._over[rows] = index, 0, False

    def _draw(self, rows: np.ndarray, seeds: list[int | None] | None) -> np.ndarray:
        """Draw a start for each row: from its own seed where it has one, else from the stream."""
        drawn = torch.randint(self._table.size, (len(rows),)).numpy()
        for place, row in enumerate(rows):
            one = None if seeds is None else seeds[row]
            if one is not None:
                drawn[place] = derive_seed("start", one) % self._table.size
        return drawn

    def _checked(self, chosen: np.ndarray) -> np.ndarray:
        count = self._table.size
        if chosen.shape != (self.num_envs,) or (chosen < 0).any() or (chosen >= count).any():
            wanted = f"({self.num_envs},) indices below {count}"
            raise ValueError(f"options['start'] must be {wanted}, got {chosen.tolist()}")
        return chosen

    def _said(self, mask: np.ndarray) -> Info:
        origin = self._table.origin[torch.from_numpy(self._start).to(self._device)].cpu().numpy()
        said = {"start": self._start, "start_episode": origin[:, 0], "start_step": origin[:, 1]}
        infos: Info = {name: np.where(mask, value, 0) for name, value in said.items()}
        infos["model"] = np.array([self.identity if begun else None for begun in mask], object)
        return infos | {f"_{name}": mask.copy() for name in infos}

    def _doubted(self, uncertainty: Tensor | None, mask: np.ndarray) -> Info:
        if uncertainty is None:
            return {}
        return {"uncertainty": np.where(mask, uncertainty.double().cpu().numpy(), 0.0), "_uncertainty": mask}

    def _final(self, over: np.ndarray) -> Info:
        view = _numpy(self._view)
        final = np.full(self.num_envs, None, object)
        for row in np.flatnonzero(over):
            final[row] = {name: value[row].copy() for name, value in view.items()}
        return {
            "final_obs": final,
            "_final_obs": over.copy(),
            "final_info": self._said(over),
            "_final_info": over.copy(),
        }

    def _read_starts(self) -> Table:
        return Table.read(self._given() if callable(self._given) else self._given, self._device)

    @torch.no_grad()
    def _view_space(self) -> spaces.Dict:
        with Stream(0, self._device):
            first = torch.zeros(1, dtype=torch.int64, device=self._device)
            view = self._model.view(self._table.believe(self._model, first))
        return spaces.Dict({name: view_box(value[0]) for name, value in view.items()})


def _numpy(view: Obs) -> dict[str, np.ndarray]:
    """Return copies: what was handed out stays as it was."""
    return {name: np.array(value.detach().cpu()) for name, value in view.items()}
