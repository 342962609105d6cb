"""The command: help without waiting, one clear line for a mistake, a run from end to end."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from dreamsim import cli
from dreamsim.core.run import load

ROOT = Path(__file__).parents[1]

CONFIG = {
    "seed_everything": 1,
    "model": {
        "class_path": "dreamsim.training.joint.FitJoint",
        "init_args": {
            "model": {
                "class_path": "worldmodels.decoder_free.DecoderFree",
                "init_args": {"latent": 16, "width": 16, "encoder_width": 16, "bins": 21},
            },
            "policy": {"class_path": "worldmodels.actors.SquashedGaussian", "init_args": {"width": 16}},
            "objective": {
                "class_path": "dreamsim.training.objectives.policy_prior.PolicyPrior",
                "init_args": {
                    "critic": {"class_path": "worldmodels.actors.QEnsemble", "init_args": {"width": 16, "bins": 21}},
                    "imagined": 1,
                },
            },
        },
    },
    "data": {
        "class_path": "dreamsim.data.module.Experience",
        "init_args": {
            "env": {"class_path": "dreamsim.envs.toy.Line", "init_args": {"end": 20}},
            "env_steps": 320,
            "warmup": 80,
            "envs": 2,
            "vector_steps": 8,
            "batch": 8,
            "evaluate_every": 160,
            "evaluate_episodes": 2,
            "keep_every": 160,
        },
    },
}


WIDER = ["--data.init_args.env_steps", "480", "--model.init_args.policy.init_args.width", "24"]


@pytest.fixture
def config(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("line.yaml").write_text(yaml.safe_dump(CONFIG))
    return "line.yaml"


def said(capsys, *arguments: str) -> tuple[int, str]:
    code = cli.main(arguments)
    captured = capsys.readouterr()
    return code, captured.out + captured.err


def test_help_and_version_load_nothing_heavy():
    code = "import sys; from dreamsim.cli import main; main(['--help']); print('heavy:', 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "heavy: False" in done.stdout
    for command in ("fit", "evaluate", "play", "check env", "reproduce", "doctor"):
        assert f"  {command} " in done.stdout
    done = subprocess.run(
        [sys.executable, "-m", "dreamsim.cli", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("dreamsim ")


@pytest.mark.parametrize("command", ["evaluate", "play", "reproduce", "doctor"])
def test_each_command_explains_its_options(command):
    done = subprocess.run([sys.executable, "-m", "dreamsim.cli", command, "--help"], capture_output=True, text=True)
    assert done.returncode == 0
    options = [line.split()[0] for line in done.stdout.splitlines() if line.startswith("  --")]
    text = " ".join(done.stdout.split())
    assert all(option in text for option in options)
    if command == "evaluate":
        assert "number of whole real episodes (type: int, default: 10)" in text


def test_the_values_of_a_part_are_explained_and_all_values_are_shown(config, capsys):
    with pytest.raises(SystemExit, match="0"):
        cli.main(["fit", "--data.help", "dreamsim.data.module.Experience"])
    assert "environment steps of the whole run, action repeat counted" in " ".join(capsys.readouterr().out.split())
    with pytest.raises(SystemExit, match="0"):
        cli.main(["fit", "--config", config, "--print_config"])
    assert "evaluate_every: 160" in capsys.readouterr().out and not Path("runs").exists()


@pytest.mark.parametrize(
    ("arguments", "answer"),
    [
        (["evaluat", "x"], "unknown option 'evaluat'; nearest: evaluate"),
        (["evaluate", "x", "--episods", "3"], "unknown option 'episods'; nearest: episodes"),
        (["evaluate", "x", "--episodes", "three"], "episodes: expected int, got 'three'"),
        (["evaluate"], "missing: run"),
        (["check", "modle", "x"], "unknown option 'modle'; nearest: model"),
        (["fit", "--config", "line.yaml", "--trainer.max_epoch", "3"], "nearest: trainer.max_epochs"),
        (["fit", "--config", "line.yaml", "--resum"], "unknown option 'resum'; nearest: resume"),
        (["fit", "--config", "lime.yaml"], "File does not exist"),
        (["play", "x", "--step", "3"], "unknown option 'step'; nearest: steps"),
        (["check", "env", "x", "--sed", "3"], "unknown option 'sed'; nearest: seed"),
        (["reproduce", "x", "--jbs", "3"], "unknown option 'jbs'; nearest: jobs"),
        (["validate", "--config", "line.yaml"], "unknown option 'validate'"),
    ],
)
def test_a_misspelt_option_is_refused_with_the_nearest_right_one(config, capsys, arguments, answer):
    code, text = said(capsys, *arguments)
    assert code == 2
    assert answer in text and "Traceback" not in text
    assert len(text.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("place", "wrong", "answer"),
    [
        (["model", "init_args", "model", "init_args"], "latnet", "DecoderFree has no option 'latnet'; nearest: latent"),
        (["model", "init_args"], "averge", "FitJoint has no option 'averge'; nearest: average"),
        (["data", "init_args", "env", "init_args"], "edn", "Line has no option 'edn'; nearest: end"),
        (["data", "init_args"], "evn_steps", "Experience has no option 'evn_steps'; nearest: env_steps"),
        ([], "modle", "unknown option 'modle'; nearest: model"),
    ],
)
def test_a_misspelt_key_of_a_config_is_refused_at_any_depth(tmp_path, monkeypatch, capsys, place, wrong, answer):
    monkeypatch.chdir(tmp_path)
    changed = yaml.safe_load(yaml.safe_dump(CONFIG))
    part = changed
    for step in place:
        part = part[step]
    part[wrong] = 3
    Path("wrong.yaml").write_text(yaml.safe_dump(changed))
    code, text = said(capsys, "fit", "--config", "wrong.yaml")
    assert code == 2 and answer in text and len(text.strip().splitlines()) == 1
    assert not Path("runs").exists()


def test_an_option_that_is_a_flag_needs_no_value(config, capsys):
    code, text = said(capsys, "reproduce", "line", "--draw")
    assert code == 1 and "nothing is recorded in docs/results/line.json" in text
    code, text = said(capsys, "reproduce", "line", "--draw", "--jobs", "2")
    assert code == 1 and "nothing is recorded" in text


def test_a_misspelt_class_is_refused_with_the_nearest_right_one(config, capsys):
    code, text = said(capsys, "fit", "--config", config, "--data.init_args.env", "dreamsim.envs.toy.Lime")
    assert code == 2 and "dreamsim.envs.toy has no 'Lime'; nearest: Line" in text


def test_a_known_error_is_one_line_and_a_fault_keeps_its_traceback(config, capsys, monkeypatch):
    code, text = said(capsys, "evaluate", "runs/none")
    assert code == 1 and text.strip() == "dreamsim: there is no folder runs/none; no run was found under runs/"
    monkeypatch.setenv("DREAMSIM_TRACE", "1")
    _, text = said(capsys, "evaluate", "runs/none")
    assert "Traceback" in text


def test_fit_writes_a_run_that_loads_evaluates_plays_on_and_is_not_overwritten(config, capsys):
    code, text = said(capsys, "fit", "--config", config)
    assert code == 0, text
    assert "of memory for replay" in text and "dreamsim evaluate runs/line" in text
    folder = Path("runs/line")
    written = {"run.json", "model.safetensors", "last.ckpt", "config.yaml", "metrics.csv", "losses.csv", "store"}
    assert written <= {path.name for path in folder.iterdir()}
    assert load(folder).about["env_steps"] == 320

    code, text = said(capsys, "fit", "--config", config, "--run", "runs/line")
    assert code == 1 and "already holds a run; continue it with --run runs/line --resume" in text
    code, text = said(capsys, "evaluate", "runs/line", "--episodes", "2")
    assert code == 0 and (folder / "report.html").is_file(), text
    code, text = said(capsys, "check", "run", "runs/line")
    assert code == 0 and "16 episodes of 20 steps each" in text, text
    code, text = said(capsys, "play", "runs/line", "--seed", "7", "--steps", "5")
    assert code == 1 and "in 5 steps from seed 7, stopped there by --steps" in text and "draws no pictures" in text

    settings = (folder / "config.yaml").read_text()
    code, text = said(capsys, "fit", "--run", "runs/line", "--resume", *WIDER)
    assert code == 1 and "last.ckpt does not fit this config: size mismatch for" in text, text
    assert (folder / "config.yaml").read_text() == settings

    code, text = said(capsys, "fit", "--config", config, "--from", "runs/line", "--data.init_args.env_steps", "96")
    assert code == 0 and "runs/line exists; this run goes to runs/line-2" in text, text
    assert "nothing was learned" not in text

    block = folder / "store" / "blocks" / "00000000.block"
    block.write_bytes(block.read_bytes()[:-9])
    before = sorted(path for path in (folder / "store").rglob("*"))
    code, text = said(capsys, "check", "run", "runs/line")
    assert code == 1 and "damaged store" in text, text
    assert sorted(path for path in (folder / "store").rglob("*")) == before
    shutil.rmtree(folder / "store")
    code, text = said(capsys, "check", "run", "runs/line")
    assert code == 1 and "runs/line/store is missing, though the run lived 320 environment steps" in text, text


@pytest.mark.parametrize("option", [["ahead", "true"], ["processes", "2"]], ids=lambda option: option[0])
def test_living_in_other_processes_works_from_the_command_line(config, capsys, option):
    few = ["--data.init_args.env_steps", "128", "--data.init_args.evaluate_every", "128"]
    code, text = said(capsys, "fit", "--config", config, *few, f"--data.init_args.{option[0]}", option[1])
    assert code == 0 and "128 environment steps" in text, text
    assert load("runs/line").about["env_steps"] == 128


def test_a_start_that_fails_leaves_no_folder(config, capsys):
    code, text = said(capsys, "fit", "--config", config, "--from", "runs/none")
    assert code == 1 and "there is no folder runs/none" in text
    assert not Path("runs").exists()


def test_numbers_that_mean_nothing_are_refused_by_name(config, capsys):
    for arguments, name in (
        (["evaluate", "x", "--threads", "0"], "--threads"),
        (["reproduce", "x", "--jobs", "0"], "--jobs"),
    ):
        code, text = said(capsys, *arguments)
        assert code == 1 and f"{name} must be 1 or more, got 0" in text
    code, text = said(capsys, "fit", "--config", config, "--data.init_args.batch", "0")
    assert code == 1 and text.endswith("dreamsim: batch must be 1 or more, got 0\n") and not Path("runs").exists()


def test_a_run_that_never_saved_cannot_be_resumed(config, capsys):
    code, text = said(capsys, "fit", "--config", config, "--run", "runs/new", "--resume")
    assert code == 1 and "there is no run in runs/new; start it: dreamsim fit --config" in text


def test_check_names_what_is_wrong_with_an_environment(capsys):
    code, text = said(capsys, "check", "env", "dreamsim.envs.toy.Line", "--steps", "50")
    assert code == 0 and "equal seeds give equal episodes" in text
    code, text = said(capsys, "check", "env", "CartPol-v1")
    assert code == 1 and "CartPole-v1" in text
    code, text = said(capsys, "check", "policy", "worldmodels.actors.SquashedGaussian", "dreamsim.envs.toy.Line")
    assert code == 0, text


def test_doctor_says_what_works_and_how_to_get_the_rest(capsys):
    code, text = said(capsys, "doctor")
    assert code == 0
    for subject in ("python", "torch", "memory", "disk", "gpu", "rendering"):
        assert subject in text
    for line in text.splitlines():
        assert line.startswith(("ok  ", "--  ", "     "))
