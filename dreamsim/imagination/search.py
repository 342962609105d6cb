"""The one kernel of all planners: propose plans, score their dreams, refit the belief about good ones, and again."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from dreamsim.core import tree
from dreamsim.core.protocols import find_power
from dreamsim.core.types import Act, Obs, State
from dreamsim.imagination.imagine import Script, imagine
from dreamsim.imagination.proposals import Actions, at_least_one
from dreamsim.imagination.refit import BAD, Fitted, Scored
from dreamsim.imagination.score import Return, leaf_of


class Lifts(Protocol):
    """Power of a world made around a model: take over the model's state."""

    def lift(self, state: State) -> State:
        """Return this world's state (B, ...) from one of the model it is made of."""


class Drawn(nn.Module):
    """Takes one of the elite, by its weight, with noise of the fitted spread: how TD-MPC2 explores."""

    def forward(self, actions: Actions, found: Fitted, best: Tensor) -> Tensor:
        """Return actions (B, A)."""
        chosen = torch.multinomial(found.weight, 1)[:, 0]
        elite = found.elite.plans[torch.arange(len(chosen), device=chosen.device), chosen, 0]
        return actions.disturb(elite, found.std[:, 0])


class Centre(nn.Module):
    """Takes the fitted mean, and the likeliest option of each choice."""

    def forward(self, actions: Actions, found: Fitted, best: Tensor) -> Tensor:
        """Return actions (B, A)."""
        return actions.harden(found.mean[:, 0])


class Foremost(nn.Module):
    """Takes the best plan that was scored."""

    def forward(self, actions: Actions, found: Fitted, best: Tensor) -> Tensor:
        """Return actions (B, A) from the best plans (B, H, A)."""
        return actions.harden(best[:, 0])


