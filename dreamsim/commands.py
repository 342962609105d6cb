"""The commands beside fit, validate and test. Importing this costs nothing: each loads what it needs."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

# Types stand here as objects, not as strings under TYPE_CHECKING: the parser would import those to show --help.
MakeEnv = Callable[[], Any]


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
    or --world name others. With both of them RUN need hold no run: it is where the report goes.
    A run without a policy, or without an environment, is judged by the recordings it held out.

    Args:
        run: run folder; report.html, report.json and films/ are written there
        policy: a policy that is not the run's: an import path (mine.load), a Stable-Baselines3 .zip or an .onnx file
        world: where to judge: a run folder (its environment and its dream), a Gymnasium id, or an environment's
            import path (mine.MyEnv); a world that is no run has no dream beside it
        episodes: number of whole real episodes
        seed: evaluation seed; training never draws episodes from it
        horizons: steps at which open-loop drift is shown; none: powers of two up to the whole episode
        success: return from which an episode counts as a success, where the environment does not say; none: not shown
        film: film truth, dream and error where there is something to see
        processes: processes to step environments in; 0: this one, the fastest for cheap environments
        threads: threads torch may use; 1 is the fastest for small models
        device: cpu, cuda or cuda:N
    """
    import torch

    from dreamsim.evaluation.foreign import load as load_foreign
    from dreamsim.evaluation.judge import judge

    torch.set_num_threads(threads)
    trained = _run(run, device, needed=policy is None or world is None)
    if policy is None and world is None and (trained.policy is None or "environment" not in trained.parts):
        return _evaluate_recorded(trained, episodes, seed, horizons, device)
    judged = _run(world, device, needed=False) if world is not None else trained
    make_env = judged.make_env if judged is not None else _environment(str(world))
    notes = []
    if policy is not None:
        foreign = load_foreign(policy, _codec(make_env))
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
    _report(judgement, run)


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
    _report(judgement, str(trained.folder))


def _report(judgement: Any, run: str) -> None:
    from dreamsim.evaluation import report

    page = report.write(judgement, run)
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
        film: mp4 file to write; none: RUN/films/play.mp4
        policy: a policy that is not the run's: an import path (mine.load), a Stable-Baselines3 .zip or an .onnx file
        seed: seed of the episode
        steps: steps to film at most; none: the whole episode
        threads: threads torch may use; 1 is the fastest for small models
    """
    import torch

    from dreamsim.evaluation.episodes import evaluate_policy
    from dreamsim.evaluation.film import film_episode
    from dreamsim.evaluation.foreign import load as load_foreign

    torch.set_num_threads(threads)
    trained = _run(run, "cpu", needed=True)
    actor = trained.actor() if policy is None else load_foreign(policy, trained.codec).policy
    outcome = evaluate_policy(trained.make_env, actor, 1, seed)
    episode = outcome.episodes[0]
    if steps is not None:
        seen = {name: value[: steps + 1] for name, value in episode.obs.items()}
        episode = episode._replace(obs=seen, action=episode.action[:steps])
    path = film_episode(trained.make_env, episode, film or Path(run) / "films" / "play.mp4")
    print(f"return {outcome.returns[0]:.1f} in {outcome.lengths[0]} steps from seed {outcome.seeds[0]}\nfilm: {path}")


def check_env(env: str, steps: int = 200, seed: int = 0, options: dict[str, Any] | None = None) -> None:
    """Check that an environment keeps the contract that training relies on.

    Args:
        env: Gymnasium id or import path (mine.MyEnv)
        steps: random steps to take in each of two copies
        seed: seed of the first episode
        options: arguments of the environment, as JSON
    """
    from dreamsim.core import checks

    _say(checks.check_env(_environment(env, options), steps, seed))


def check_model(model: str, env: str, options: dict[str, Any] | None = None) -> None:
    """Check a world model on random data of an environment's spaces.

    Args:
        model: import path of a class or of a function annotated to return one (mine.MyModel)
        env: Gymnasium id or import path of the environment it is for
        options: arguments of the model, as JSON
    """
    from dreamsim.core import checks
    from dreamsim.core.run import build

    codec = _codec(_environment(env))
    part = build({"class_path": model, "init_args": options or {}}, codec.observation_space, codec.action_space)
    _say(checks.check_world_model(part, codec.observation_space, codec.action_space))


def check_policy(policy: str, env: str, model: str | None = None, options: dict[str, Any] | None = None) -> None:
    """Check a policy on random views.

    Args:
        policy: import path of a class or of a function annotated to return one (mine.MyPolicy)
        env: Gymnasium id or import path of the environment it is for
        model: import path of the world model whose view it reads; none: it reads real observations
        options: arguments of the policy, as JSON
    """
    from dreamsim.core import checks
    from dreamsim.core.run import build, view_space

    codec = _codec(_environment(env))
    view = codec.observation_space
    if model is not None:
        world = build({"class_path": model, "init_args": {}}, codec.observation_space, codec.action_space)
        view = view_space(world, view)
    part = build({"class_path": policy, "init_args": options or {}}, view, codec.action_space)
    _say(checks.check_policy(part, view, codec.action_space))


def check_run(run: str) -> None:
    """Check everything in a run folder: model, policy, environment and stored episodes.

    Args:
        run: run folder
    """
    from dreamsim.core import checks
    from dreamsim.core.run import view_space
    from dreamsim.data.store import Store

    trained = _run(run, "cpu", needed=True)
    seen, action = trained.codec.observation_space, trained.codec.action_space
    print("model")
    _say(checks.check_world_model(trained.model, seen, action))
    if trained.policy is not None:
        print("policy")
        _say(checks.check_policy(trained.policy, view_space(trained.model, seen), action))
    if "environment" in trained.parts:
        print("environment")
        _say(checks.check_env(trained.make_env))
    if (Path(run) / "store").is_dir():
        store = Store(Path(run) / "store")
        print("episodes")
        _say(checks.check_episodes((store.episode(number) for number in range(len(store))), trained.codec))


check = {"env": check_env, "model": check_model, "policy": check_policy, "run": check_run}


def reproduce(name: str, jobs: int = 2, draw: bool = False) -> None:
    """Repeat a recorded result: train every (task, method, seed) of its queue, evaluate, write table and curves.

    A queue that was cut goes on exactly where it stood: finished runs are kept, an unfinished
    one is resumed from its last checkpoint.

    Args:
        name: name of a queue in configs/results
        jobs: runs trained at a time, each on one thread
        draw: only draw the page again from the recorded numbers
    """
    from dreamsim import reproduce as recorded

    recorded.draw(name) if draw else recorded.repeat(name, jobs)


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


def _environment(name: str, options: dict[str, Any] | None = None) -> MakeEnv:
    """Return a maker of an environment named by import path or Gymnasium id."""
    from functools import partial

    from dreamsim.core.parts import build
    from dreamsim.envs.named import Named

    if re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+", name):
        return partial(build, {"class_path": name, "init_args": options or {}})
    return partial(Named, name, options=options or {})


def _codec(make_env: MakeEnv) -> Any:
    from dreamsim.core.spaces import Codec

    env = make_env()
    try:
        return Codec(env.observation_space, env.action_space)
    finally:
        env.close()


def _say(lines: list[str]) -> None:
    print("\n".join(f"  {line}" for line in lines))
