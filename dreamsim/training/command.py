"""Lightning's command line, put together for run folders."""

from __future__ import annotations

import importlib.util
import logging
import re
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lightning.pytorch import LightningDataModule, LightningModule, Trainer
from lightning.pytorch.cli import ArgsType, LightningArgumentParser, LightningCLI, Namespace, SaveConfigCallback
from lightning.pytorch.loggers import Logger

from dreamsim.options import Parser
from dreamsim.training.callbacks import Keep
from dreamsim.training.foresee import Foresee
from dreamsim.training.losses import LossFile
from dreamsim.training.start import (
    CHECKPOINT,
    DEFAULTS,
    SAVED_CONFIG,
    check_resumable,
    check_startable,
    check_there,
    discard_unlived,
)


class LearningParser(Parser, LightningArgumentParser):
    """Lightning's parser, raising instead of ending the program."""


class SavedConfig(SaveConfigCallback):
    """Saves what a run is; where it lies and how it was started is no part of that."""

    def __init__(self, parser: LightningArgumentParser, config: Namespace, *args: Any, **kwargs: Any) -> None:
        kept = config.clone()
        for name in ("run", "from", "resume"):
            kept.pop(name, None)
        super().__init__(parser, kept, *args, **kwargs)

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Wait: what cannot start, or go on, must not replace the config of what did."""

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Save, now that all parts are built and a resumed run has its weights."""
        super().setup(trainer, pl_module, "fit")


class Command(LightningCLI):
    """``dreamsim fit``: model and data by import path, everything of a run in one folder."""

    trainer: Trainer

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Add what concerns the run folder."""
        parser.add_argument(
            "--run", type=str | None, default=None, help="run folder; none: runs/NAME, NAME from the config's file name"
        )
        parser.add_argument(
            "--from", type=str | None, default=None, help="run folder whose trained world model this run starts from"
        )
        parser.add_argument(
            "--resume", action="store_true", help="continue the run in --run exactly where its last checkpoint stands"
        )

    @staticmethod
    def subcommands() -> dict[str, set[str]]:
        """Only learn: imagining and evaluating are commands of their own."""
        return {"fit": LightningCLI.subcommands()["fit"]}

    def parse_arguments(self, parser: LightningArgumentParser, args: ArgsType) -> None:
        """Parse without Lightning's warning about arguments that do not come from sys.argv."""
        assert isinstance(args, list)
        self.config = parser.parse_args(args)

    def instantiate_classes(self) -> None:
        """Build module and data; what one of them refuses is told as it said it, not as the parser lists it."""
        try:
            super().instantiate_classes()
        except ValueError as error:
            if error.__cause__ is None or "Union subtypes" not in str(error):
                raise
            raise error.__cause__ from None

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        """Build the trainer around the run folder."""
        folder = Path(self.config.fit.run)
        kwargs.setdefault("default_root_dir", str(folder))
        if self._get(self.config_init, "trainer").get("logger") in (None, True):
            kwargs["logger"] = _loggers(folder)
        return super().instantiate_trainer(**kwargs)

    def _prepare_subcommand_kwargs(self, subcommand: str) -> dict[str, Any]:
        prepared = super()._prepare_subcommand_kwargs(subcommand)
        if self.config.fit.resume:
            prepared["ckpt_path"] = prepared.get("ckpt_path") or str(Path(self.config.fit.run) / CHECKPOINT)
        return {**prepared, "weights_only": True}

    def _run_subcommand(self, subcommand: str) -> None:
        folder = self.config.fit.run
        try:
            super()._run_subcommand(subcommand)
        except OSError:
            callbacks = self.trainer.callbacks  # type: ignore[attr-defined]
            if any(isinstance(one, SavedConfig) and one.already_saved for one in callbacks):
                check_there(Path(folder))  # whatever could not be written, this is why
            raise
        except RuntimeError as error:
            if "loading state_dict" not in str(error):
                raise
            first = str(error).splitlines()[1].strip()
            raise ValueError(
                f"{folder}/{CHECKPOINT} does not fit this config: {first} Resume with the sizes it was trained with: "
                f"dreamsim fit --run {folder} --resume"
            ) from error


