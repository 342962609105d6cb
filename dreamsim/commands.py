"""The commands beside fit. Importing this costs nothing: each loads what it needs."""

import re
from pathlib import Path
from typing import Any

from dreamsim.checking import (
    at_least,
    check_data,
    check_env,
    check_model,
    check_policy,
    check_run,
    codec_of,
    environment,
)


def evaluate(
    run: str,
    policy: str | None = None,
    world: str | None = None,
    episodes: int = 10,
    seed: int = 0,
    horizons: list[int] | None = None,
    success: float | None = None,
    film: bool = True,
    processes: int = 0,
    threads: int = 1,
    device: str = "cpu",
) -> None:
    """Judge a policy in the real environment and in the dream beside it; print it and write one HTML page.

    The run's own policy is judged in its own environment and its own dream unless --policy
    or --world name others; then the report goes to RUN/judged/NAME and the run's own one stays.
    With both of them RUN need hold no run: it is where the report goes.
    A run without a policy, or without an environment, is judged by the recordings it held out.

    Args:
        run: run folder; report.html, report.json and films/ are written there, or into judged/NAME in it
        policy: a policy that is not the run's: an import path (mine.load), a Stable-Baselines3 .zip or an .onnx file
        world: where to judge: a run folder (its environment and its dream), a Gymnasium id, or an environment's
            import path (mine.MyEnv); a world that is no run has no dream beside it
        episodes: number of whole real episodes
        seed: evaluation seed; training never draws episodes from it
        horizons: steps at which open-loop drift is shown, [1,10,100]; none: powers of two up to the whole episode
        success: return from which an episode counts as a success, where the environment does not say; none: not shown
        film: film truth, dream and error where there is something to see
        processes: processes to step environments in; 0: this one, the fastest for cheap environments
        threads: threads torch may use; 1 is the fastest for small models
        device: cpu, cuda or cuda:N
    """
    import torch

    from dreamsim.core.run import usable
    from dreamsim.evaluation.foreign import load as load_foreign
    from dreamsim.evaluation.judge import judge

    at_least(1, episodes=episodes, threads=threads)
    at_least(0, processes=processes)
    torch.set_num_threads(threads)
    usable(device)
    trained = _run(run, device, needed=policy is None or world is None)
    if policy is None and world is None and (trained.policy is None or "environment" not in trained.parts):
        return _evaluate_recorded(trained, episodes, seed, horizons, device)
    judged = _run(world, device, needed=False) if world is not None else trained
    make_env = judged.make_env if judged is not None else environment(str(world))
    notes = []
    if policy is not None:
        foreign = load_foreign(policy, codec_of(make_env))
        actor, name = foreign.policy, policy
        notes.append(foreign.face)
    else:
        actor, name = trained.actor().to(device), f"policy of {run}"
    judgement = judge(
        make_env,
        actor,
        None if judged is None else judged.model,
        episodes,
        seed,
        horizons,
        run,
        task=str(world) if judged is None else _task(judged),
        policy_name=name,
        world_name="" if judged is None else str(judged.folder),
        codec=None if judged is None else judged.codec,
        success_return=success,
        film=film,
        processes=processes,
        device=device,
        about={} if trained is None else trained.about,
        notes=notes,
    )
    _report(judgement, _place(run, policy, world))


def _evaluate_recorded(trained: Any, episodes: int, seed: int, horizons: list[int] | None, device: str) -> None:
    """Judge a run's world by recordings that were held out when it was learned."""
    from dreamsim.core.run import load
    from dreamsim.evaluation.recorded import held_out, judge_recorded

    world = load(trained.about["world"], device) if "world" in trained.about else trained
    judgement = judge_recorded(
        world.model,
        held_out(world.about, episodes),
        world.codec,
        horizons,
        seed,
        task=_task(world),
        world_name=str(world.folder),
        device=device,
        about=world.about,
    )
    _report(judgement, trained.folder)


def _place(run: str, policy: str | None, world: str | None) -> Path:
    """Return where a report goes: the run's own into its folder, any other beside that one."""
    names = [re.sub(r"\.(zip|onnx)$", "", name) for name in (policy, world) if name is not None]
    if not names or not (Path(run) / "run.json").is_file():
        return Path(run)
    return Path(run) / "judged" / re.sub(r"[^\w.+-]+", "-", "-in-".join(names)).strip("-.")


def _report(judgement: Any, folder: Path) -> None:
    from dreamsim.evaluation import report

    page = report.write(judgement, folder)
    print(report.text(judgement))
    print(f"\nreport: {page}")


