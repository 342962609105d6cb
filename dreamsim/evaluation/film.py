"""Films: real episodes, and dreams beside the truth they should have been."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import torch
from tqdm import tqdm

from dreamsim.core import tree
from dreamsim.core.protocols import WorldModel
from dreamsim.core.random import Stream
from dreamsim.core.spaces import Codec, is_image
from dreamsim.core.types import Episode, Obs
from dreamsim.envs.render import NoPicture
from dreamsim.evaluation.cuts import Cut, spreads, take
from dreamsim.evaluation.openloop import believe, shower, side_by_side
from dreamsim.evaluation.pictures import as_rgb, beside, difference, fit, with_bars

HEIGHT = 160  # pixels of each picture in a film of a dream
FRAMES = 120  # at most in a film of a dream


class CannotFilm(RuntimeError):
    """There is nothing to see: the environment draws no pictures, or does not repeat its episodes."""


class Film(NamedTuple):
    """A film for a report: what ``columns`` name, side by side in every frame."""

    frames: list[np.ndarray]  # (H, W, 3)
    rate: float  # frames per second, as fast as in the environment
    columns: tuple[str, ...]
    caption: str


def write(path: str | Path, frames: Iterable[np.ndarray], rate: float) -> Path:
    """Write frames (H, W, 3) uint8 of one size as an H.264 mp4, whole or not at all; return its path.

    Odd sides lose their last pixel row or column. Raises CannotFilm where no encoder is
    installed or there are no frames.
    """
    try:
        import imageio_ffmpeg
    except ImportError as error:
        raise CannotFilm("writing mp4 needs an encoder: pip install -c constraints.txt -e '.[film]'") from error
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.stem}.unfinished.mp4")
    stream = iter(frames)
    first = next(stream, None)
    if first is None:
        raise CannotFilm("there are no frames to film")
    height, width = (side - side % 2 for side in first.shape[:2])
    writer = imageio_ffmpeg.write_frames(
        str(unfinished),
        (width, height),
        fps=rate,
        codec="libx264",
        macro_block_size=2,
        quality=7,
        ffmpeg_log_level="error",
    )
    try:
        writer.send(None)
        writer.send(np.ascontiguousarray(first[:height, :width]))
        for frame in stream:
            writer.send(np.ascontiguousarray(frame[:height, :width]))
        writer.close()
        unfinished.replace(path)
    finally:
        writer.close()
        unfinished.unlink(missing_ok=True)
    return path


def film_episode(make_env: Callable[[], gym.Env], episode: Episode, path: str | Path) -> Path:
    """Write a real episode as it looks, one frame per step in the environment's own time. Raises CannotFilm."""
    steps = tqdm(range(len(episode.action) + 1), "filming", delay=10, unit="frame", leave=False)
    return write(path, real_frames(make_env, episode, steps), frame_rate(make_env))


def real_frames(make_env: Callable[[], gym.Env], episode: Episode, steps: Iterable[int]) -> Iterator[np.ndarray]:
    """Yield what the environment shows at ``steps`` (ascending) of a recorded episode, by repeating it.

    The episode is begun from its seed and its actions are repeated. Raises CannotFilm where
    the environment draws nothing or does not come through the same observations.
    """
    if "seed" not in episode.meta:
        raise CannotFilm("the episode was recorded without its seed, so the environment cannot repeat it")
    env = make_env()
    try:
        codec = Codec(env.observation_space, env.action_space)
        obs, _ = env.reset(seed=int(episode.meta["seed"]))
        now = 0
        for step in steps:
            for t in range(now, step):
                obs = env.step(codec.unflatten_action(episode.action[t]))[0]
            now = step
            _check_repeats(codec.encode_obs(obs), episode, now)
            yield _picture(env)
    finally:
        env.close()


