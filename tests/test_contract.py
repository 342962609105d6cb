"""Seven kinds of world in miniature go through the same loop, dream, actor, collector and resume.

Each file of ``contract/`` is a kind: an environment, a model, a policy that fits its view, and the
actor that stands in reality (Believer or Deliberate). A contract that one of them cannot keep is wrong.
"""

from __future__ import annotations

import contextlib
import copy
import importlib
import io
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from dreamsim.core import tree
from dreamsim.core.checks import check_policy, check_world_model
from dreamsim.core.protocols import Uncertain, power
from dreamsim.core.random import Stream
from dreamsim.core.run import view_space
from dreamsim.core.spaces import Codec
from dreamsim.core.types import Episode, Segment
from dreamsim.data.collect import Collector
from dreamsim.data.replay import Replay
from dreamsim.envs.adapt import Chunk, adapt, vectorise
from dreamsim.envs.dream import Dream
from dreamsim.envs.toy import Clock
from dreamsim.imagination.imagine import Script, imagine
from dreamsim.training.learner import Learner, run_round

sys.path.insert(0, str(Path(__file__).parent))
KINDS = ["belief", "td_latent", "ensemble", "pixels", "chunk", "local_text", "endpoint_text"]
ENVS, ROWS, STEPS = 3, 4, 5


class World(NamedTuple):
    parts: ModuleType
    codec: Codec
    model: nn.Module
    policy: nn.Module  # acts on the model's view
    actor: Any  # acts on real observations
    episodes: list[Episode]


def made(name: str, **options: Any) -> World:
    parts = importlib.import_module(f"contract.{name}")
    codec = adapt(parts.make_env()).codec
    with Stream(0):
        model = parts.Model(codec.observation_space, codec.action_space, **options)
        policy = parts.Policy(view_space(model, codec.observation_space), codec.action_space)
    actor = parts.actor(model, policy)
    return World(parts, codec, model, policy, actor, collector(parts, codec).collect(actor, 25))


def collector(parts: ModuleType, codec: Codec) -> Collector:
    return Collector(vectorise(parts.make_env, ENVS), codec, seed=7)


@pytest.fixture(params=KINDS, scope="module")
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    with contextlib.ExitStack() as stack:
        options: dict[str, Any] = {}
        if request.param == "endpoint_text":
            options["port"] = stack.enter_context(importlib.import_module("contract.endpoint_text").serving())
        yield made(request.param, **options)


def filled(world: World) -> Replay:
    replay = Replay(2000, world.codec.observation_space, world.codec.action_size, seed=1)
    for episode in world.episodes:
        replay.add(episode, world.codec.scale)
    return replay


def first_observations(world: World) -> dict[str, torch.Tensor]:
    rows = [{name: torch.from_numpy(value[0]) for name, value in e.obs.items()} for e in world.episodes[:ROWS]]
    return tree.stack(rows)


def dream_of(world: World, starts: Any, horizon: int = 6) -> Dream:
    return Dream(world.model, starts, ROWS, horizon, world.codec, seed=3)


def through_a_file(instant: Any) -> Any:
    file = io.BytesIO()
    torch.save(instant, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def actions(world: World, steps: int) -> np.ndarray:
    return np.random.default_rng(0).uniform(-1, 1, (steps, ROWS, world.codec.action_size)).astype(np.float32)


def played(dream: Dream, moves: np.ndarray) -> list[np.ndarray]:
    """Step, reset by mask where rows ended, and return every array that came out."""
    came: list[np.ndarray] = []
    for move in moves:
        obs, reward, terminated, truncated, _ = dream.step(move)
        came += [*obs.values(), reward, terminated, truncated]
        if (over := terminated | truncated).any():
            came += dream.reset(options={"reset_mask": over})[0].values()
    return came


def equal(one: list[np.ndarray], two: list[np.ndarray]) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(one, two, strict=True))