def play(
    run: str,
    film: str | None = None,
    policy: str | None = None,
    seed: int = 0,
    steps: int | None = None,
    threads: int = 1,
) -> None:
    """Let the policy act in the real environment and film one episode.

    Args:
        run: run folder
        film: mp4 file to write; none: RUN/films/play.mp4, with --policy RUN/judged/NAME/films/play.mp4
        policy: a policy that is not the run's: an import path (mine.load), a Stable-Baselines3 .zip or an .onnx file
        seed: seed that the environment is reset with
        steps: steps to act at most, an action repeated being one; none: until the episode ends
        threads: threads torch may use; 1 is the fastest for small models
    """
    import torch

    from dreamsim.evaluation.episodes import play_episode
    from dreamsim.evaluation.film import film_episode
    from dreamsim.evaluation.foreign import load as load_foreign

    at_least(1, threads=threads)
    torch.set_num_threads(threads)
    trained = _run(run, "cpu", needed=True)
    actor = trained.actor() if policy is None else load_foreign(policy, trained.codec).policy
    episode = play_episode(trained.make_env, actor, seed, steps)
    cut = ", stopped there by --steps" if len(episode.action) == steps and not episode.terminated else ""
    print(f"return {episode.reward.sum():.1f} in {len(episode.action)} steps from seed {seed}{cut}")
    path = film_episode(trained.make_env, episode, film or _place(run, policy, None) / "films" / "play.mp4")
    print(f"film: {path}")


check = {"data": check_data, "env": check_env, "model": check_model, "policy": check_policy, "run": check_run}


def convert(
    source: str,
    target: str,
    to: str = "store",
    from_: str | None = None,
    memory: int = 4096,
    seconds: int = 3600,
    reading: dict[str, Any] | None = None,
    writing: dict[str, Any] | None = None,
) -> None:
    """Make a store of someone's recordings, or recordings in another format of a store.

    Recordings are read in a process of their own with its memory and time capped; a file that is
    damaged or means harm costs that process and nothing else. TARGET must not exist. Episodes that
    cannot be used are named and left out.

    Args:
        source: file or folder of a Minari, LeRobot, robomimic or D4RL recording, of videos, of JSON lines, or a store
        target: what to make
        to: format to make: store, minari, minari-arrow, lerobot or traces
        from_: format to read; none: the one it looks like
        memory: MiB that reading or writing may take
        seconds: time that reading, and then writing, may take
        reading: options of the format that is read, as JSON: {"clock": "interpolate"}, {"cameras": ["top"]} for LeRobot
        writing: options of the format that is made, as JSON: {"video": false} for LeRobot
    """
    from dreamsim.data.convert import convert as convert_recording
    from dreamsim.data.convert import understood

    at_least(1, memory=memory, seconds=seconds)
    made = convert_recording(source, target, to, from_, memory, seconds, reading, writing)
    print("\n".join(understood(made, Path(target))))
    if to == "store":
        print(
            f"next: dreamsim check data {target}\n"
            "      dreamsim fit --config configs/pretrain/cartpole_swingup.yaml --data.init_args.env null "
            f"--data.init_args.data {target}"
        )


def reproduce(name: str, jobs: int = 2, draw: bool = False, extend: bool = False) -> None:
    """Repeat a recorded result: train every (task, method, seed) of its queue, evaluate, write table and curves.

    A queue that was cut goes on exactly where it stood: finished runs are kept, an unfinished
    one is resumed from its last checkpoint.

    Args:
        name: name of a queue in configs/results
        jobs: runs trained at a time, each on one thread
        draw: only draw the page again from the recorded numbers
        extend: keep the recorded runs whose settings are still the queue's, train only what is missing of them, and
            record each run as it ends: how a long queue is done over several days or machines
    """
    from dreamsim import reproduce as recorded

    at_least(1, jobs=jobs)
    recorded.draw(name) if draw else recorded.repeat(name, jobs, extend)


def doctor() -> None:
    """Say in plain words what works on this machine and what to install for the rest."""
    from dreamsim.doctor import examine

    for finding in examine():
        print(f"{'ok' if finding.good else '--'}  {finding.subject:<9}  {finding.words}", flush=True)
        if not finding.good:
            print(f"{'':<15}{finding.cure}")


def _run(folder: str, device: str, needed: bool) -> Any:
    """Load a run, or return None for a folder without one where none is needed."""
    if not needed and not (Path(folder) / "run.json").is_file():
        return None
    from dreamsim.core.run import load

    return load(folder, device)


def _task(run: Any) -> str:
    """Return what a run's environment is called: the names among its arguments, else its class."""
    description = run.parts.get("environment", {"class_path": "recordings"})
    names = [value for value in description.get("init_args", {}).values() if isinstance(value, str)]
    return "-".join(names) or description["class_path"].rpartition(".")[2]
