"""From a vector environment and a policy to finished Episodes.

The collector owns resets. Our own environments never reset themselves (Gymnasium's DISABLED
mode): a finished row is reset by mask with a seed derived from (seed, slot, episode number).
Foreign vector environments that do reset themselves are read by their declared mode.
"""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from gymnasium.vector import AutoresetMode, VectorEnv
from torch import Tensor

from dreamsim.core.plain import from_plain, to_plain
from dreamsim.core.protocols import Policy
from dreamsim.core.random import Stream, derive_seed
from dreamsim.core.spaces import Codec
from dreamsim.core.types import Episode
from dreamsim.data.modes import READERS, Arrays, Seen, declared_mode
from dreamsim.data.slots import Slots
from dreamsim.envs.adapt import speak

RECENT = 100


ENDLESS = 100_000  # steps after which an evaluated episode is taken for one without an end


class BadNumber(ValueError):
    """An environment or a policy gave a number that is not finite."""


class Collector:
    """Runs policies in a vector environment and gives back whole Episodes.

    ``envs`` speaks either the codec's form (``dreamsim.envs.adapt.vectorise``) or the raw one.
    Actions are recorded in raw units, as the environment really applied them. Equal seeds,
    environments and policies give equal episodes, whatever else uses random numbers.
    """

    def __init__(
        self, envs: VectorEnv, codec: Codec, *, seed: int, origin: str = "real", device: torch.device | str = "cpu"
    ) -> None:
        self._envs, self._codec, self._origin, self._device = speak(envs, codec), codec, origin, device
        self._on_cpu = torch.device(device).type == "cpu"
        self._mode = declared_mode(envs)
        self._read = READERS[self._mode]
        self._count = envs.num_envs
        self._repeat = int(envs.metadata.get("action_repeat", 1))
        self._seed = seed
        self._seed_of: Callable[[int, int], int] = lambda slot, number: derive_seed(seed, slot, number)
        self._stream = Stream(derive_seed(seed, "policy"), device)
        self._slots = Slots(self._count, codec.observation_space, codec.action_size)
        self._number = np.full(self._count, -1, np.int64)  # of each slot's current episode
        self._seeds: list[int | None] = [None] * self._count
        self._obs: Arrays | None = None  # what the policy acts on next; None: nothing has begun
        self._waiting = np.zeros(self._count, bool)  # rows whose next step is the environment's own reset
        self._first = np.ones(self._count, bool)
        self._applied = np.zeros((self._count, codec.action_size), np.float32)
        self._actor: Policy | None = None
        self._memory: Any = None
        self._recent: deque[float] = deque(maxlen=RECENT)
        self.finished: list[Episode] = []
        """Episodes that ended and were not handed out yet, because a later step raised."""
        self.env_steps = 0
        """Steps of the raw environment so far: those of the vector times rows times the declared action repeat."""
        self.episode_count = 0

    @property
    def recent_returns(self) -> list[float]:
        """Returns of the latest finished episodes, at most 100, oldest first."""
        return list(self._recent)

    def collect(self, policy: Policy, steps: int) -> list[Episode]:
        """Take ``steps`` vector steps; return the episodes that ended, by time and then by slot.

        Raises BadNumber, naming slot, step and field, when an observation, reward or action is
        not finite. After any error the unfinished episodes are given up, ``finished`` is kept.
        """
        try:
            if self._obs is None:
                self._begin_all()
            for _ in range(steps):
                self._advance(policy)
        except BaseException:
            self._give_up()
            raise
        episodes, self.finished = self.finished, []
        return episodes

    def episodes(self, policy: Policy, count: int) -> list[Episode]:
        """Return exactly ``count`` whole episodes for an evaluation, equal at every call.

        Episode i begins from seed derive_seed(seed, "evaluate", i) and is played by slot
        i modulo N, so that short episodes are not preferred. Unfinished episodes of ``collect``
        are given up: evaluate in a collector of its own. Counters do not move. Raises
        RuntimeError when an episode lasts ENDLESS steps.
        """
        judge = Collector(self._envs, self._codec, seed=self._seed, origin=self._origin, device=self._device)
        judge._seed_of = lambda slot, number: derive_seed(self._seed, "evaluate", number * self._count + slot)
        found: dict[int, Episode] = {}
        try:
            while len(found) < count:
                for episode in judge.collect(policy, 1):
                    place = episode.meta["episode"] * self._count + episode.meta["slot"]
                    if place < count:
                        found[place] = episode
                if judge._slots.length.max() >= ENDLESS:
                    raise RuntimeError(
                        f"an episode has lasted {ENDLESS:,} steps and its environment does not end it; "
                        "wrap the environment in gymnasium.wrappers.TimeLimit, or end it by itself"
                    )
        finally:
            self._give_up()
        return [found[place] for place in range(count)]

    def going(self) -> list[Episode]:
        """Return copies of the unfinished episodes, one a slot, as far as they are lived; none before ``collect``."""
        if self._obs is None:
            return []
        names = [{"slot": row, "episode": int(number)} for row, number in enumerate(self._number)]
        return [self._slots.episode(row, False, name) for row, name in enumerate(names)]

    def close(self) -> None:
        """Close the environments."""
        self._envs.close()

    def state_dict(self) -> dict[str, Any]:
        """Return plain numbers, strings and tensors that ``load_state_dict`` goes on from exactly."""
        slots = [self._slot_state(row) for row in range(self._count)] if self._obs is not None else []
        return {
            "slots": slots,
            "number": self._number.tolist(),
            "first": torch.from_numpy(self._first.copy()),
            "applied": torch.from_numpy(self._applied.copy()),
            "memory": to_plain(self._memory),
            "stream": self._stream.state_dict(),
            "env_steps": self.env_steps,
            "episode_count": self.episode_count,
            "recent": list(self._recent),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from ``state``: slots are re-seeded and their actions repeated and checked.

        A slot whose environment does not reproduce its observations is named in a warning and
        starts a fresh episode. Needs as many environments as were saved.
        """
        if len(state["number"]) != self._count:
            raise ValueError(
                f"the saved collector had {len(state['number'])} environments, this one has {self._count}; use as many"
            )
        self._number = np.array(state["number"], np.int64)
        self._memory, self._actor = from_plain(state["memory"], self._device), None
        self._first, self._applied = state["first"].numpy().copy(), state["applied"].numpy().copy()
        self._stream.load_state_dict(state["stream"])
        self.env_steps, self.episode_count = state["env_steps"], state["episode_count"]
        self._recent = deque(state["recent"], maxlen=RECENT)
        self.finished, self._obs = [], None
        if state["slots"]:
            self._repeat_slots(state["slots"])

    # --- one vector step

    def _advance(self, policy: Policy) -> None:
        sent, trace = self._act(policy)
        seen = self._step(sent)
        self._record(seen, sent, trace)
        for row in np.flatnonzero(seen.over & seen.real).tolist():
            self._finish(row, seen)
        self._go_on(seen)

    def _act(self, policy: Policy) -> tuple[np.ndarray, Arrays]:
        assert self._obs is not None
        if self._actor is not None and self._actor is not policy:
            self._memory, self._first = None, np.ones(self._count, bool)
        self._actor = policy
        view = {name: self._tensor(value) for name, value in self._obs.items()}
        with self._stream, torch.no_grad():
            act = policy.act(view, self._memory, self._tensor(self._first), self._tensor(self._applied))
        self._memory = act.memory
        sent = act.action.detach().cpu().numpy().astype(np.float32, copy=False)
        expected = (self._count, self._codec.action_size)
        if sent.shape != expected:
            raise ValueError(f"expected actions {expected} from {type(policy).__name__}.act, got {sent.shape}")
        if not np.isfinite(sent).all():
            raise self._bad(_odd_rows(sent), f"{type(policy).__name__} gave the action", sent)
        return sent, {name: value.detach().cpu().numpy() for name, value in act.trace.items()}

    def _step(self, sent: np.ndarray) -> Seen:
        obs, reward, terminated, truncated, infos = self._envs.step(sent)
        seen = self._read(self._waiting, obs, np.asarray(reward), terminated, truncated, infos)
        if not np.isfinite(seen.reward).all():
            raise self._bad(_odd_rows(seen.reward), "the environment gave the reward", seen.reward)
        self._check(seen.reached)
        return seen

    def _record(self, seen: Seen, sent: np.ndarray, trace: Arrays) -> None:
        raw = self._codec.settle(sent)
        if "applied" in seen.infos:
            raw = np.where(seen.infos["_applied"][:, None], seen.infos["applied"], raw).astype(np.float32)
        self._applied = self._codec.scale.unit(raw)
        self._slots.write(seen.real, sent, raw, seen.reward, seen.reached, trace)
        self.env_steps += int(seen.real.sum()) * self._repeat

    def _finish(self, row: int, seen: Seen) -> None:
        meta: dict[str, Any] = {"slot": row, "episode": int(self._number[row]), "origin": self._origin}
        meta["action_repeat"] = self._repeat
        if self._seeds[row] is not None:
            meta["seed"] = self._seeds[row]
        infos = seen.infos.get("final_info", seen.infos)
        for name in ("success", "is_success"):
            if name in infos and infos[f"_{name}"][row]:
                meta["success"] = float(infos[name][row])
        self.finished.append(self._slots.episode(row, bool(seen.terminated[row]), meta))
        self._recent.append(self._slots.total(row))
        self.episode_count += 1

    def _go_on(self, seen: Seen) -> None:
        """Begin new episodes where rows ended: by our own reset, or where the environment made it."""
        self._obs, self._first = seen.following, seen.begun
        self._waiting = seen.over & seen.real & ~seen.begun
        if self._mode == AutoresetMode.DISABLED and self._waiting.any():
            self._begin(self._waiting)
        elif seen.begun.any():
            self._number[seen.begun] += 1
            self._seeds = [None if begun else seed for begun, seed in zip(seen.begun, self._seeds, strict=True)]
            self._slots.begin(seen.begun, seen.following)

    # --- beginning and giving up

    def _begin_all(self) -> None:
        self._begin(np.ones(self._count, bool))
        self._memory, self._actor = None, None

    def _begin(self, rows: np.ndarray) -> None:
        self._number[rows] += 1
        for row in np.flatnonzero(rows):
            self._seeds[row] = self._seed_of(int(row), int(self._number[row]))
        self._obs = self._reset(rows)
        self._first, self._waiting = rows.copy(), np.zeros(self._count, bool)

    def _reset(self, rows: np.ndarray) -> Arrays:
        """Reset rows from their seeds, all of them without a mask: foreign environments know none."""
        options = None if rows.all() else {"reset_mask": rows}
        seeds: Any = self._seeds  # Gymnasium's type forgets the lists that its vector environments take
        obs, _ = self._envs.reset(seed=seeds, options=options)
        self._slots.begin(rows, obs)
        self._check(obs)
        return obs

    def _give_up(self) -> None:
        self._obs = None

    # --- exact resume

    def _slot_state(self, row: int) -> dict[str, Any]:
        return {
            "seed": self._seeds[row],
            "sent": torch.from_numpy(self._slots.sent(row)),
            "trace": {name: torch.from_numpy(value) for name, value in self._slots.trace(row).items()},
            "digest": self._slots.digest(row),
        }

    def _repeat_slots(self, saved: list[dict[str, Any]]) -> None:
        first, applied = self._first, self._applied
        if self._mode != AutoresetMode.DISABLED:
            warnings.warn(
                f"these environments reset themselves ({self._mode.value}), so their episodes cannot be repeated; "
                "every slot starts a fresh one",
                stacklevel=3,
            )
            self._begin_all()
            return
        self._seeds = [slot["seed"] for slot in saved]
        lost = self._repeat_actions([slot["sent"].numpy() for slot in saved])
        for row, slot in enumerate(saved):
            self._slots.put_trace(row, {name: value.numpy() for name, value in slot["trace"].items()})
        lost |= np.array([self._slots.digest(row) != slot["digest"] for row, slot in enumerate(saved)])
        self._first, self._applied = first, applied
        if lost.any():
            names = ", ".join(f"{row} (seed {self._seeds[row]})" for row in np.flatnonzero(lost))
            warnings.warn(
                f"environment slot {names} did not reproduce its observations from its seed and actions; "
                "it starts a fresh episode, and this run is no longer an exact continuation",
                stacklevel=3,
            )
            self._begin(lost)
            self._first |= first

    def _repeat_actions(self, sent: list[np.ndarray]) -> np.ndarray:
        """Replay each slot so that all end together; return the rows (N,) that ended on the way."""
        lengths = np.array([len(actions) for actions in sent])
        start = lengths.max() - lengths
        lost = np.zeros(self._count, bool)
        self._obs = self._reset(np.ones(self._count, bool))
        for time in range(lengths.max()):
            if time and (start == time).any():
                self._obs = self._reset(start == time)
            action = np.zeros_like(self._applied)
            active = (start <= time) & ~lost
            for row in np.flatnonzero(active):
                action[row] = sent[row][time - start[row]]
            seen = self._step(action)
            steps = self.env_steps
            self._record(seen._replace(real=active), action, {})
            self.env_steps = steps
            self._obs = seen.following
            lost |= seen.over & active
            if seen.over.any():
                self._obs = self._reset(seen.over)
        late = start == lengths.max()
        if lengths.max() and late.any():
            self._obs = self._reset(late)
        return lost

    def _check(self, obs: Arrays) -> None:
        for name, value in obs.items():
            if value.dtype != np.uint8 and not np.isfinite(value).all():
                raise self._bad(_odd_rows(value), f"the environment gave the observation {name!r}", value)

    def _bad(self, rows: np.ndarray, what: str, values: np.ndarray) -> BadNumber:
        row = int(np.flatnonzero(rows)[0])
        return BadNumber(
            f"{what} {values[row]} in environment slot {row}, episode {self._number[row]} "
            f"(seed {self._seeds[row]}), step {self._slots.length[row]}; every number must be finite"
        )

    def _tensor(self, array: np.ndarray) -> Tensor:
        tensor = torch.from_numpy(array)
        return tensor if self._on_cpu else tensor.to(self._device)


def _odd_rows(values: np.ndarray) -> np.ndarray:
    """Return the rows (N,) bool of values (N, ...) that are not finite throughout."""
    return np.asarray(~np.isfinite(values.reshape(len(values), -1)).all(1))
