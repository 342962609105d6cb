"""World model and policy trained together while new experience arrives."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lightning
import torch
from gymnasium import spaces
from torch import nn

from dreamsim.core import tree
from dreamsim.core.protocols import FitsStatistics, KeepsBeliefs, Revises, find_power
from dreamsim.core.random import derive_seed
from dreamsim.core.run import describe, load, load_weights, save, view_space, weights
from dreamsim.data.module import Draws, Experience, at_least
from dreamsim.imagination.explore import Explorer, Noisy, Planned, Sampled
from dreamsim.imagination.imagine import Believer, Greedy
from dreamsim.imagination.plan import Deliberate
from dreamsim.training.callbacks import Collect, Evaluate, Keep, Progress, due
from dreamsim.training.learner import Learner, run_round
from dreamsim.training.objectives.protocol import Equips
from dreamsim.training.start import refuse_many

Factory = Callable[[spaces.Dict, spaces.Space], nn.Module]


class FitJoint(lightning.LightningModule):
    """Alternates rounds of living and learning; one Lightning batch is one round.

    Args:
        model: makes the world model from observation and action space.
        policy: makes the policy from the model's view space and the action space.
        objective: makes what judges and improves the policy, from the same two spaces; None: only the model learns.
        explore: wraps the policy for collecting; None: ``Noisy`` in a Box, ``Sampled`` in a Discrete space.
        planner: makes the planner that ``evaluate`` acts by from (model, policy, action space); None: the policy acts.
        plans: also plan while collecting and judging, as TD-MPC2 and PETS do; the planner then explores.
        optimiser: makes the optimiser from parameter groups; None: fused Adam.
        average: share kept of the averaged policy at each gradient step; that policy is evaluated and saved.
        cool_from: share of the run after which the learning rate falls, linearly.
        cool_to: share of the learning rate at the end of the run.
        source: run folder whose model the run starts from; None: new weights.
        threads: threads of torch on the CPU; one is the fastest for small networks, 0 leaves torch's own choice.
        compiled: send the losses through torch.compile; on two cores it pays beyond about 20,000 gradient steps.
    """

    def __init__(
        self,
        model: Factory,
        policy: Factory,
        objective: Factory | None,
        explore: Callable[[nn.Module], Explorer] | None = None,
        planner: Callable[[nn.Module, nn.Module, spaces.Space], nn.Module] | None = None,
        plans: bool = False,
        optimiser: Callable[[list[dict[str, Any]]], torch.optim.Optimizer] | None = None,
        average: float = 0.998,
        cool_from: float = 0.5,
        cool_to: float = 0.05,
        source: str | None = None,
        threads: int = 1,
        compiled: bool = False,
    ) -> None:
        super().__init__()
        at_least(0, threads=threads)
        if plans and planner is None:
            raise ValueError("plans asks to act by a planner, and none is named; name one, such as planner: MPPI")
        if plans and explore is not None:
            raise ValueError("with plans the planner explores by itself; leave explore out, or plans")
        self.threads, self.compiled = threads, compiled
        self.automatic_optimization = False
        self._make_model, self._make_policy, self._make_objective = model, policy, objective
        self._explore, self._planner, self._optimiser = explore, planner, optimiser
        self.plans = plans
        self.average, self.cool_from, self.cool_to, self.source = average, cool_from, cool_to, source
        self.gradient_steps, self.imagined_steps = 0, 0
        self.seconds: dict[str, float] = {}  # wall time by phase: environment, data, learn, imagine, evaluate
        self._begun = False  # whether a round with gradient steps has ended
        self._lived = 0.0  # seconds of training before this process
        self.model: nn.Module | None = None

    # --- building, once the spaces are known

    def setup(self, stage: str) -> None:
        """Build model, policy and objective for the data module's spaces."""
        if self.model is not None:
            return
        refuse_many(self.trainer)
        if self.threads:
            torch.set_num_threads(self.threads)
        codec = self.experience.codec
        self.model = self._make_model(codec.observation_space, codec.action_space)
        if self.source is not None:
            _copy_model(self.source, self.model)
        view = view_space(self.model, codec.observation_space)
        self.policy = self._make_policy(view, codec.action_space)
        self.objective = None if self._make_objective is None else self._make_objective(view, codec.action_space)
        self.seed = torch.initial_seed() & 0x7FFFFFFF

    def configure_callbacks(self) -> list[lightning.Callback]:
        """Collect, evaluate and keep between rounds, and show how far the run is."""
        return [Collect(), Evaluate(), Keep(), Progress()]

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Build the learner, now that the weights are on their device, and return its optimiser."""
        self.learner = Learner(
            self.model,
            self.policy,
            self.objective,
            optimiser=self._optimiser,
            average=self.average,
            seed=derive_seed(self.seed, "learn"),
            device=self.device,
            compiled=self.compiled,
        )
        # In a tuple, so that their weights, which are the model's and the policy's own, are not kept a second time.
        explorer = self._make_explorer(self.experience.codec.action_space).to(self.device)
        collecting = explorer if self.plans else Believer(self.model, explorer)
        self._acting = explorer, collecting, self._make_actor()
        return self.learner.optimiser

    @property
    def experience(self) -> Experience:
        """The run's data module."""
        data = self.trainer.datamodule  # type: ignore[attr-defined]
        if not isinstance(data, Experience):
            raise TypeError(f"FitJoint learns from dreamsim.data.module.Experience, got {type(data).__name__}")
        return data

    @property
    def collecting(self) -> nn.Module:
        """The exploring policy on real observations."""
        return self._acting[1]

    @property
    def actor(self) -> nn.Module:
        """The averaged policy, or the planner that knows it, acting without randomness on real observations."""
        return self._acting[2]

    @contextmanager
    def acting(self) -> Iterator[None]:
        """Hold all parts in evaluation mode, without dropout or random shifts of images."""
        self.eval()
        try:
            yield
        finally:
            self.train()

    # --- learning

    def training_step(self, batch: Draws, index: int) -> None:
        """Learn from the batches owed for what was just lived."""
        self._fit_statistics()
        self._revise()
        progress = self.progress
        self.learner.set_rate(_cooled(progress, self.cool_from, self.cool_to))
        keeps = find_power(self.model, KeepsBeliefs)
        write = self.experience.replay.write if keeps is not None and keeps() else None
        report = run_round(self.learner, (tree.to(b, self.device) for b in batch), write)
        self.gradient_steps += report.gradient_steps
        self.imagined_steps += report.imagined_steps
        for phase, seconds in report.seconds.items():
            self.spend(phase, seconds)
        if report.metrics:
            self.trainer.logger and self.trainer.logger.log_metrics(report.metrics, self.experience.collector.env_steps)

    def _fit_statistics(self) -> None:
        """Set the model's statistics once, from what was lived before the first gradient step.

        A model that was trained before keeps its own: its weights mean what they mean in those units.
        """
        fit = find_power(self.model, FitsStatistics)
        data = self.experience
        if fit is not None and self.source is None and self.gradient_steps == 0 and data.learning:
            fit(tree.to(data.replay.sample(1024, data.length), self.device))

    def _revise(self) -> None:
        """Let a model that chooses by data choose anew before each round of learning."""
        revise, data = find_power(self.model, Revises), self.experience
        if revise is not None and data.learning:
            revise(tree.to(data.replay.sample(1024, data.length), self.device))

    @property
    def progress(self) -> float:
        """Share of the run's environment steps that are taken."""
        return min(1.0, self.experience.collector.env_steps / self.experience.env_steps)

    def keep_now(self) -> bool:
        """Say whether a checkpoint is due: in good time, and as soon as there is something learned to lose."""
        begun, self._begun = self._begun, self.gradient_steps > 0
        return due(self.experience, self.experience.keep_every) or (self._begun and not begun)

    def anneal(self) -> None:
        """Tell the explorer how far the run is."""
        self._acting[0].anneal(self.progress, self.gradient_steps == 0)

    def spend(self, phase: str, seconds: float) -> None:
        """Add wall time to a phase."""
        self.seconds[phase] = self.seconds.get(phase, 0.0) + seconds

    # --- time and keeping

    def on_train_start(self) -> None:
        """Start the clock."""
        self._began = time.perf_counter()

    @property
    def wall_s(self) -> float:
        """Seconds of training so far, those before a resume included."""
        return self._lived + time.perf_counter() - self._began

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add counters, random numbers and the averaged policy: with Lightning's part, the whole instant."""
        checkpoint["dreamsim"] = {
            "gradient_steps": self.gradient_steps,
            "imagined_steps": self.imagined_steps,
            "seconds": dict(self.seconds),
            "wall_s": self.wall_s,
            "stream": self.learner.stream.state_dict(),
            "steady": {name: value.clone() for name, value in self.learner.steady.state_dict().items()},
            "global_random": torch.get_rng_state(),
            "experience": self.experience.instant(),
        }

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Go back to the instant of living; remember what the learner is given once it exists."""
        self._saved = checkpoint["dreamsim"]
        self.experience.go_back(self._saved.pop("experience"))
        if self.progress >= 1.0:
            taken = self.experience.collector.env_steps
            self.experience.teardown("fit")  # the store would stay locked for this process
            raise ValueError(
                f"this run has finished: it has taken {taken:,} environment steps of "
                f"{self.experience.env_steps:,}; go on with a larger --data.init_args.env_steps"
            )
        # How far the run is, our own counters say; Lightning's would call an extended run finished.
        checkpoint.pop("loops", None)
        self.gradient_steps, self.imagined_steps = self._saved["gradient_steps"], self._saved["imagined_steps"]
        self.seconds, self._lived = dict(self._saved["seconds"]), self._saved["wall_s"]

    def on_fit_start(self) -> None:
        """Give a resumed learner its random numbers, averaged policy and stored beliefs."""
        saved = self.__dict__.pop("_saved", None)
        if saved is None:
            return
        self.learner.stream.load_state_dict(saved["stream"])
        self.learner.steady.load_state_dict(saved["steady"])
        torch.set_rng_state(saved["global_random"].cpu())
        if self.experience.saved_beliefs:
            obs = {
                name: torch.zeros((1, *part.shape)) for name, part in self.experience.codec.observation_space.items()
            }
            self.experience.replay.load_beliefs(
                self.experience.saved_beliefs, self.model.start(tree.to(obs, self.device))
            )

    def save_run(self, folder: Path, about: dict[str, Any]) -> None:
        """Write what others load: ``run.json`` and ``model.safetensors``."""
        policy, make_policy = self._equipped(self.learner.steady)
        parts = {
            "model": describe(self._make_model),
            "policy": describe(make_policy),
            "environment": describe(self.experience.env),
        }
        if self._make_objective is not None:
            parts["objective"] = describe(self._make_objective)
        if self._planner is not None:
            parts["planner"] = describe(self._planner)
        codec = self.experience.codec
        save(
            folder,
            model=self.model,
            policy=policy,
            observation_space=codec.raw_observation_space,
            action_space=codec.raw_action_space,
            parts=parts,
            about={"seed": self.seed, "action_repeat": self.experience.repeat, **self.counters(), **about},
        )

    def counters(self) -> dict[str, Any]:
        """Return the run's counters and clocks."""
        return {
            "env_steps": self.experience.collector.env_steps,
            "gradient_steps": self.gradient_steps,
            "imagined_steps": self.imagined_steps,
            "wall_s": round(self.wall_s, 2),
            "seconds": {phase: round(value, 2) for phase, value in self.seconds.items()},
        }

    def _equipped(self, policy: nn.Module) -> tuple[nn.Module, Callable]:
        """Return a policy as the planner wants it, with what the objective knows of values, and its maker."""
        equip = None if self._planner is None else find_power(self.objective, Equips)
        return (policy, self._make_policy) if equip is None else equip(policy, self._make_policy)

    def _deliberate(self, policy: nn.Module) -> Deliberate:
        assert self._planner is not None
        planner = self._planner(self.model, self._equipped(policy)[0], self.experience.codec.raw_action_space)
        return Deliberate(self.model, planner).to(self.device)

    def _make_actor(self) -> nn.Module:
        steady = self.learner.steady
        return Greedy(self._deliberate(steady) if self.plans else Believer(self.model, Greedy(steady)))

    def _make_explorer(self, action_space: spaces.Space) -> Explorer:
        if self.plans:
            return Planned(self._deliberate(self.policy))
        if self._explore is not None:
            return self._explore(self.policy)
        if isinstance(action_space, spaces.Discrete):
            return Sampled(self.policy, discrete=True)
        return Noisy(self.policy)


def _cooled(progress: float, start: float, end: float) -> float:
    """Return the share of the learning rate at ``progress``: 1 until ``start``, then linearly to ``end``."""
    if progress <= start:
        return 1.0
    return 1.0 + (end - 1.0) * (progress - start) / (1.0 - start)


def _copy_model(source: str, model: nn.Module) -> None:
    run = load(source)
    if type(run.model) is not type(model):
        raise ValueError(
            f"{source} holds a {type(run.model).__name__}, this run builds a {type(model).__name__}; "
            "name the same model in the config"
        )
    load_weights(model, weights(run.model), source)