def assert_same_episodes(one: list[Episode], two: list[Episode]) -> None:
    assert [e.meta for e in one] == [e.meta for e in two] and one
    for a, b in zip(one, two, strict=True):
        assert a.terminated == b.terminated and a.trace.keys() == b.trace.keys()
        for x, y in ((a.obs, b.obs), (a.trace, b.trace)):
            assert equal(list(x.values()), list(y.values()))
        assert equal([a.action, a.reward], [b.action, b.reward])


def test_the_parts_keep_their_contracts_on_random_data(world):
    check_world_model(world.model, world.codec.observation_space, world.codec.action_space)
    check_policy(world.policy, view_space(world.model, world.codec.observation_space), world.codec.action_space)


def test_a_rollout_has_the_aligned_shapes(world):
    state = world.model.start(first_observations(world))
    with Stream(0), torch.no_grad():
        rollout = imagine(world.model, world.policy, state, STEPS)
    space = view_space(world.model, world.codec.observation_space)
    for name, value in rollout.view.items():
        assert value.shape == (ROWS, STEPS + 1, *space[name].shape)
        assert torch.equal(value[:, 0], world.model.view(state)[name])
        assert torch.equal(value[:, -1], world.model.view(rollout.final)[name])
    assert rollout.action.shape == (ROWS, STEPS, world.codec.action_size)
    assert rollout.reward.shape == rollout.proceed.shape == (ROWS, STEPS)
    assert all(value.shape[:2] == (ROWS, STEPS) for value in rollout.trace.values()) and rollout.trace
    shapes = [[leaf.shape for leaf in tree.leaves(part)] for part in (rollout.final, state)]
    assert shapes[0] == shapes[1]


def test_dreams_end_one_by_one_and_only_those_rows_start_again(world, monkeypatch):
    dream = dream_of(world, first_observations(world))
    obs, _ = dream.reset(seed=0)
    assert dream.observation_space.contains(obs)
    started: list[int] = []
    start = world.model.start
    monkeypatch.setattr(world.model, "start", lambda seen: started.append(tree.batch_size(seen)) or start(seen))
    ended = []
    for move in actions(world, 12):
        obs, _, terminated, truncated, _ = dream.step(move)
        over = terminated | truncated
        ended.append(over)
        if over.any():
            began, _ = dream.reset(options={"reset_mask": over})
            assert started.pop() == over.sum() and not started
            assert all(np.array_equal(began[name][~over], obs[name][~over]) for name in obs)
            assert dream.observation_space.contains(began)
    assert any(0 < over.sum() < ROWS for over in ended), "no dream ended by itself"


def test_equal_seeds_dream_equal_bits_and_a_snapshot_in_a_file_goes_on_exactly(world):
    starts, moves = first_observations(world), actions(world, 12)
    dream, other = dream_of(world, starts), dream_of(world, starts)
    dream.reset(seed=5)
    other.reset(seed=5)
    assert equal(played(dream, moves[:4]), played(other, moves[:4]))
    kept = through_a_file(dream.snapshot())
    later = played(dream, moves[4:])
    dream.restore(kept)
    assert equal(later, played(dream, moves[4:]))
    fresh = dream_of(world, starts)
    fresh.restore(kept)
    assert equal(later, played(fresh, moves[4:]))


def test_real_episodes_are_aligned_with_what_their_seed_and_actions_do(world):
    lengths = {len(episode.action) for episode in world.episodes}
    assert len(world.episodes) > ENVS
    for episode in world.episodes:
        env = adapt(world.parts.make_env())
        seen = [env.reset(seed=episode.meta["seed"])[0]]
        for t, action in enumerate(episode.action):
            obs, reward, terminated, _, _ = env.take(action)
            seen.append(obs)
            assert episode.reward[t] == pytest.approx(reward)
        assert terminated == episode.terminated
        assert all(np.array_equal(np.stack([row[name] for row in seen]), value) for name, value in episode.obs.items())
        assert all(len(value) == len(episode.action) for value in episode.trace.values())
    fixed = {"td_latent", "local_text", "endpoint_text"}  # their worlds last equally long
    assert len(lengths) > 1 or world.parts.__name__.rpartition(".")[2] in fixed


