"""Checks of what is learned: world models and policies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from dreamsim.core import tree
from dreamsim.core.checks.expect import expect, in_words, spaces_in_words
from dreamsim.core.protocols import Policy, WorldModel
from dreamsim.core.random import Stream
from dreamsim.core.run import view_space, weights
from dreamsim.core.types import Act, Learned, Obs, Segment

ROWS, STEPS = 4, 5


def check_world_model(
    model: nn.Module, observation_space: spaces.Dict, action_space: spaces.Space, seed: int = 0
) -> list[str]:
    """Check a world model on random data of the given spaces: shapes, rows, padding, randomness."""
    _has_methods(model, WorldModel, "a world model")
    batch = random_segment(observation_space, action_space, seed)
    obs, action = _at(batch.obs, 0), batch.action[:, 0]
    model.eval()
    state = _check_states(model, batch)
    _same_twice("step", lambda: model.step(state, action))
    _rows_are_apart(
        "start and step",
        lambda o, a: model.step(model.start(o), a),
        (obs, action),
        (_at(batch.obs, 2), batch.action[:, 2]),
    )
    model.train()
    names = _check_loss(model, batch)
    view = view_space(model, observation_space)
    count = sum(value.numel() for value in weights(model).values())
    return [
        f"belief of {sum(leaf[0].numel() for leaf in tree.leaves(state))} numbers, view {spaces_in_words(view)}",
        f"losses {', '.join(names)}; padding does not reach them" if names else "nothing to learn, so no losses",
        "rows do not touch each other; equal random streams give equal dreams",
        f"{count:,} numbers in parameters and buffers",
    ]


def check_policy(policy: Any, view: spaces.Dict, action_space: spaces.Space, seed: int = 0) -> list[str]:
    """Check a policy on random views: shapes, range of actions, memory, rows."""
    _has_methods(policy, Policy, "a policy")
    batch = random_segment(view, action_space, seed)
    now, after = _at(batch.obs, 0), _at(batch.obs, 1)
    before = tree.map(torch.clone, now)
    with torch.no_grad(), Stream(seed):
        act = policy.act(now, None, torch.ones(ROWS, dtype=torch.bool))
    expect(isinstance(act, Act), "act(...) to return an Act", type(act).__name__, "return Act(action, memory)")
    expect(_equal(now, before), "act to leave the view alone", "a changed view", "work on a copy")
    _check_action(act.action, action_space)
    for name, value in act.trace.items():
        expect(len(value) == ROWS, f"trace {name!r} of shape (B, ...)", tuple(value.shape), "give it a leading axis")
    _same_twice("act", lambda: policy.act(after, act.memory, torch.zeros(ROWS, dtype=torch.bool)).action)
    _rows_are_apart("act", lambda v: policy.act(v, None, None).action, (now,), (after,))
    mixed = torch.tensor([True, False] * (ROWS // 2))
    with torch.no_grad(), Stream(seed):
        again = policy.act(after, act.memory, mixed).action
    with torch.no_grad(), Stream(seed):
        fresh = policy.act(after, None, torch.ones_like(mixed)).action
    expect(
        _close(again[mixed], fresh[mixed]),
        "rows marked first to act as without memory",
        "actions that still depend on the memory",
        "reset the memory of those rows inside act",
    )
    return [
        f"acts on {spaces_in_words(view)} with (B, {act.action.shape[1]}) in [-1, 1]",
        "no memory" if act.memory is None else "keeps a memory, which rows marked first forget",
        f"records {', '.join(act.trace) or 'nothing'}; rows do not touch each other",
    ]


def random_segment(
    observation_space: spaces.Dict, action_space: spaces.Space, seed: int = 0, rows: int = ROWS, steps: int = STEPS
) -> Segment:
    """Return random windows (B, T) = (``rows``, ``steps``), the last two of them partly padding."""
    generator = torch.Generator().manual_seed(seed)
    shape = (rows, steps + 1)
    obs = {name: _random_values(part, shape, generator) for name, part in observation_space.spaces.items()}
    mask = torch.ones(rows, steps)
    mask[-2:-1, 3:], mask[-1:, 1:] = 0, 0
    kept = torch.cat([torch.ones(rows, 1), mask], 1)
    size = int(action_space.n) if isinstance(action_space, spaces.Discrete) else int(np.prod(action_space.shape or ()))
    if isinstance(action_space, spaces.Discrete):
        choice = torch.randint(size, (rows, steps), generator=generator)
        action = nn.functional.one_hot(choice, size).float()
    else:
        action = torch.rand(rows, steps, size, generator=generator) * 2 - 1
    return Segment(
        obs={name: value * _wide(kept, value).to(value.dtype) for name, value in obs.items()},
        action=action * mask[..., None],
        reward=torch.randn(rows, steps, generator=generator) * mask,
        terminated=torch.zeros(rows, steps, dtype=torch.bool),
        mask=mask,
        trace={},
        before=None,
        index=torch.zeros(rows, 2, dtype=torch.int64),
    )


def _has_methods(part: Any, protocol: type, what: str) -> None:
    wanted = [name for name, value in vars(protocol).items() if callable(value) and not name.startswith("_")]
    missing = [name for name in wanted if not callable(getattr(part, name, None))]
    expect(
        not missing,
        f"{what} with {', '.join(wanted)}",
        f"{type(part).__name__} without {', '.join(missing)}",
        f"write them as in dreamsim.core.protocols.{protocol.__name__}",
    )


class _Step(NamedTuple):
    state: Any
    reward: Tensor
    proceed: Tensor


@torch.no_grad()
def _check_states(model: Any, batch: Segment) -> Any:
    """Walk start, view, step and update once; return the first state."""
    obs, action = _at(batch.obs, 0), batch.action[:, 0]
    given = tree.map(torch.clone, (obs, action))
    state = model.start(obs)
    for leaf in tree.leaves(state):
        ok = isinstance(leaf, Tensor) and leaf.dim() > 0 and len(leaf) == ROWS
        expect(ok, "start to return a tree of tensors (B, ...)", in_words(leaf), "put the batch axis first")
    kept = tree.map(torch.clone, state)
    view = model.view(state)
    ok = isinstance(view, dict) and all(isinstance(value, Tensor) and len(value) == ROWS for value in view.values())
    expect(ok, "view to return {name: (B, ...)}", in_words(view), "return a dict of tensors")
    expect(_equal(state, kept), "view to leave the state alone", "a changed state", "work on a copy")
    dreamt = model.step(state, action)
    expect(
        isinstance(dreamt, tuple) and len(dreamt) == 3,
        "step to return (state, reward, proceed)",
        in_words(dreamt),
        "return three",
    )
    step = _Step(*dreamt)
    for name, value in (("reward", step.reward), ("proceed", step.proceed)):
        expect(
            tuple(value.shape) == (ROWS,),
            f"{name} of shape (B,) = ({ROWS},)",
            tuple(value.shape),
            "drop the extra axis",
        )
        expect(bool(value.isfinite().all()), f"a finite {name}", "NaN or infinity", "look for a division or a log of 0")
    expect(
        bool(((step.proceed >= 0) & (step.proceed <= 1)).all()),
        "proceed in [0, 1]",
        step.proceed.tolist(),
        "return a probability",
    )
    expect(_equal(state, kept), "step to leave its state alone", "a changed state", "return a new tree")
    seen = model.update(state, action, _at(batch.obs, 1))
    for name, other in (("step", step.state), ("update", seen)):
        expect(
            _shapes(other) == _shapes(state),
            f"{name} to return a state like start's {_shapes(state)}",
            _shapes(other),
            "keep names, order and shapes",
        )
    expect(
        _equal((obs, action), given),
        "the model to leave observations and actions alone",
        "changed ones",
        "work on copies",
    )
    return state


def _check_loss(model: Any, batch: Segment) -> list[str]:
    buffers = {name: value.clone() for name, value in model.named_buffers()}
    losses = _losses(model, batch)
    for name, value in model.named_buffers():
        expect(
            torch.equal(value, buffers[name]),
            f"loss to leave buffer {name!r} alone",
            "a changed buffer",
            "set statistics in fit_statistics",
        )
    for name, value in losses.items():
        expect(
            value.dim() == 0 and bool(value.isfinite()),
            f"loss {name!r} to be a finite scalar",
            value.tolist(),
            "take the mean over real steps",
        )
    noisy = _losses(model, _disturb_padding(batch))
    for name, value in losses.items():
        expect(
            _close(value, noisy[name]),
            f"loss {name!r} to ignore steps with mask 0",
            f"{value.item():.6g} became {noisy[name].item():.6g} when only padding changed",
            "multiply by batch.mask before summing",
        )
    again = _losses(model, batch)
    same = all(torch.equal(value, again[name]) for name, value in losses.items())
    expect(same, "equal losses from equal random numbers", "different ones", "draw only from torch's generator")
    if not losses:
        return []
    total = torch.stack(list(losses.values())).sum()
    reached = torch.autograd.grad(total, [p for p in model.parameters() if p.requires_grad], allow_unused=True)
    expect(
        any(g is not None for g in reached),
        "a gradient from the losses to the parameters",
        "none",
        "do not detach them",
    )
    return list(losses)


def _losses(model: Any, batch: Segment) -> dict[str, Tensor]:
    with Stream(0):
        learned = model.loss(batch)
    expect(
        isinstance(learned, Learned) and bool(learned.losses or not list(model.parameters())),
        "loss to return Learned({name: scalar}, states)",
        in_words(learned),
        "return a Learned",
    )
    for leaf in tree.leaves(learned.states):
        expect(
            tuple(leaf.shape[:2]) == (ROWS, STEPS + 1),
            "Learned.states of shape (B, T+1, ...)",
            tuple(leaf.shape),
            "one belief an observation",
        )
    return learned.losses


def _disturb_padding(batch: Segment) -> Segment:
    assert batch.reward is not None
    pad = 1 - batch.mask
    late = torch.cat([torch.zeros(ROWS, 1), pad], 1)
    return batch._replace(
        obs={name: (value + 3 * _wide(late, value)).to(value.dtype) for name, value in batch.obs.items()},
        action=batch.action + 0.5 * pad[..., None],
        reward=batch.reward + 7 * pad,
        terminated=pad.bool(),
    )


def _rows_are_apart(name: str, function: Callable, some: tuple, other: tuple) -> None:
    """Replace every row but the first by another: the first must not feel it."""
    keep = torch.tensor([True] + [False] * (ROWS - 1))
    with torch.no_grad(), Stream(0):
        before = function(*some)
    with torch.no_grad(), Stream(0):
        after = function(*tree.where(keep, some, other))
    rows = (tree.select(before, slice(0, 1)), tree.select(after, slice(0, 1)))
    expect(
        _close(*rows),
        f"{name}: a row to be independent of the others",
        "it changes with them",
        "no statistics over the batch",
    )


def _same_twice(name: str, function: Callable) -> None:
    results = []
    for _ in range(2):
        with torch.no_grad(), Stream(0):
            results.append(function())
    expect(
        _equal(*results),
        f"{name} to repeat under equal random numbers",
        "another result",
        "draw only from torch's generator",
    )


def _check_action(action: Tensor, space: spaces.Space) -> None:
    size = int(space.n) if isinstance(space, spaces.Discrete) else int(np.prod(space.shape or ()))
    expect(
        tuple(action.shape) == (ROWS, size),
        f"an action of shape (B, A) = ({ROWS}, {size})",
        tuple(action.shape),
        "flatten it",
    )
    expect(bool(action.isfinite().all()), "a finite action", "NaN or infinity", "look at the network's inputs")
    expect(
        bool((action.abs() <= 1 + 1e-4).all()),
        "actions in [-1, 1]",
        f"up to {action.abs().max():.3g}",
        "squash or clip them",
    )
    if isinstance(space, spaces.Discrete):
        expect(
            _close(action.sum(-1), torch.ones(ROWS)), "one-hot actions", action[0].tolist(), "use one_hot of the choice"
        )


def _random_values(part: spaces.Space, lead: tuple[int, int], generator: torch.Generator) -> Tensor:
    shape = (*lead, *(part.shape or ()))
    if part.dtype == np.uint8:
        return torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)
    assert isinstance(part, spaces.Box)
    low, high = (torch.as_tensor(np.nan_to_num(side, posinf=np.inf, neginf=-np.inf)) for side in (part.low, part.high))
    bounded = low.isfinite() & high.isfinite()
    uniform = low + torch.rand(shape, generator=generator) * (high - low)
    return torch.where(bounded, uniform, torch.randn(shape, generator=generator)).float()


def _wide(mask: Tensor, value: Tensor) -> Tensor:
    return mask.reshape(mask.shape + (1,) * (value.dim() - 2))


def _at(obs: Obs, t: int) -> Obs:
    return {name: value[:, t] for name, value in obs.items()}


def _equal(one: Any, two: Any) -> bool:
    return all(torch.equal(a, b) for a, b in zip(tree.leaves(one), tree.leaves(two), strict=True))


def _close(one: Any, two: Any) -> bool:
    pairs = zip(tree.leaves(one), tree.leaves(two), strict=True)
    return all(torch.allclose(a.float(), b.float(), rtol=1e-4, atol=1e-5) for a, b in pairs)


def _shapes(state: Any) -> Any:
    return [tuple(leaf.shape) for leaf in tree.leaves(state)]
