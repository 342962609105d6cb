"""Goals reached from recordings alone: LeWM and the cross-entropy method, beside random, copied and cloned actions.

``dreamsim reproduce goals`` runs this in the present folder; what is done stays in ``runs``, and the numbers and their
page go to docs/results. An arm is recorded aimlessly and without rewards; LeWM learns from it, once for each seed.
A goal is a pose that a held-out episode reaches 25 decisions later; the arm starts in that episode's state. It
is reached when the tip is within 5 cm of the goal's during each of the last 5 of 50 decisions: there, and staying.
Two planners share each world: the cross-entropy method with white noise, eight decisions ahead, and iCEM, whose
noise is slow enough that plans of 24 decisions get anywhere.
"""

from __future__ import annotations

import functools
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from tqdm import tqdm

from dreamsim import results
from dreamsim.core.run import load
from dreamsim.data.store import Store
from dreamsim.evaluation.intervals import interval
from dreamsim.imagination.plan import CEM, ICEM
from dreamsim.imagination.seek import seek
from robots.arm import Arm

SEEDS = (1, 2, 3)
GOALS, AHEAD, DECISIONS, STAY, NEAR = 60, 25, 50, 5, 0.05
HELD_OUT = 30  # episodes at the end of the recording that only goals are drawn from
RECORD, WORLD = "configs/pretrain/record_arm.yaml", "configs/pretrain/arm_lewm.yaml"
PLANS: dict[str, dict[str, Any]] = {
    "LeWM + CEM": {"planner": CEM, "horizon": 8, "samples": 128, "elites": 12, "iterations": 4},
    "LeWM + iCEM": {"planner": ICEM, "horizon": 24, "samples": 96, "elites": 10, "iterations": 3, "decay": 1.0},
}
RUNS, RECORDS = Path("runs/goals"), Path("docs/results")
REACH = 0.12  # metres from joint to joint, and from the second joint to the tip


class Recording(NamedTuple):
    """What was recorded: E episodes of T decisions."""

    pose: np.ndarray  # (E, T + 1, 4)
    action: np.ndarray  # (E, T, 2)


class Tries(NamedTuple):
    """Where N tries begin and what they want."""

    joints: np.ndarray  # (N, 2) rad
    speeds: np.ndarray  # (N, 2) rad/s
    start: np.ndarray  # (N, 4) pose
    goal: np.ndarray  # (N, 4) pose


Chooser = Callable[[np.ndarray, int], np.ndarray]  # poses (N, 4) and the number of the decision, to actions (N, 2)


def main() -> None:
    """Do what is missing, then write the record and its page."""
    if sys.argv[1:] != ["draw"]:
        torch.set_num_threads(1)
        finish("recorded", RECORD)
        recording = read(RUNS / "recorded" / "store")
        known = Recording(recording.pose[:-HELD_OUT], recording.action[:-HELD_OUT])
        tries = draw_tries(Recording(recording.pose[-HELD_OUT:], recording.action[-HELD_OUT:]))
        rows = [row("random", 0, lambda: at_random(0), tries), row("copy", 0, lambda: copied(known, tries), tries)]
        for seed in SEEDS:
            finish(f"lewm-{seed}", WORLD, f"--seed_everything={seed}", f"--data.init_args.data={RUNS}/recorded/store")
            for method, plan in PLANS.items():
                make = functools.partial(planned, seed, tries, plan)
                rows.append(row(method, seed, make, tries, RUNS / f"lewm-{seed}", plan))
            rows.append(row("behaviour cloning", seed, functools.partial(cloned, known, seed, tries), tries))
        record = {
            "format": 1,
            "title": "Goals reached from recordings alone",
            "command": "dreamsim reproduce goals",
            "commit": sorted({row["commit"] for row in rows if row["commit"]}),
            "machine": results.machine(),
            "recorded": {"episodes": len(known.pose), "steps": known.action.shape[0] * known.action.shape[1]},
            "plans": {
                name: {key: value for key, value in plan.items() if key != "planner"} for name, plan in PLANS.items()
            },
            "rows": rows,
        }
        RECORDS.mkdir(parents=True, exist_ok=True)
        (RECORDS / "goals.json").write_text(json.dumps(record, indent=1) + "\n")
    (RECORDS / "goals.md").write_text(page(json.loads((RECORDS / "goals.json").read_text())))
    print(RECORDS / "goals.md")


def finish(name: str, config: str, *options: str) -> None:
    """Train what is not yet; a training that was cut goes on."""
    folder = RUNS / name
    if about(folder).get("finished"):
        return
    resumed = (folder / "last.ckpt").is_file()
    words = ["--run", folder, "--resume"] if resumed else ["--config", config, "--run", folder, *options]
    subprocess.run([sys.executable, "-W", "ignore", "-m", "dreamsim.cli", "fit", *map(str, words)], check=True)


