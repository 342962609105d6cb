"""Policies of other libraries trained inside dreams, carried to reality, beside the same without a dream.

``dreamsim reproduce foreign`` runs this; what is done stays in runs/results/foreign, and the numbers
and their page go to docs/results. For Pendulum-v1 and cartpole-swingup:

1. A world is learned by ``dreamsim fit`` and judged by ``dreamsim evaluate``.
2. Stable-Baselines3's PPO and SAC, unmodified, and a single-file PPO learn in its dream: from any recorded
   step, as long as the report trusts a dream. They take no real step.
3. The policy plays 10 real episodes through ``Believed``, and dreams from their first observations for whole episodes.
4. The control is the same learner on the real environment, for as many steps as the world was learned from.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import torch
from stable_baselines3 import PPO, SAC
from stable_baselines3.common.vec_env import VecNormalize

from dreamsim import reproduce, results
from dreamsim.core.random import derive_seed
from dreamsim.core.run import Run, load
from dreamsim.envs.adapt import adapt, vectorise
from dreamsim.envs.believed import Believed
from dreamsim.envs.run_dream import trusted_steps
from dreamsim.envs.sb3 import SB3Envs
from dreamsim.evaluation.intervals import interval
from tests.benchmarks import single_file_ppo
from tests.benchmarks.measure import commit

RUNS, RECORDS = Path("runs/results/foreign"), Path("docs/results")
SEEDS, EPISODES, ROWS = (1, 2), 10, 16
ID, REAL = "dreamsim.envs:dreamsim/Dream-v0", "proof/Real-v0"


class Task(NamedTuple):
    """A world to learn: its config, and the discount and scale of reward that suit PPO."""

    config: str
    gamma: float
    reward_scale: float


TASKS = {
    "Pendulum-v1": Task("configs/joint/pendulum.yaml", 0.95, 0.1),
    "cartpole-swingup": Task("configs/joint/cartpole_swingup.yaml", 0.98, 1.0),
}
HEAD = (
    *("task", "learner", "trained in", "n", "its steps", "real steps behind it"),
    *("real return", "interval", "dream return", "minutes"),
)
STEPS = {"SB3 PPO": 200_000, "SB3 SAC": 20_000, "single-file PPO": 200_000}  # in the dream


def main() -> None:
    """Do what is missing, then write the record and its page."""
    torch.set_num_threads(1)
    if sys.argv[1:] != ["draw"]:
        for task in TASKS:
            learn_world(task)
        todo = [(t, m, place, seed) for seed in SEEDS for t in TASKS for m in STEPS for place in ("dream", "reality")]
        for job in todo:
            finish(*job)
        record = {
            "format": 1,
            "command": "dreamsim reproduce foreign",
            "commit": commit(),
            "machine": results.machine(),
            "rows": [json.loads(file(*job).read_text()) for job in todo],
        }
        (RECORDS / "foreign.json").write_text(json.dumps(record, indent=1) + "\n")
    (RECORDS / "foreign.md").write_text(page(json.loads((RECORDS / "foreign.json").read_text())))


def learn_world(task: str) -> None:
    """Train and judge the world of a task where that is not done."""
    entry = reproduce.Entry(task, "world", 1, TASKS[task].config, (), RUNS / task)
    ours = [sys.executable, "-W", "ignore", "-m", "dreamsim.cli"]
    if not reproduce.trained(entry):
        subprocess.run([*ours, *reproduce.command(entry)], check=True)
    if not reproduce.judged(entry, EPISODES):
        subprocess.run([*ours, "evaluate", str(entry.folder), f"--episodes={EPISODES}", "--film=false"], check=True)


def file(task: str, method: str, place: str, seed: int) -> Path:
    """Return where a row is kept until all are done."""
    return RUNS / f"{task}-{method}-{place}-{seed}.json".replace(" ", "_")


def finish(task: str, method: str, place: str, seed: int) -> None:
    """Train one policy and let it play, where that is not done."""
    if file(task, method, place, seed).is_file():
        return
    run, begin = load(RUNS / task), time.perf_counter()
    real_steps = int(run.about["env_steps"]) // int(run.make_env().metadata.get("action_repeat", 1))
    total = STEPS[method] if place == "dream" else real_steps
    dreams = place == "dream"
    predict = trained(run, task, method, dreams, total, derive_seed("foreign", seed))
    spent = time.perf_counter() - begin
    env = Believed(run.make_env(), run.model) if dreams else adapt(run.make_env())
    real, firsts, length = in_reality(env, predict)
    row = {
        "task": task,
        "method": method,
        "trained in": place,
        "seed": seed,
        "steps": total,
        "real steps behind it": real_steps,
        "commit of the world": run.about.get("commit"),
        "horizon": trusted_steps(run.folder) if dreams else None,
        "dream": in_dream(run, predict, firsts, length).round(1).tolist() if dreams else None,
        "real": real.round(1).tolist(),
        "training_s": round(spent, 1),
    }
    file(task, method, place, seed).write_text(json.dumps(row, indent=1))
    print(
        task,
        method,
        place,
        seed,
        "real",
        np.mean(row["real"]),
        "dream",
        row["dream"] and np.mean(row["dream"]),
        flush=True,
    )


def trained(run: Run, task: str, method: str, dreams: bool, total: int, seed: int) -> Callable[[Any], np.ndarray]:
    """Return a trained policy as a function of one observation, a dict of arrays."""
    if method == "single-file PPO":
        place = {"env_id": ID, "options": {"run": str(run.folder), "any_step": True}}
        if not dreams:
            place = {"env_id": REAL, "options": {"run": str(run.folder), "vectorization_mode": "sync"}}
        kind = TASKS[task]
        agent = single_file_ppo.train(
            **place, total=total, seed=seed, gamma=kind.gamma, reward_scale=kind.reward_scale, num_envs=ROWS
        )
        space = run.as_env().single_observation_space if dreams else run.codec.observation_space
        return lambda obs: agent.predict(gym.spaces.flatten(space, obs))[0]
    rows = ROWS if method == "SB3 PPO" else 4
    inner = run.as_env(rows, any_step=True, seed=seed) if dreams else vectorise(run.make_env, rows)
    envs = SB3Envs(inner)
    face = "MultiInputPolicy" if isinstance(envs.observation_space, gym.spaces.Dict) else "MlpPolicy"
    common = {"gamma": TASKS[task].gamma, "learning_rate": 1e-3, "seed": seed, "device": "cpu"}
    if method == "SB3 PPO":
        scaled = VecNormalize(envs, norm_obs=False, gamma=TASKS[task].gamma)
        learner: Any = PPO(face, scaled, n_steps=64, batch_size=256, gae_lambda=0.95, **common)
    else:
        learner = SAC(
            face, envs, learning_starts=1000, gradient_steps=rows, policy_kwargs={"net_arch": [128, 128]}, **common
        )
    learner.learn(total)
    envs.close()
    return lambda obs: learner.predict(obs if face == "MultiInputPolicy" else _alone(obs), deterministic=True)[0]


def in_reality(env: gym.Env, predict: Callable[[Any], np.ndarray]) -> tuple[np.ndarray, list[dict[str, Any]], int]:
    """Return returns (10,), the real first observations, and the length of the longest episode."""
    returns, firsts, longest = [], [], 0
    for number in range(EPISODES):
        obs, info = env.reset(seed=derive_seed("foreign", "judge", number))
        firsts.append(info.get("obs", obs))
        total, length, over = 0.0, 0, False
        while not over:
            obs, reward, terminated, truncated, _ = env.step(predict(obs))
            total, length, over = total + reward, length + 1, terminated or truncated
        returns.append(total)
        longest = max(longest, length)
    env.close()
    return np.array(returns), firsts, longest


def in_dream(run: Run, predict: Callable[[Any], np.ndarray], firsts: list[dict[str, Any]], length: int) -> np.ndarray:
    """Return the returns (10,) that the dream promises from the same first observations over whole episodes."""
    starts = {name: torch.from_numpy(np.stack([first[name] for first in firsts])) for name in firsts[0]}
    dream = run.as_env(EPISODES, length, starts=starts)
    obs, _ = dream.reset(options={"start": np.arange(EPISODES)})
    total, alive = np.zeros(EPISODES), np.ones(EPISODES, bool)
    for _ in range(length):
        actions = [predict({name: value[row] for name, value in obs.items()}) for row in range(EPISODES)]
        obs, reward, terminated, truncated, _ = dream.step(np.stack(actions))
        total, alive = total + reward * alive, alive & ~terminated
        ended = terminated | truncated
        if ended.any() and not ended.all():
            obs, _ = dream.reset(options={"reset_mask": ended})
    return total


def real_world(run: str) -> gym.Env:
    """Return the real environment of a run in adapted form."""
    return adapt(load(run).make_env())


def page(record: dict[str, Any]) -> str:
    """Return the page of a record."""
    box, rows = record["machine"], record["rows"]
    said = [
        "# Policies of other libraries, trained in dreams and carried to reality",
        "",
        (__doc__ or "").partition("\n\n")[2].strip(),
        "",
        f"Command: `{record['command']}`. Commit: {record['commit']}. Machine: {box['processor']}, one thread; torch "
        f"{box['torch']}. Seeds of the policies: {', '.join(map(str, SEEDS))}; each world has one seed. "
        f"Commits of the worlds: {', '.join(sorted({str(row['commit of the world']) for row in rows}))}. "
        f"Returns are means of {EPISODES} episodes, then over seeds; intervals are 95 % bootstraps over seeds.",
        "",
        *([record["note"], ""] if "note" in record else []),
        f"| {' | '.join(HEAD)} |",
        "|---" * len(HEAD) + "|",
    ]
    for task in TASKS:
        for method in STEPS:
            for place in ("dream", "reality"):
                chosen = [r for r in rows if (r["task"], r["method"], r["trained in"]) == (task, method, place)]
                said.append(_line(chosen))
    return "\n".join([*said, ""])


def _line(rows: list[dict[str, Any]]) -> str:
    first = rows[0]
    found = interval([float(np.mean(row["real"])) for row in rows])
    dream = "-" if first["dream"] is None else f"{np.mean([np.mean(row['dream']) for row in rows]):.0f}"
    minutes = np.mean([row["training_s"] for row in rows]) / 60
    return (
        f"| {first['task']} | {first['method']} | {first['trained in']} | {len(rows)} | {first['steps']:,} | "
        f"{first['real steps behind it']:,} | {found.mean:.0f} | {found.low:.0f} to {found.high:.0f} | {dream} | "
        f"{minutes:.1f} |"
    )


def _alone(obs: dict[str, np.ndarray]) -> np.ndarray:
    return next(iter(obs.values()))


if __name__ == "__main__":
    gym.register(id=REAL, entry_point=real_world)
    main()
