"""``dreamsim check``: the contracts as commands. Importing this costs nothing: each loads what it needs."""

import re
from collections.abc import Callable
from typing import Any

# Types stand here as objects, not as strings under TYPE_CHECKING: the parser would import those to show --help.
MakeEnv = Callable[[], Any]


def check_env(env: str, steps: int = 200, seed: int = 0, options: dict[str, Any] | None = None) -> None:
    """Check that an environment keeps the contract that training relies on.

    Args:
        env: Gymnasium id or import path (mine.MyEnv)
        steps: random steps to take in each of two copies
        seed: seed of the first episode
        options: arguments of the environment, as JSON
    """
    from dreamsim.core import checks

    at_least(1, steps=steps)
    _say(checks.check_env(environment(env, options), steps, seed))


def check_model(model: str, env: str, options: dict[str, Any] | None = None) -> None:
    """Check a world model on random data of an environment's spaces.

    Args:
        model: import path of a class or of a function annotated to return one (mine.MyModel)
        env: Gymnasium id or import path of the environment it is for
        options: arguments of the model, as JSON
    """
    from dreamsim.core import checks
    from dreamsim.core.run import build

    codec = codec_of(environment(env))
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

    codec = codec_of(environment(env))
    view = codec.observation_space
    if model is not None:
        world = build({"class_path": model, "init_args": {}}, codec.observation_space, codec.action_space)
        view = view_space(world, view)
    try:
        part = build({"class_path": policy, "init_args": options or {}}, view, codec.action_space)
        _say(checks.check_policy(part, view, codec.action_space))
    except KeyError as error:
        if error.args and error.args[0] in view.spaces:
            raise
        whose = (
            f"the real observations ({', '.join(view)})"
            if model is None
            else f"the view of {model} ({', '.join(view)})"
        )
        cure = (
            "name the world model whose view it reads: --model mine.MyModel" if model is None else "rename one of them"
        )
        raise ValueError(f"{policy} reads {error}, which is not among {whose}; {cure}") from error


def check_run(run: str) -> None:
    """Check everything in a run folder: model, policy, environment and stored episodes. It is only read.

    Args:
        run: run folder
    """
    from dreamsim.core import checks
    from dreamsim.core.run import load, view_space

    trained = load(run)
    seen, action = trained.codec.observation_space, trained.codec.action_space
    print("model")
    _say(checks.check_world_model(trained.model, seen, action))
    if trained.policy is not None:
        print("policy")
        _say(checks.check_policy(trained.policy, view_space(trained.model, seen), action))
    if "environment" in trained.parts:
        print("environment")
        _say(checks.check_env(trained.make_env))
    print("episodes")
    _say(_check_store(trained))


def _check_store(trained: Any) -> list[str]:
    from dreamsim.core import checks
    from dreamsim.data.store import Store

    folder = trained.folder / "store"
    if folder.is_dir():
        store = Store(folder, mend=False)
        return checks.check_episodes((store.episode(number) for number in range(len(store))), trained.codec)
    if not trained.about.get("env_steps"):
        learned = trained.about.get("recordings") or trained.about.get("world") or "elsewhere"
        return [f"none of its own: it learned from {learned}"]
    raise FileNotFoundError(
        f"{folder} is missing, though the run lived {trained.about['env_steps']:,} environment steps; "
        "put it back from a copy: without it the run cannot be resumed"
    )


def check_data(data: str, clock: str | None = None, memory: int = 4096, seconds: int = 3600) -> None:
    """Look recordings through for what breaks learning, and say what is done about each fault. They are only read.

    The exit code is 1 when something needs a decision: lines that begin with "?".

    Args:
        data: a store, or a recording in any format that `dreamsim convert` reads
        clock: what reading does where frames are missing, for LeRobot and videos: mask (no step spans the gap), drop
            (the episode) or interpolate; none: mask
        memory: MiB that reading may take
        seconds: time that reading may take
    """
    from dreamsim.data.inspect import examine, tell

    at_least(1, memory=memory, seconds=seconds)
    examined = examine(data, clock, memory, seconds)
    _say(tell(examined))
    if examined.undecided:
        raise SystemExit(1)


def environment(name: str, options: dict[str, Any] | None = None) -> MakeEnv:
    """Return a maker of an environment named by import path or Gymnasium id."""
    from functools import partial

    from dreamsim.core.parts import build
    from dreamsim.envs.named import Named

    if re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+", name):
        return partial(build, {"class_path": name, "init_args": options or {}})
    return partial(Named, name, options=options or {})


def codec_of(make_env: MakeEnv) -> Any:
    """Return the codec of an environment's spaces."""
    from dreamsim.core.spaces import Codec

    env = make_env()
    try:
        return Codec(env.observation_space, env.action_space)
    finally:
        env.close()


def at_least(low: int, **options: int) -> None:
    """Raise ValueError, naming the option, for a number below ``low``."""
    for name, value in options.items():
        if value < low:
            raise ValueError(f"--{name} must be {low} or more, got {value}")


def _say(lines: list[str]) -> None:
    print("\n".join(f"  {line}" for line in lines))