def about(folder: Path) -> dict[str, Any]:
    """Return what a run says of itself; nothing where there is none."""
    file = folder / "run.json"
    return json.loads(file.read_text())["about"] if file.is_file() else {}


def read(folder: Path) -> Recording:
    """Return all whole episodes of a store."""
    store = Store(folder)
    episodes = [store.episode(number) for number in range(len(store))]
    longest = max(len(episode.action) for episode in episodes)
    whole = [episode for episode in episodes if len(episode.action) == longest]
    return Recording(
        np.stack([np.asarray(episode.obs["pose"]) for episode in whole]),
        np.stack([np.asarray(episode.action) for episode in whole]),
    )


def draw_tries(held_out: Recording) -> Tries:
    """Return starts and goals; speeds come from the poses before and after, the goal's are not asked for."""
    random = np.random.default_rng(0)
    episodes = random.integers(len(held_out.pose), size=GOALS)
    steps = random.integers(1, held_out.action.shape[1] - AHEAD, size=GOALS)
    before, start, after = (held_out.pose[episodes, steps + k] for k in (-1, 0, 1))
    turned = joints(after) - joints(before)
    speeds = (turned + np.pi) % (2 * np.pi) - np.pi
    return Tries(joints(start), speeds / (2 * 0.04), start, held_out.pose[episodes, steps + AHEAD])


def joints(pose: np.ndarray) -> np.ndarray:
    """Return the angles (..., 2) of poses (..., 4)."""
    return np.stack([np.arctan2(pose[..., 1], pose[..., 0]), np.arctan2(pose[..., 3], pose[..., 2])], -1)


def tip(pose: np.ndarray) -> np.ndarray:
    """Return where the tip is (..., 2) in metres."""
    shoulder, wrist = np.moveaxis(joints(pose), -1, 0)
    return REACH * np.stack(
        [np.cos(shoulder) + np.cos(shoulder + wrist), np.sin(shoulder) + np.sin(shoulder + wrist)], -1
    )


def row(method: str, seed: int, make: Callable[[], Chooser], *given: Any) -> dict[str, Any]:
    """Return what is recorded of a method, measured once and then kept beside the runs."""
    file = RUNS / "measured" / f"{method}-{seed}.json".replace(" ", "_")
    if not file.is_file():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(measured(method, seed, make(), *given)))
    return json.loads(file.read_text())


def measured(
    method: str, seed: int, choose: Chooser, tries: Tries, run: Path | None = None, plan: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Play all tries in reality and return what is recorded of them."""
    begun = time.perf_counter()
    arms = [Arm() for _ in range(len(tries.goal))]
    poses = np.stack(
        [
            arm.reset(seed=0, options={"joints": place, "speeds": speeds})[0]["pose"]
            for arm, place, speeds in zip(arms, tries.joints, tries.speeds, strict=True)
        ]
    )
    apart = []
    for number in tqdm(range(DECISIONS), desc=f"{method} {seed}", delay=10, leave=False):
        actions = choose(poses, number)
        poses = np.stack([arm.step(action)[0]["pose"] for arm, action in zip(arms, actions, strict=True)])
        apart.append(np.linalg.norm(tip(poses) - tip(tries.goal), axis=-1))
    reached = np.max(apart[-STAY:], axis=0) < NEAR
    told = {} if run is None else about(run)
    dreamt = 0 if plan is None else plan["horizon"] * plan["samples"] * plan["iterations"]
    return {
        "task": "arm, pose",
        "method": method,
        "seed": seed,
        "env_steps": 0,
        "gradient_steps": told.get("gradient_steps", 0),
        "imagined_steps": dreamt * DECISIONS * GOALS,
        "wall_s": round(told.get("wall_s", 0.0) + time.perf_counter() - begun, 1),
        "commit": told.get("commit"),
        "score": round(float(reached.mean()), 4),
        "reached": reached.tolist(),
        "distance": round(float(np.mean(apart[-STAY:])), 4),
        "begun_near": round(float(np.mean(np.linalg.norm(tip(tries.start) - tip(tries.goal), axis=-1) < NEAR)), 4),
    }


# --- who acts


def at_random(seed: int) -> Chooser:
    """Return uniformly random actions."""
    random = np.random.default_rng(seed)
    return lambda poses, number: random.uniform(-1, 1, (len(poses), 2))


def copied(known: Recording, tries: Tries) -> Chooser:
    """Return the recorded actions that led from the most similar start to the most similar goal, then none."""
    count = known.action.shape[1] - AHEAD
    start, goal = known.pose[:, :count].reshape(-1, 4), known.pose[:, AHEAD : AHEAD + count].reshape(-1, 4)
    places = [
        np.argmin(np.square(start - s).sum(-1) + np.square(goal - g).sum(-1))
        for s, g in zip(tries.start, tries.goal, strict=True)
    ]
    plans = np.stack([known.action[place // count, place % count : place % count + AHEAD] for place in places])
    return lambda poses, number: plans[:, number] if number < AHEAD else np.zeros((len(poses), 2))


def planned(seed: int, tries: Tries, plan: dict[str, Any]) -> Chooser:
    """Return what a planner finds best in LeWM's latent, planned anew at each decision."""
    run = load(RUNS / f"lewm-{seed}")
    torch.manual_seed(seed)
    policy = seek(run.model, run.codec.raw_action_space, whole=True, std_high=1.0, **plan)
    goal, memory = torch.from_numpy(tries.goal), None

    def choose(poses: np.ndarray, number: int) -> np.ndarray:
        nonlocal memory
        act = policy.mode({"pose": torch.from_numpy(poses), "goal/pose": goal}, memory)
        memory = act.memory
        return act.action.numpy()

    return choose


def cloned(known: Recording, seed: int, tries: Tries, batches: int = 6000, rows: int = 256) -> Chooser:
    """Return a network that learned which action was taken on the way to what was reached 1 to 25 decisions later.

    It sees pose, last pose and goal; mean squared error, Adam 1e-3 with a cosine to 0, as many batches as LeWM.
    """
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(12, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 2), nn.Tanh())
    optimiser = torch.optim.Adam(net.parameters(), 1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, batches)
    pose, action = torch.from_numpy(known.pose), torch.from_numpy(known.action)
    for _ in tqdm(range(batches), desc=f"behaviour cloning {seed}", delay=10, leave=False):
        episode = torch.randint(len(pose), (rows,))
        step = torch.randint(1, action.shape[1] - AHEAD, (rows,))
        later = step + torch.randint(1, AHEAD + 1, (rows,))
        seen = torch.cat([pose[episode, step], pose[episode, step - 1], pose[episode, later]], -1)
        loss = (net(seen) - action[episode, step]).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
    goal, last = torch.from_numpy(tries.goal), torch.from_numpy(tries.start)

    @torch.no_grad()
    def choose(poses: np.ndarray, number: int) -> np.ndarray:
        nonlocal last
        now = torch.from_numpy(poses)
        found = net(torch.cat([now, last, goal], -1)).numpy()
        last = now
        return found

    return choose