def test_a_resumed_collector_goes_on_with_the_same_episodes(world):
    straight = collector(world.parts, world.codec)
    straight.collect(world.actor, 8)
    instant = through_a_file({"collector": straight.state_dict(), "model": world.model.state_dict()})
    resumed = collector(world.parts, world.codec)
    world.model.load_state_dict(instant["model"])
    resumed.load_state_dict(instant["collector"])
    fresh = world.parts.actor(world.model, world.policy)
    assert_same_episodes(straight.collect(world.actor, 15), resumed.collect(fresh, 15))


def test_losses_of_real_windows_are_finite_and_ignore_padding(world):
    length = max(len(episode.action) for episode in world.episodes) - 1
    batch = filled(world).sample(16, length + 2)
    assert 0 < batch.mask.mean() < 1
    losses = [_losses(world, one) for one in (batch, _with_wild_padding(batch))]
    assert losses[0] and all(loss.isfinite() and loss.dim() == 0 for loss in losses[0].values())
    torch.testing.assert_close(losses[0], losses[1])


def test_learning_writes_beliefs_from_which_a_window_and_a_dream_go_on(world):
    world = world._replace(model=copy.deepcopy(world.model))
    replay = filled(world)
    report = run_round(Learner(world.model, seed=2), replay.sample_many(30, 8, 3), replay.write)
    assert report.gradient_steps == 30 and all(np.isfinite(list(report.metrics.values())))
    batch = replay.sample(ROWS, 2)
    remembers = world.model.loss(batch).states is not None
    assert (batch.before is not None) == remembers
    dream = dream_of(world, batch)
    obs, _ = dream.reset(seed=0)
    assert dream.observation_space.contains(obs) and played(dream, actions(world, 8))


def _losses(world: World, batch: Segment) -> dict[str, torch.Tensor]:
    with Stream(0), torch.no_grad():
        return world.model.loss(batch).losses


def _with_wild_padding(batch: Segment) -> Segment:
    pad = batch.mask == 0
    late = torch.cat([torch.zeros(len(pad), 1, dtype=torch.bool), pad], 1)

    def wild(value: torch.Tensor, where: torch.Tensor) -> torch.Tensor:
        return torch.where(where.reshape(where.shape + (1,) * (value.dim() - 2)), torch.full_like(value, 3), value)

    obs = {name: wild(value, late) for name, value in batch.obs.items()}
    return batch._replace(
        obs=obs, action=wild(batch.action, pad), reward=wild(batch.reward, pad), terminated=batch.terminated | pad
    )


# --- what only one kind has


def test_a_known_belief_is_started_from_and_an_unknown_one_is_not():
    world = made("belief")
    replay = filled(world)
    windows = replay.sample(2, 3)
    with Stream(0):
        states = world.model.loss(windows).states
    replay.write(windows.index, tree.detach(states))
    batch = replay.sample(32, 2)
    known = batch.before.known
    assert known.any() and not known.all()
    with Stream(0):
        states = world.model.loss(batch).states
    stored = tree.select(states, (slice(None), 0))
    for belief, began in zip(batch.before.state, stored, strict=True):
        assert torch.equal(belief[known], began[known])
    assert not stored.deter[~known].any()  # what start begins with


def test_what_a_td_latent_writes_is_what_was_seen_and_not_what_was_dreamt():
    world = made("td_latent")
    replay = filled(world)
    learner = Learner(world.model)
    batch = replay.sample(8, 3)
    seen = world.model.start(batch.obs)["latent"].detach()
    *_, beliefs = learner.update(batch)
    assert torch.equal(beliefs["latent"], seen)
    assert world.model.loss(batch).states["latent"].requires_grad


