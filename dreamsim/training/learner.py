"""One gradient step, and a round of them: the whole of learning, without Lightning."""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Callable, Iterable, Iterator
from copy import deepcopy
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from dreamsim.core import tree
from dreamsim.core.protocols import find_power
from dreamsim.core.random import Stream
from dreamsim.core.types import Learned, Segment, State
from dreamsim.training.flat import Flat
from dreamsim.training.objectives.protocol import Unfolds


class NotFinite(ArithmeticError):
    """A loss or a parameter became NaN or infinite."""


class Report(NamedTuple):
    """What a round of updates did."""

    metrics: dict[str, float]  # means over the round
    gradient_steps: int
    imagined_steps: int
    seconds: dict[str, float]  # by phase: data, learn, imagine


class Learner:
    """Improves a model, a policy and what judges it, one batch at a time.

    ``objective`` None: only the model learns. ``learn_model`` False: the model is frozen and
    only the objective and policy learn. ``average`` in [0, 1) is the share kept of the
    averaged policy ``steady`` at each step; 0: ``steady`` is the policy itself. Random
    numbers come from ``stream``. ``compiled`` sends the losses through ``torch.compile``:
    other last bits, and a minute or two before the first step.
    """

    def __init__(
        self,
        model: nn.Module,
        policy: nn.Module | None = None,
        objective: nn.Module | None = None,
        *,
        optimiser: Callable[[list[dict[str, Any]]], torch.optim.Optimizer] | None = None,
        learn_model: bool = True,
        rate: float = 3e-4,
        clip: float = 20.0,
        average: float = 0.998,
        seed: int = 0,
        device: torch.device | str = "cpu",
        compiled: bool = False,
    ) -> None:
        prepare: Callable[[Any], Any] = functools.partial(torch.compile, dynamic=False) if compiled else lambda f: f
        self._model_loss = prepare(model.loss)
        self._judge = None if objective is None else prepare(objective.loss)
        self.model, self.policy, self.objective = model, policy, objective
        average = average if policy is not None and any(True for _ in policy.parameters()) else 0.0
        self.learn_model, self.average = learn_model, average
        self.steady = deepcopy(policy).requires_grad_(False) if average else policy
        self.stream = Stream(seed, device)
        whole = {"name": "model", "params": list(model.parameters()), "lr": rate, "clip": clip, "clip_name": "model"}
        groups = [whole] if objective is None else objective.groups(model, policy)
        self._flats, groups = _flatten_groups(groups, [] if learn_model else list(model.parameters()))
        self.optimiser = (optimiser or _adam)(groups)
        self._rates = [group["lr"] for group in self.optimiser.param_groups]
        if min(self._rates) <= 0:
            raise ValueError(f"learning rates must be above 0, got {min(self._rates)}")

    def set_rate(self, share: float) -> None:
        """Multiply every group's learning rate by ``share`` of its first value."""
        for group, rate in zip(self.optimiser.param_groups, self._rates, strict=True):
            group["lr"] = rate * share

    def parts(self, batch: Segment) -> Iterator[Segment]:
        """Yield what each gradient step on a batch learns from: itself, or what the objective unfolds it to."""
        unfold = find_power(self.objective, Unfolds)
        if unfold is None:
            yield batch
            return
        with torch.no_grad():
            learned = _with_states(self.model, batch, self.model.loss(batch))
        yield from unfold(self.model, self.policy, batch, learned)  # outside: a gradient step follows each

    def update(self, batch: Segment, seconds: dict[str, float] | None = None) -> tuple[dict[str, Tensor], int, State]:
        """Take one gradient step; return scalars without graph, imagined steps, and beliefs to store or None."""
        begin = time.perf_counter()
        with torch.set_grad_enabled(self.learn_model):
            learned = self._model_loss(batch)
        losses = dict(learned.losses) if self.learn_model else {}
        scalars: dict[str, Tensor] = {}
        imagined = 0
        middle = time.perf_counter()
        if self._judge is not None:
            learned = _with_states(self.model, batch, learned)
            judged = self._judge(self.model, self.policy, batch, learned)
            losses |= judged.losses
            scalars |= judged.metrics
            imagined = judged.imagined
        after = time.perf_counter()
        for flat in self._flats:
            flat.hold()
        torch.stack(list(losses.values())).sum().backward()
        self._step()
        if seconds is not None:
            seconds["imagine"] = seconds.get("imagine", 0.0) + after - middle
            seconds["learn"] = seconds.get("learn", 0.0) + middle - begin + time.perf_counter() - after
        beliefs = learned.states if learned.observed is None else learned.observed  # states may be dreamt open loop
        return scalars | {name: value.detach() for name, value in losses.items()}, imagined, beliefs

    def _step(self) -> None:
        _share_gradients(self._flats)
        _clip(self._flats, self.optimiser.param_groups)
        self.optimiser.step()
        for flat in self._flats:
            flat.grad.zero_()
        if self.objective is not None:
            self.objective.settle()
        if self.average:
            with torch.no_grad():
                ours, theirs = list(self.steady.parameters()), list(self.policy.parameters())
                torch._foreach_lerp_(ours, theirs, 1 - self.average)


