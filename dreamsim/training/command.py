"""Lightning's command line, put together for run folders."""

from __future__ import annotations

import importlib.util
import logging
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lightning.pytorch import LightningDataModule, LightningModule, Trainer
from lightning.pytorch.cli import ArgsType, LightningArgumentParser, LightningCLI
from lightning.pytorch.loggers import Logger

from dreamsim.options import Parser
from dreamsim.training.foresee import Foresee
from dreamsim.training.losses import LossFile
from dreamsim.training.start import DEFAULTS

SAVED_CONFIG = "config.yaml"
CHECKPOINT = "last.ckpt"


class LearningParser(Parser, LightningArgumentParser):
    """Lightning's parser, raising instead of ending the program."""


class Command(LightningCLI):
    """``dreamsim fit|validate|test``: model and data by import path, everything of a run in one folder."""

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
        """Leave out predict: imagining and evaluating are commands of their own."""
        return {name: skip for name, skip in LightningCLI.subcommands().items() if name != "predict"}

    def parse_arguments(self, parser: LightningArgumentParser, args: ArgsType) -> None:
        """Parse without Lightning's warning about arguments that do not come from sys.argv."""
        assert isinstance(args, list)
        self.config = parser.parse_args(args)

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        """Build the trainer around the run folder."""
        options = self.config[self.subcommand]
        folder = Path(options["run"])
        _check_folder(folder, starts=self.subcommand == "fit" and not options["resume"])
        kwargs.setdefault("default_root_dir", str(folder))
        if self._get(self.config_init, "trainer").get("logger") in (None, True):
            kwargs["logger"] = _loggers(folder)
        return super().instantiate_trainer(**kwargs)

    def _prepare_subcommand_kwargs(self, subcommand: str) -> dict[str, Any]:
        prepared = super()._prepare_subcommand_kwargs(subcommand)
        options = self.config[subcommand]
        if options["resume"] or subcommand != "fit":
            prepared["ckpt_path"] = prepared.get("ckpt_path") or str(Path(options["run"]) / CHECKPOINT)
        return {**prepared, "weights_only": True}


def learn(arguments: Sequence[str]) -> None:
    """Run fit, validate or test with command-line arguments, the command's name first."""
    # What remains are Lightning's advertisements and a notice meant for its own authors.
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", message=".*LeafSpec.*deprecated")
    warnings.filterwarnings("ignore", message=".*smaller than the logging interval")
    Command(
        LightningModule,
        LightningDataModule,
        subclass_mode_model=True,
        subclass_mode_data=True,
        save_config_kwargs={"config_filename": SAVED_CONFIG, "overwrite": True},
        trainer_defaults={**DEFAULTS, "logger": None, "callbacks": Foresee()},
        seed_everything_default=0,
        auto_configure_optimizers=False,
        parser_class=LearningParser,
        parser_kwargs={"prog": "dreamsim"},
        args=with_folder(list(arguments)),
    )


def with_folder(arguments: list[str]) -> list[str]:
    """Return arguments that name the run folder, and for a run that exists its saved config.

    Without ``--run`` the folder is the first free one of runs/NAME, runs/NAME-2, ...
    """
    if "--help" in arguments or "-h" in arguments:
        return arguments
    run, config = _value(arguments, "--run"), _value(arguments, "--config") or _value(arguments, "-c")
    if run is None:
        if "--resume" in arguments:
            raise FileNotFoundError("--resume continues the run in a folder; name it: --run runs/NAME")
        run = str(_free(Path("runs") / (Path(config).stem if config else "run")))
        arguments = [*arguments, "--run", run]
    elif config is None and (Path(run) / SAVED_CONFIG).is_file():
        arguments = [arguments[0], "--config", str(Path(run) / SAVED_CONFIG), *arguments[1:]]
    if source := _value(arguments, "--from"):
        arguments = [*arguments, f"--model.init_args.source={source}"]
    return arguments


def _check_folder(folder: Path, starts: bool) -> None:
    """Refuse to write a new run over an old one, and to continue one that has not saved yet."""
    saved = (folder / CHECKPOINT).is_file()
    if starts and (saved or (folder / "store").exists()):
        unsaved = "another process may be training in it; if none is, it never saved: delete it"
        cure = f"continue it with --run {folder} --resume" if saved else unsaved
        raise FileExistsError(f"{folder} already holds a run; {cure}, or name another folder with --run")
    if not starts and not saved:
        raise FileNotFoundError(f"{folder} has no {CHECKPOINT} to go on from; start the run without --resume")


def _free(folder: Path) -> Path:
    number, found = 1, folder
    while found.exists():
        number += 1
        found = folder.with_name(f"{folder.name}-{number}")
    return found


def _value(arguments: list[str], option: str) -> str | None:
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
