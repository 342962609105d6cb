"""Acting by looking ahead: the policy that plans on real observations, and the planners by name."""

from __future__ import annotations

from typing import Any

import torch
from gymnasium import spaces
from torch import Tensor, nn

from dreamsim.core.protocols import Modes, find_power
from dreamsim.core.types import Act, Obs
from dreamsim.imagination.imagine import believe
from dreamsim.imagination.proposals import Actions, Carried, Fresh, Noise, at_least_one
from dreamsim.imagination.refit import Ascend, Reweigh
from dreamsim.imagination.search import Foremost, Search


class Deliberate(nn.Module):
    """Acts on real observations by planning from the model's belief.

    ``act`` explores as the planner does, ``mode`` takes its best. Memory is
    ``{"state", "action", "plan"}``: the belief, the last action asked for, and what the planner
    wants to remember.
    """

    def __init__(self, model: Any, planner: Any) -> None:
        super().__init__()
        self.model = model
        self.planner = planner

    def act(self, view: Obs, memory: Any = None, first: Tensor | None = None, applied: Tensor | None = None) -> Act:
        """Return the first action (B, A) of a plan from real observations (B, ...)."""
        return self._act(self.planner.plan, view, memory, first, applied)

    def mode(self, view: Obs, memory: Any = None, first: Tensor | None = None, applied: Tensor | None = None) -> Act:
        """Return the first action (B, A) of the best plan, where the planner tells it from one that explores."""
        return self._act(find_power(self.planner, Modes) or self.planner.plan, view, memory, first, applied)

    @torch.no_grad()
    def _act(self, choose: Any, view: Obs, memory: Any, first: Tensor | None, applied: Tensor | None) -> Act:
        state = believe(self.model, view, memory, first, applied)
        act = choose(state, None if memory is None else memory["plan"], first)
        return act._replace(memory={"state": state, "action": act.action, "plan": act.memory})


class MPPI(Search):
    """Model predictive path integral planning with policy proposals, as TD-MPC2 plans.

    Of ``samples`` plans ``proposals`` are dreamt by the policy; the others are drawn from a normal around
    the last mean plan, shifted by one step, with std ``std_high``. The best ``elites``, weighted
    by exp(temperature * (score - best)), give the next normal, its std within [std_low, std_high].
    ``plan`` draws an elite by weight and adds noise of the last std; ``mode`` takes the mean.

    Source: TD-MPC2 (Hansen et al. 2024), section 3.3, and the released code, whose settings are the
    defaults (8 iterations where A is 20 or more). Give the leaf by ``value``, such as ``score.Leaf``. Deviations:
    the released code draws an elite in evaluation, too, without noise; it scores the policy's plans anew
    in each iteration, which only draws the leaf's action and critics again; and there a score that is no
    number counts 0.
    """

    def __init__(
        self,
        model: Any,
        policy: Any | None,
        actions: spaces.Space | int,
        horizon: int = 3,
        samples: int = 512,
        elites: int = 64,
        proposals: int = 24,
        iterations: int = 6,
        temperature: float = 0.5,
        std_low: float = 0.05,
        std_high: float = 2.0,
        **shared: Any,
    ) -> None:
        layout = Actions(actions)
        proposals = 0 if policy is None else proposals
        _check_elites(elites, samples)
        if not 0 <= proposals < samples:
            raise ValueError(f"proposals must be fewer than the {samples} samples, got {proposals}")
        propose = Fresh(layout, Noise(horizon), samples - proposals)
        refit = Reweigh(layout, elites, temperature, 0.0, std_low, std_high)
        super().__init__(
            model, policy, layout, propose, refit, horizon, iterations, std_high, proposals=proposals, **shared
        )