def run_round(
    learner: Learner, batches: Iterable[Segment], write: Callable[[Tensor, State], None] | None = None
) -> Report:
    """Update ``learner`` on each batch; ``write(index, states)`` stores beliefs where it is given.

    Raises NotFinite, naming the loss and the first bad parameter, before anything of the
    round is saved.
    """
    kept: list[dict[str, Tensor]] = []
    seconds: dict[str, float] = {"data": 0.0}
    imagined = 0
    with learner.stream:
        stream = itertools.chain.from_iterable(map(learner.parts, batches))
        while True:
            begin = time.perf_counter()
            batch = next(stream, None)
            seconds["data"] += time.perf_counter() - begin
            if batch is None:
                break
            try:
                scalars, steps, states = learner.update(batch, seconds)
            except RuntimeError as error:
                _blame(batch, error)
                raise
            imagined += steps
            kept.append(scalars)
            if write is not None and states is not None:
                write(batch.index, tree.detach(states))
    metrics = _means(kept)
    _check_finite(learner, metrics)
    return Report(metrics, len(kept), imagined, seconds)


def _with_states(model: Any, batch: Segment, learned: Learned) -> Learned:
    """Complete what a model left out: its beliefs by start/update, and those of reality without graph."""
    states = learned.states
    if states is None:
        state = model.start({name: value[:, 0] for name, value in batch.obs.items()})
        state = state if batch.before is None else batch.before.over(state)
        steps = [state]
        for t in range(batch.action.shape[1]):
            state = model.update(
                state, batch.action[:, t], {name: value[:, t + 1] for name, value in batch.obs.items()}
            )
            steps.append(state)
        states = tree.stack(steps, 1)
    observed = learned.observed if learned.observed is not None else tree.detach(states)
    return learned._replace(states=states, observed=observed)


def _flatten_groups(
    groups: list[dict[str, Any]], frozen: list[nn.Parameter]
) -> tuple[list[Flat], list[dict[str, Any]]]:
    left_out = {id(p) for p in frozen}
    flats, made = [], []
    for group in groups:
        parameters = [p for p in group["params"] if id(p) not in left_out and p.requires_grad]
        if parameters:
            flats.append(Flat(parameters))
            made.append({**group, "params": [flats[-1].value]})
    return flats, made


def _adam(groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
    return torch.optim.Adam(groups, fused=True)


def _clip(flats: list[Flat], groups: list[dict[str, Any]]) -> None:
    """Scale gradients so that each named family of groups has at most its norm."""
    families: dict[str, list[int]] = {}
    for place, group in enumerate(groups):
        families.setdefault(group.get("clip_name", group.get("name", str(place))), []).append(place)
    for members in families.values():
        limit = groups[members[0]].get("clip")
        if limit is not None:
            norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(flats[m].grad) for m in members]))
            share = (limit / (norm + 1e-6)).clamp(max=1.0)
            for member in members:
                flats[member].grad.mul_(share)
    for flat, group in zip(flats, groups, strict=True):
        if "adaptive_clip" in group:
            flat.clip_each(group["adaptive_clip"])


def _share_gradients(flats: list[Flat]) -> None:
    """Average gradients over the processes of a distributed run."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        world = torch.distributed.get_world_size()
        for flat in flats if world > 1 else []:
            torch.distributed.all_reduce(flat.grad)
            flat.grad.div_(world)


def _means(kept: list[dict[str, Tensor]]) -> dict[str, float]:
    if not kept:
        return {}
    names = list(kept[0])
    table = torch.stack([torch.stack([row[name].float() for name in names]) for row in kept]).mean(0)
    return dict(zip(names, table.tolist(), strict=True))


def _blame(batch: Segment, error: RuntimeError) -> None:
    """Raise NotFinite where a failed update is the fault of a number in the batch."""
    fields = {**{f"observation {name!r}": value for name, value in batch.obs.items()}, "action": batch.action}
    for name, value in {**fields, "reward": batch.reward}.items():
        if value is not None and not torch.isfinite(value).all():
            row = int((~torch.isfinite(value)).nonzero()[0, 0])
            raise NotFinite(
                f"the {name} of a window of episode {int(batch.index[row, 0])} is NaN or infinite; "
                "leave that episode out of the recordings, or mend it"
            ) from error


def _check_finite(learner: Learner, metrics: dict[str, float]) -> None:
    bad = [name for name, value in metrics.items() if not abs(value) < float("inf")]
    if not bad:
        return
    owners = {"model": learner.model, "policy": learner.policy, "objective": learner.objective}
    for owner, module in owners.items():
        for name, parameter in module.named_parameters() if module is not None else ():
            if not torch.isfinite(parameter).all():
                raise NotFinite(
                    f"{', '.join(bad)} became NaN or infinite; so did the parameter {owner}.{name}. "
                    "A checkpoint kept before is good: resume from it, or start again, with a lower rate"
                )
    raise NotFinite(f"{', '.join(bad)} became NaN or infinite on a batch; check the rewards and observations recorded")