def learn(arguments: Sequence[str]) -> int:
    """Run fit with command-line arguments, the command's name first; return the exit code, 130 where Ctrl-C saved."""
    quieten()
    given = list(arguments)
    asks = any(re.match(r"-h$|--([\w.]+\.)?help\b|--print_config\b", one) for one in given)
    folder = None if asks else run_folder(given)
    given = given if folder is None else with_folder(given, folder)
    fresh = folder is not None and not folder.exists()
    try:
        command = Command(
            LightningModule,
            LightningDataModule,
            subclass_mode_model=True,
            subclass_mode_data=True,
            save_config_callback=SavedConfig,
            save_config_kwargs={"config_filename": SAVED_CONFIG, "overwrite": True},
            trainer_defaults={**DEFAULTS, "logger": None, "callbacks": Foresee()},
            seed_everything_default=0,
            auto_configure_optimizers=False,
            parser_class=LearningParser,
            parser_kwargs={"prog": "dreamsim"},
            args=given,
        )
    except BaseException:
        if fresh and folder is not None:
            discard_unlived(folder)
        raise
    callbacks = command.trainer.callbacks  # type: ignore[attr-defined]
    return 130 if any(isinstance(one, Keep) and one.asked for one in callbacks) else 0


def quieten() -> None:
    """Silence Lightning's advertisements and notices meant for its own authors; nothing else."""
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", message=".*LeafSpec.*deprecated")
    warnings.filterwarnings("ignore", message=".*smaller than the logging interval")
    warnings.filterwarnings("ignore", message=".*have no `validation_step`")  # a policy has nothing to hold out
    warnings.filterwarnings("ignore", message=".*in eval mode at the start of training")  # the frozen world
    warnings.filterwarnings("ignore", message=".*does not have many workers")  # said by those who want them: workers


def run_folder(arguments: Sequence[str]) -> Path:
    """Return the run folder that arguments name; without ``--run`` the first free one of runs/NAME, runs/NAME-2, ..."""
    run, config = option(arguments, "--run"), option(arguments, "--config") or option(arguments, "-c")
    if run is not None:
        return Path(run)
    if "--resume" in arguments:
        raise FileNotFoundError("--resume continues the run in a folder; name it: --run runs/NAME")
    wanted = Path("runs") / (Path(config).stem if config else "run")
    return _free(wanted)


def with_folder(arguments: list[str], folder: Path) -> list[str]:
    """Return arguments that name the run folder and its saved config where no other is named.

    Refuses to write a new run over an old one, and to continue what cannot be continued.
    """
    resume, config = "--resume" in arguments, option(arguments, "--config") or option(arguments, "-c")
    (check_resumable if resume else check_startable)(folder)
    if config is None and resume and not (folder / SAVED_CONFIG).is_file():
        raise FileNotFoundError(
            f"{folder} has lost its {SAVED_CONFIG}; name the config it was started with: --config FILE"
        )
    if config is None and (folder / SAVED_CONFIG).is_file():
        arguments = [arguments[0], "--config", str(folder / SAVED_CONFIG), *arguments[1:]]
    if option(arguments, "--run") is None:
        arguments = [*arguments, "--run", str(folder)]
    if source := option(arguments, "--from"):
        arguments = [*arguments, f"--model.init_args.source={source}"]
    return arguments


def _free(folder: Path) -> Path:
    number, found = 1, folder
    while found.exists():
        number += 1
        found = folder.with_name(f"{folder.name}-{number}")
    if number > 1:
        print(f"{folder} exists; this run goes to {found}", file=sys.stderr)
    return found


def option(arguments: list[str], option: str) -> str | None:
    """Return the last value given for an option, as ``--option value`` or ``--option=value``."""
    found = None
    for place, argument in enumerate(arguments):
        if argument == option and place + 1 < len(arguments):
            found = arguments[place + 1]
        elif argument.startswith(f"{option}="):
            found = argument.partition("=")[2]
    return found


def _loggers(folder: Path) -> list[Logger]:
    loggers: list[Logger] = [LossFile(folder)]
    if importlib.util.find_spec("tensorboard") is not None:
        from lightning.pytorch.loggers import TensorBoardLogger

        loggers.append(TensorBoardLogger(folder, name="tensorboard", version=""))
    return loggers