class Search(nn.Module):
    """The kernel: propose plans of H actions, score their dreams, refit the belief about good ones, and again.

    All B rows and all plans are dreamt in one batch; rows know nothing of each other. Memory is
    ``{"mean": (B, H, A)}``, and ``"kept"`` (B, K, H, A) where elites are kept; both are moved on by one
    step at the next decision, and rows marked ``first`` start from nothing. ``proposals`` of the
    ``samples`` are dreamt by ``policy``; they, and the best ``keep`` plans of an iteration, stay among
    the plans of later iterations with the score they once got. A plan whose score is no finite number
    never wins against one whose score is.

    Args:
        model: what the states belong to.
        policy: proposes plans and, with a power ``value(view)``, judges their ends; None: neither.
        actions: the action space, or A for numbers in [-1, 1].
        propose, refit: see ``proposals`` and ``refit``.
        greedy, explore: make what ``mode`` and ``plan`` take: ``Centre``, ``Foremost`` or ``Drawn``.
        std: spread of the numbers of a first proposal.
        discount, value: of the score ``Return``; ``value`` None: the policy's own, if any.
        score: makes another score without arguments, from a Rollout of N plans to (N,).
        world: makes, around the model, the world that plans are dreamt in, such as
            ``worldmodels.ensemble.Particles``; None: the model itself.
        milliseconds: time for a decision, in place of a number of iterations. At least one is done, none
            is begun that would probably last longer, and ``Act.trace`` counts them in ``iterations`` (B,).
            What is found then depends on the machine: equal seeds no longer mean equal plans.
        compiled: send dream and score through torch.compile, half a minute before the first decision.
    """

    def __init__(
        self,
        model: Any,
        policy: Any | None,
        actions: Actions,
        propose: nn.Module,
        refit: nn.Module,
        horizon: int,
        iterations: int,
        std: float,
        greedy: Callable[[], nn.Module] = Centre,
        explore: Callable[[], nn.Module] = Drawn,
        proposals: int = 0,
        keep: int = 0,
        discount: float = 0.99,
        value: Callable[[Obs], Tensor] | None = None,
        score: Callable[[], nn.Module] | None = None,
        world: Callable[[nn.Module], nn.Module] | None = None,
        milliseconds: float | None = None,
        compiled: bool = False,
    ) -> None:
        super().__init__()
        at_least_one(iterations=iterations)
        self.model: Any = model
        self.policy: Any = policy
        self.actions = actions
        self.world: Any = model if world is None else world(model)
        self._lift = None if world is None else find_power(self.world, Lifts)
        self.propose, self.greedy, self.explore = propose, greedy(), explore()
        self.refit: Any = refit
        self.horizon, self.iterations, self.std = horizon, iterations, std
        self.proposals, self.keep, self.milliseconds = proposals if policy is not None else 0, keep, milliseconds
        self.score = Return(discount, value if value is not None else leaf_of(policy)) if score is None else score()
        self._value = torch.compile(self._dream) if compiled else self._dream

    def plan(self, state: State, memory: Any = None, first: Tensor | None = None) -> Act:
        """Return an action (B, A) that explores around the best plans from ``state`` (B, ...)."""
        return self._act(self.explore, state, memory, first)

    def mode(self, state: State, memory: Any = None, first: Tensor | None = None) -> Act:
        """Return the action (B, A) that the search takes for the best."""
        return self._act(self.greedy, state, memory, first)

    @torch.no_grad()
    def _act(self, choose: nn.Module, state: State, memory: Any, first: Tensor | None) -> Act:
        found, best, turns = self._search(state, memory, first)
        action = choose(self.actions, found, best.plans[:, 0])
        remembered = {"mean": found.mean}
        if self.keep:
            remembered["kept"] = found.elite.plans[:, : self.keep]
        counted = {} if self.milliseconds is None else {"iterations": action.new_full((len(action),), turns)}
        return Act(action, remembered, counted)

    def _search(self, state: State, memory: Any, first: Tensor | None) -> tuple[Fitted, Scored, int]:
        """Return the last belief, the best plan (B, 1, H, A) that was scored, and how many iterations were done."""
        begin = time.perf_counter()
        starts = Starts(state if self._lift is None else self._lift(state))
        mean, std = self._begin(starts, memory, first)
        standing = self._policy_plans(starts)
        again = self._kept(mean, memory, first)
        found: Any = None
        best: Scored | None = None
        for turn in self._turns(begin, mean.device):
            plans = self.propose(mean, std, None if found is None else found.carried, turn)
            scored = self._judge(starts, plans if again is None else torch.cat([again, plans], 1))
            found = self.refit(mean, std, scored.join(standing), None if found is None else found.memory)
            mean, std, again = found.mean, found.std, None
            if self.keep:
                standing = found.elite.best(self.keep)
            best = found.elite.best(1).join(best).best(1)
        assert best is not None  # there is at least one turn
        return found, best, turn + 1

    def _turns(self, begin: float, device: torch.device) -> Iterator[int]:
        """Yield the numbers of iterations: as many as asked for, or as there is time for since ``begin``."""
        if self.milliseconds is None:
            yield from range(self.iterations)
            return
        longest, before = 0.0, time.perf_counter()
        for turn in itertools.count():
            yield turn
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            now = time.perf_counter()
            longest, before = max(longest, now - before), now
            if now - begin + longest > self.milliseconds / 1000:
                return

    # --- where a search begins

    def _begin(self, starts: Starts, memory: Any, first: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return mean and std (B, H, A) of the first proposal: the last mean, moved on by one step."""
        fresh = self.actions.neutral.expand(starts.rows, self.horizon, -1)
        std = torch.full_like(fresh, self.std)
        if memory is None:
            return fresh, std
        moved = torch.cat([memory["mean"][:, 1:], fresh[:, :1]], 1)
        return moved if first is None else tree.where(first, fresh, moved), std

    def _kept(self, mean: Tensor, memory: Any, first: Tensor | None) -> Tensor | None:
        """Return the elites (B, K, H, A) of the last decision moved on by one step; rows that begin have mere draws."""
        if memory is None or not self.keep:
            return None
        kept = memory["kept"]
        noise = torch.randn_like(kept)
        draws = self.actions.draw(mean, torch.full_like(mean, self.std), noise)
        moved = torch.cat([kept[:, :, 1:], draws[:, :, -1:]], 2)
        return moved if first is None else tree.where(first, draws, moved)

    def _policy_plans(self, starts: Starts) -> Scored | None:
        """Return the policy's own plans; the dream that makes them scores them, too."""
        if not self.proposals:
            return None
        dreamt = imagine(self.world, self.policy, starts.spread(self.proposals), self.horizon)
        shape = (starts.rows, self.proposals)
        return Scored(dreamt.action.unflatten(0, shape), _finite(self.score(dreamt)).unflatten(0, shape))

    # --- scoring

    def _judge(self, starts: Starts, plans: Tensor) -> Scored:
        rows, count = plans.shape[:2]
        with torch.set_grad_enabled(self.refit.differentiates):
            plans = plans.requires_grad_(self.refit.differentiates)
            score = self._value(starts.spread(count), plans.flatten(0, 1)).unflatten(0, (rows, count))
        return Scored(plans, score)

    def _dream(self, state: State, plans: Tensor) -> Tensor:
        return _finite(self.score(imagine(self.world, Script(plans), state, self.horizon)))


class Starts:
    """The states (B, ...) a search begins in, repeated for so many plans each; made once for each number."""

    def __init__(self, state: State) -> None:
        self.rows = tree.batch_size(state)
        self._state = state
        self._made: dict[int, State] = {}

    def spread(self, count: int) -> State:
        """Return states (B count, ...), those of a row side by side; nothing is copied for a single row."""
        if count not in self._made:
            self._made[count] = tree.map(lambda leaf: _spread(leaf, count), self._state)
        return self._made[count]


def _spread(leaf: Tensor, count: int) -> Tensor:
    return leaf[:, None].expand(-1, count, *leaf.shape[1:]).flatten(0, 1)


def _finite(score: Tensor) -> Tensor:
    return torch.where(torch.isfinite(score), score, BAD)