def test_members_disagree_and_a_cautious_planner_hears_of_it():
    world = made("ensemble")
    state = world.model.start(first_observations(world))
    doubt = power(world.model, Uncertain)(state, torch.ones(ROWS, 1))
    assert doubt.shape == (ROWS,) and (doubt > 0).all()
    for seed in range(2):
        with Stream(seed):
            _, bold, _ = world.model.step(state, torch.ones(ROWS, 1))
        with Stream(seed):
            _, careful, _ = world.parts.Cautious(world.model).step(state, torch.ones(ROWS, 1))
        torch.testing.assert_close(bold - careful, doubt)


def test_pixels_stay_bytes_and_the_view_is_the_newest_image():
    world = made("pixels")
    obs = first_observations(world)
    state = world.model.start(obs)
    state = world.model.update(state, torch.zeros(ROWS, 3), {"image": obs["image"] // 2})
    assert torch.equal(world.model.view(state)["image"], obs["image"] // 2)
    assert torch.equal(state["frames"][:, 0], obs["image"])
    dream = dream_of(world, obs)
    view, _ = dream.reset()
    assert view["image"].dtype == np.uint8 and dream.codec.observation_space["image"].shape == (1, 8, 8)


def test_a_chunk_sums_its_rewards_over_the_frames_that_are_real():
    world = made("chunk")
    for episode in world.episodes:
        frames = episode.obs["frames"][1:, 0]
        assert episode.reward.tolist() == frames.tolist()  # a step of Clock gives 1
        times = [row[:count, 0] for row, count in zip(episode.obs["observation"][1:], frames.astype(int), strict=True)]
        assert np.concatenate(times).tolist() == list(range(1, int(frames.sum()) + 1))
    assert any(episode.obs["frames"][-1, 0] < world.parts.LENGTH for episode in world.episodes)
    assert world.codec.action_size == world.parts.LENGTH


def test_a_chunk_records_what_each_of_its_actions_became():
    class Weak(Clock):
        def step(self, action):
            *came, info = super().step(action)
            return *came, info | {"applied": action / 2}

    envs = vectorise(lambda: Chunk(Weak(end=3), 2), 1)
    ones = Script(torch.ones(1, 2, 2))
    (episode,) = Collector(envs, envs.codec, seed=0).collect(ones, 2)
    assert episode.action.tolist() == [[0.5, 0.5], [0.5, 1.0]]  # the last was never asked for: the episode had ended


def test_texts_carry_their_tokens_and_log_probabilities_into_windows():
    world = made("local_text")
    assert isinstance(world.codec.raw_observation_space, spaces.Text)
    batch = filled(world).sample(16, 3)
    said = batch.action.unflatten(-1, (-1, 256)).argmax(-1)
    real = batch.mask.bool()
    assert torch.equal(batch.trace["tokens"][real], said[real])
    assert batch.trace["log_prob"].shape == (16, 3, world.parts.WORD) and (batch.trace["log_prob"][real] <= 0).all()
    echoed = batch.obs["text"][:, 1:, : world.parts.WORD].long()
    assert torch.equal(echoed[real], said[real])


def test_a_text_policy_forgets_on_the_rows_that_begin():
    world = made("local_text")
    view = world.model.view(world.model.start(first_observations(world)))
    act = world.policy.act(view)
    first = torch.tensor([True, False, True, False])
    after = world.policy.act({"text": torch.full_like(view["text"], 97)}, act.memory, first)
    held = (after.memory != 255).sum(1) - (after.trace["tokens"] != 255).sum(1)
    assert (held[first] == 16).all()
    assert torch.equal(held[~first], 16 + (act.memory != 255).sum(1)[~first])


def test_a_failing_endpoint_is_an_error_and_not_a_dream():
    world = made("endpoint_text")  # nobody serves
    dream = dream_of(world, first_observations(world))
    dream.reset()
    with pytest.raises(ConnectionError):
        dream.step(actions(world, 1)[0])