def page(record: dict[str, Any]) -> str:
    """Return the page of a record."""
    box, rows = record["machine"], record["rows"]
    told = {
        name: f"{plan['samples']} plans of {plan['horizon']} decisions in {plan['iterations']} iterations"
        for name, plan in record["plans"].items()
    }
    lines = [
        f"# {record['title']}",
        "",
        f"An arm with two joints is recorded without an aim and without rewards ({record['recorded']['episodes']} "
        f"episodes, {record['recorded']['steps']:,} decisions of 0.04 s). LeWM learns its world from poses alone; the "
        "cross-entropy method plans in it, anew at every decision, to where latent and goal are near: with white "
        f"noise {told['LeWM + CEM']}, or with noise that is slow along a plan (iCEM) {told['LeWM + iCEM']}. Goals are "
        f"{GOALS} poses that held-out episodes reach {AHEAD} decisions after the start. One is reached when the tip is "
        f"within {100 * NEAR:.0f} cm of it during each of the last {STAY} of {DECISIONS} decisions; "
        f"{rows[0]['begun_near']:.0%} begin so near.",
        "",
        f"Command: `{record['command']}`. Commit: {', '.join(record['commit'])}.",
        f"Machine: {box['processor']}, {box['cores']} cores, {box['memory_gib']} GiB, {box['gpu'] or 'no GPU'}; "
        f"Python {box['python']}, torch {box['torch']}; one thread.",
        "",
        "| method | seeds | tries | reached | 95 % interval | IQM over seeds | tip to goal at the end, cm |",
        "|---|---|---|---|---|---|---|",
    ]
    for method in dict.fromkeys(row["method"] for row in rows):
        mine = [row for row in rows if row["method"] == method]
        found = interval([float(value) for row in mine for value in row["reached"]])
        middle = interval([row["score"] for row in mine]).middle
        distance = 100 * float(np.mean([row["distance"] for row in mine]))
        lines.append(
            f"| {method} | {len(mine)} | {found.size} | {found.mean:.0%} | {found.low:.0%} to {found.high:.0%} | "
            f"{middle:.0%} | {distance:.1f} |"
        )
    lines += [
        "",
        *([record["note"], ""] if "note" in record else []),
        "Copying replays the recorded actions of the most similar start and goal. The clone learns from the same "
        "recordings by hindsight: what was done on the way to whatever was reached next.",
        "",
        f"Configs: [{RECORD}](../../{RECORD}), [{WORLD}](../../{WORLD}).",
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