class CEM(Search):
    """The cross-entropy method: the mean and spread of the ``elites`` best plans are the next proposal.

    ``mode`` takes the mean, ``plan`` an elite with noise. The mean itself is always among the
    plans. For one-hot actions this is categorical CEM: options are drawn by their share of the elite.
    Source: PETS (Chua et al. 2018), appendix A, without its bounds on the variance; the released LeWM and
    DINO-WM planners use 300 samples, 30 elites and up to 30 iterations.
    """

    def __init__(
        self,
        model: Any,
        policy: Any | None,
        actions: spaces.Space | int,
        horizon: int = 10,
        samples: int = 300,
        elites: int = 30,
        iterations: int = 10,
        std_low: float = 0.02,
        std_high: float = 1.0,
        momentum: float = 0.0,
        **shared: Any,
    ) -> None:
        layout = Actions(actions)
        _check_elites(elites, samples)
        propose = Fresh(layout, Noise(horizon), samples, centred=True)
        refit = Reweigh(layout, elites, 0.0, momentum, std_low, std_high)
        super().__init__(model, policy, layout, propose, refit, horizon, iterations, std_high, **shared)


class ICEM(Search):
    """iCEM: CEM with noise that is correlated along the plan, kept elites and ever fewer samples.

    Iteration i draws ``samples`` * ``decay`` ** -i plans, at least twice the elites. A share ``keep``
    of the elite goes on into the next iteration, and, shifted by one step, into the next decision.
    ``mode`` takes the best plan, not the mean. Kept elites keep their score, so in a model that
    draws its dreams at random a lucky one can stay: plan by CEM there.
    Source: Pinneri et al. 2020, algorithm 1 and its defaults. Deviation: the mean joins every
    iteration's plans instead of the last one's.
    """

    def __init__(
        self,
        model: Any,
        policy: Any | None,
        actions: spaces.Space | int,
        horizon: int = 10,
        samples: int = 128,
        elites: int = 10,
        iterations: int = 4,
        exponent: float = 2.0,
        decay: float = 1.25,
        keep: float = 0.3,
        momentum: float = 0.1,
        std_low: float = 0.02,
        std_high: float = 0.5,
        **shared: Any,
    ) -> None:
        layout = Actions(actions)
        _check_elites(elites, samples)
        propose = Fresh(layout, Noise(horizon, exponent), samples, decay, 2 * elites, centred=True)
        refit = Reweigh(layout, elites, 0.0, momentum, std_low, std_high)
        kept = max(1, round(keep * elites))
        super().__init__(
            model, policy, layout, propose, refit, horizon, iterations, std_high, greedy=Foremost, keep=kept, **shared
        )


class PredictiveSampling(Search):
    """Predictive sampling: draw plans around the last one, take the best, the last one included.

    The simplest planner, and the fastest a decision. Source: Howell et al. 2022, algorithm 1.
    """

    def __init__(
        self,
        model: Any,
        policy: Any | None,
        actions: spaces.Space | int,
        horizon: int = 10,
        samples: int = 128,
        iterations: int = 1,
        std: float = 0.3,
        **shared: Any,
    ) -> None:
        layout = Actions(actions)
        at_least_one(samples=samples)
        propose = Fresh(layout, Noise(horizon), samples, centred=True)
        refit = Reweigh(layout, 1, 0.0, 0.0, std, std)
        super().__init__(model, policy, layout, propose, refit, horizon, iterations, std, greedy=Foremost, **shared)


class Gradient(Search):
    """Gradient planning: ``samples`` plans climb their scores through the model by projected steps of Adam.

    One starts from the last plan, the others around it. Both ``plan`` and ``mode`` take the best plan that
    was scored. Numbers stay in [-1, 1]; the options of a choice stay on their simplex, are dreamt so,
    and the likeliest is taken in the end. Wants a model that is differentiable in its actions.
    """

    def __init__(
        self,
        model: Any,
        policy: Any | None,
        actions: spaces.Space | int,
        horizon: int = 10,
        samples: int = 16,
        iterations: int = 20,
        rate: float = 0.1,
        std: float = 0.5,
        **shared: Any,
    ) -> None:
        layout = Actions(actions)
        at_least_one(samples=samples)
        propose, refit = Carried(layout, Noise(horizon), samples), Ascend(layout, rate)
        super().__init__(
            model, policy, layout, propose, refit, horizon, iterations, std, greedy=Foremost, explore=Foremost, **shared
        )


def _check_elites(elites: int, samples: int) -> None:
    if not 0 < elites <= samples:
        raise ValueError(f"elites must be between 1 and the number of plans, got {elites} of {samples}")