def film_of_reality(make_env: Callable[[], gym.Env], episode: Episode) -> Film:
    """Film one real episode where there is no dream. Raises CannotFilm."""
    stride = -(-(len(episode.action) + 1) // FRAMES)
    steps = range(0, len(episode.action) + 1, stride)
    frames = [fit(frame, HEIGHT) for frame in real_frames(make_env, episode, steps)]
    caption = f"Real episode from seed {episode.meta.get('seed', '?')}, {len(episode.action)} steps."
    return Film(frames, frame_rate(make_env) / stride, ("truth",), caption)


def dream_film(
    make_env: Callable[[], gym.Env],
    model: WorldModel,
    codec: Codec,
    episodes: Sequence[Episode],
    number: int = 0,
    context: int = 5,
    seed: int = 0,
    device: torch.device | str = "cpu",
) -> Film:
    """Film one real episode beside the dream of its recorded actions and their difference.

    The dream is shown as it decodes its image; a model of states is shown by the real frame
    of the moment, among all the other episodes, that the model shows most like the dreamt one
    (decoded, else by its view). Bars under the error are the distance of dream and truth in
    standard deviations of the data; the full quarter is 1. Raises CannotFilm.
    """
    episode = episodes[number]
    context = min(context, len(episode.action) - 1)
    length = len(episode.action) - context
    if length < 1:
        raise CannotFilm("the episode has only one step; there is no dream to film")
    stride = -(-length // FRAMES)
    steps = list(range(stride, length + 1, stride))
    shown = [context + step for step in steps]
    with torch.no_grad(), Stream(seed, device):
        batch = take([episode], [Cut(0, 0, length)], context + length, codec.scale, device)
        _, state = believe(model, batch, context)
        show = shower(model, state, codec) or model.view
        pairs = [(show(r.final), show(real)) for _, r, real in side_by_side(model, batch, state, steps, context)]
        dreams, reals = (tree.map(torch.Tensor.float, tree.cat([pair[side] for pair in pairs])) for side in (0, 1))
        image = next((n for n, part in codec.observation_space.spaces.items() if is_image(part) and n in dreams), None)
        if image is None:
            others = [e for i, e in enumerate(episodes) if i != number] or [episode]
            bank, places = _bank(model, show, others, codec, device)
    if image is not None:
        truth, pictures = (
            [as_rgb(f) for f in episode.obs[image][shown]],
            [as_rgb(f) for f in dreams[image].cpu().numpy()],
        )
        reals = {image: torch.from_numpy(episode.obs[image][shown]).float().to(device)}
        units = {image: spreads(episodes, codec.observation_space)[image].to(device)}
    else:
        units = _units(bank)
        truth = list(real_frames(make_env, episode, shown))
        pictures = _frames_at(make_env, others, [places[i] for i in _nearest(dreams, bank, units)])
    name = "dream (nearest real frame)" if image is None else "dream (decoded)"
    caption = (
        f"Episode from seed {episode.meta.get('seed', '?')}: {context} real steps, then {length} dreamt steps under "
        f"the recorded actions{f', every {stride}th shown' if stride > 1 else ''}."
    )
    frames = _strips(truth, pictures, _distances(dreams, reals, units))
    return Film(frames, frame_rate(make_env) / stride, ("truth", name, "error"), caption)


def frame_rate(make_env: Callable[[], gym.Env]) -> float:
    """Return how many steps a second the environment means; 30 where it does not say."""
    env = make_env()
    try:
        return float(env.metadata.get("render_fps", 30))
    finally:
        env.close()


def _strips(truth: Sequence[np.ndarray], pictures: Sequence[np.ndarray], errors: Sequence[float]) -> list[np.ndarray]:
    frames = []
    for number, (real, dreamt) in enumerate(zip(truth, pictures, strict=True)):
        pair = (fit(real, HEIGHT), fit(dreamt, HEIGHT))
        marked = with_bars(difference(*pair), errors[: number + 1], len(truth), 1.0)
        frames.append(beside([*pair, marked]))
    return frames


def _check_repeats(obs: dict[str, np.ndarray], episode: Episode, step: int) -> None:
    for name, value in obs.items():
        if not np.array_equal(value, episode.obs[name][step]):
            raise CannotFilm(
                f"the environment did not repeat its episode: {name} differs at step {step} of seed "
                f"{episode.meta['seed']}; it is not deterministic given its seed and actions"
            )


def _picture(env: gym.Env) -> np.ndarray:
    if env.render_mode is None:
        raise CannotFilm("the environment draws no pictures; make it with render_mode='rgb_array'")
    try:
        frame: Any = env.render()
    except (NoPicture, gym.error.Error, ImportError, NotImplementedError) as error:
        raise CannotFilm(f"the environment cannot draw here: {error}") from error
    frame = np.asarray(frame[-1] if isinstance(frame, list) and frame else frame)
    if frame.ndim != 3 or frame.dtype != np.uint8:
        raise CannotFilm(f"render() must give RGB (H, W, 3) uint8, came {frame.dtype} {frame.shape}")
    return frame


def _bank(
    model: WorldModel, show: Callable, episodes: Sequence[Episode], codec: Codec, device: torch.device | str
) -> tuple[Obs, list[tuple[int, int]]]:
    """Return what the model shows of every real moment (N, ...) and its (episode, step)."""
    cuts = [Cut(i, 0, len(episode.action)) for i, episode in enumerate(episodes)]
    longest = max(cut.left for cut in cuts)
    batch = take(episodes, cuts, longest, codec.scale, device)
    state = model.start(tree.select(batch.obs, (slice(None), 0)))
    rows, places = [], []
    for t in range(longest + 1):
        if t:
            state = model.update(state, batch.action[:, t - 1], tree.select(batch.obs, (slice(None), t)))
        there = [i for i, cut in enumerate(cuts) if t <= cut.left]
        rows.append(tree.map(lambda value, there=there: value[there].float(), show(state)))
        places += [(i, t) for i in there]
    return tree.cat(rows), places


def _units(bank: Obs) -> Obs:
    """Return one deviation per field: that of its components together."""
    return {name: value.flatten(1).var(0, unbiased=False).mean().sqrt().clamp(min=1e-6) for name, value in bank.items()}


def _nearest(dreams: Obs, bank: Obs, units: Obs) -> list[int]:
    distance = sum(
        torch.cdist(dreams[name].flatten(1) / units[name], bank[name].flatten(1) / units[name]).square()
        / bank[name][0].numel()
        for name in bank
    )
    return distance.argmin(1).tolist()


def _frames_at(
    make_env: Callable[[], gym.Env], episodes: Sequence[Episode], places: Sequence[tuple[int, int]]
) -> list[np.ndarray]:
    """Return the real frames at (episode, step), repeating each episode once."""
    found = {}
    for number in sorted({place[0] for place in places}):
        steps = sorted({step for episode, step in places if episode == number})
        for step, frame in zip(steps, real_frames(make_env, episodes[number], steps), strict=True):
            found[number, step] = frame
    return [found[place] for place in places]


def _distances(dreams: Obs, truths: Obs, units: Obs) -> list[float]:
    """Return root mean square distances by step, in standard deviations, over the fields of ``units``."""
    squares = [((dreams[n] - truths[n]) / unit).flatten(1).square().mean(1) for n, unit in units.items()]
    return torch.stack(squares).mean(0).sqrt().tolist()
