"""A recorded result: what is finished stays, what was cut goes on, and the page follows from the numbers."""

import json
import shutil
from pathlib import Path

import pytest
import yaml

from dreamsim import reproduce, results
from tests.test_cli import CONFIG

QUEUE = {
    "title": "A line",
    "note": "A toy.",
    "episodes": 2,
    "runs": [{"task": "line", "method": "imagined", "config": "line.yaml", "seeds": [1, 2]}],
    "published": [{"name": "Theirs", "task": "line", "file": "theirs.csv", "where": {"method": "x"}}],
}


@pytest.fixture
def queue(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("configs/results").mkdir(parents=True)
    Path("configs/results/line.yaml").write_text(yaml.safe_dump(QUEUE))
    Path("line.yaml").write_text(yaml.safe_dump(CONFIG))
    Path("docs/results/published").mkdir(parents=True)
    rows = [
        "method,task,seed,step,reward",
        *(f"x,line,{seed},{step},{seed + step / 100}" for seed in (1, 2) for step in (0, 300)),
    ]
    Path("docs/results/published/theirs.csv").write_text("\n".join([*rows, "y,line,1,0,999"]))
    return reproduce.expand(QUEUE, Path("runs/results/line"))


def finished(entry: reproduce.Entry, score: float) -> None:
    """Leave in an entry's folder what a finished and evaluated run leaves."""
    about = {
        "finished": True,
        "env_steps": 200,
        "gradient_steps": 50,
        "imagined_steps": 400,
        "wall_s": 60.0,
        "commit": "abc",
    }
    entry.folder.mkdir(parents=True)
    (entry.folder / "run.json").write_text(json.dumps({"about": about}))
    beside = [{"name": "15 steps", "horizon": 15, "dream": [score - 3, score - 1], "real": [score, score]}]
    report = {"outcome": {"returns": [score - 1, score + 1]}, "beside": beside}
    (entry.folder / "report.json").write_text(json.dumps(report))
    (entry.folder / "metrics.csv").write_text(f"env_steps,return_mean\n100,{score / 2}\n200,{score}\n")


def test_a_queue_is_every_task_method_and_seed_in_order(queue):
    assert [entry.folder.name for entry in queue] == ["line-imagined-1", "line-imagined-2"]
    changed = {**QUEUE, "runs": [{**QUEUE["runs"][0], "options": {"data.init_args.env_steps": 100}}]}
    entry = reproduce.expand(changed, Path("runs"))[1]
    assert reproduce.command(entry) == [
        *("fit", "--config", "line.yaml", "--run", "runs/line-imagined-2", "--seed_everything=2"),
        "--data.init_args.env_steps=100",
    ]


def test_a_run_that_was_cut_is_resumed_and_a_finished_one_is_left_alone(queue):
    one, two = queue
    finished(one, 10.0)
    assert reproduce.judged(one, 2) and not reproduce.judged(one, 10) and not reproduce.trained(two)
    two.folder.mkdir(parents=True)
    (two.folder / "last.ckpt").write_bytes(b"")
    assert reproduce.command(two) == ["fit", "--run", str(two.folder), "--resume"]


def test_the_record_and_its_page_say_how_many_how_high_and_how_spread(queue):
    for entry, score in zip(queue, (10.0, 20.0), strict=True):
        finished(entry, score)
    reproduce.repeat("line")
    record = json.loads(Path("docs/results/line.json").read_text())
    assert record["command"] == "dreamsim reproduce line" and record["commit"] == ["abc"]
    assert [row["score"] for row in record["rows"]] == [10.0, 20.0]
    assert record["rows"][1]["curve"] == [[100, 10.0], [200, 20.0]]
    page = Path("docs/results/line.md").read_text()
    assert "| line | imagined | 2 | 15.0 | 10.0 to 20.0 | 15.0 | 7.1 | 10.0 | 200 | 50 | 400 | 1.0 |" in page
    assert "| line | imagined | 15.0 | 2 | Theirs | 3.5 | 2 | 429 % |" in page  # seeds 1 and 2 at step 200 of 300
    assert "| line | imagined | 2 | 15 | 13.0 | 15.0 | -2.0 |" in page
    figure = Path("docs/results/line-line.svg").read_text()
    assert "imagined (dreamsim, n=2)" in figure and "Theirs (published, n=2)" in figure


def test_the_page_is_drawn_from_the_record_alone_and_equally(queue):
    for entry in queue:
        finished(entry, 10.0)
    reproduce.repeat("line")
    before = {path: path.read_text() for path in Path("docs/results").glob("line*")}
    for entry in queue:
        for path in entry.folder.iterdir():
            path.unlink()
    reproduce.draw("line")
    assert before == {path: path.read_text() for path in Path("docs/results").glob("line*")}


def test_a_record_is_extended_by_what_it_lacks_and_a_changed_setting_is_done_again(queue, monkeypatch):
    trained = []

    def train(entry, *_):
        trained.append(entry.seed)
        finished(entry, 10.0 * entry.seed)
        _[-1]()
        return True

    monkeypatch.setattr(reproduce, "_finish", train)
    first = {**QUEUE, "runs": [{**QUEUE["runs"][0], "seeds": [1]}]}
    Path("configs/results/line.yaml").write_text(yaml.safe_dump(first))
    reproduce.repeat("line")
    shutil.rmtree("runs")  # another day, another machine
    Path("configs/results/line.yaml").write_text(yaml.safe_dump(QUEUE))
    reproduce.repeat("line", extend=True)
    assert trained == [1, 2]
    assert [row["score"] for row in json.loads(Path("docs/results/line.json").read_text())["rows"]] == [10.0, 20.0]
    shutil.rmtree("runs")
    changed = {**QUEUE, "runs": [{**QUEUE["runs"][0], "options": {"data.init_args.env_steps": 100}}]}
    Path("configs/results/line.yaml").write_text(yaml.safe_dump(changed))
    reproduce.repeat("line", extend=True)
    assert trained[2:] == [1, 2]
    shutil.rmtree("runs")
    reproduce.repeat("line")
    assert len(trained) == 6, "without extend everything is done anew"


def test_published_rows_of_another_method_are_not_ours_to_draw(queue):
    steps, curves = results._published(Path("docs/results/published/theirs.csv"), {"method": "x"}, 1000)
    assert steps.tolist() == [0, 300] and curves.tolist() == [[1, 4], [2, 5]]
    with pytest.raises(ValueError, match="no rows"):
        results._published(Path("docs/results/published/theirs.csv"), {"method": "z"}, 1000)


def test_an_unknown_queue_names_the_nearest(queue):
    with pytest.raises(FileNotFoundError, match="nearest: line"):
        reproduce.repeat("lines")


@pytest.mark.slow
def test_a_failed_run_is_named_and_the_others_are_kept(queue, capsys):
    """One real run of the queue, trained and evaluated in processes of their own; the other has a broken config."""
    broken = {
        **QUEUE,
        "runs": [
            {**QUEUE["runs"][0], "seeds": [1]},
            {**QUEUE["runs"][0], "method": "bad", "config": "no.yaml", "seeds": [1]},
        ],
    }
    Path("configs/results/line.yaml").write_text(yaml.safe_dump(broken))
    with pytest.raises(reproduce.Cut, match=r"1 of 2 runs failed(?s:.*)line-bad-1"):
        reproduce.repeat("line")
    good, bad = reproduce.expand(broken, Path("runs/results/line"))
    assert reproduce.judged(good, 2) and not bad.folder.exists()
    assert "File does not exist" in reproduce.log(bad).read_text()
    assert json.loads((good.folder / "run.json").read_text())["about"]["env_steps"] == 320


def test_a_result_may_be_measured_by_a_program_of_its_own(queue):
    Path("mine.py").write_text("import sys, pathlib; pathlib.Path('said').write_text(' '.join(sys.argv[1:]))")
    Path("configs/results/own.yaml").write_text("program: mine")
    reproduce.repeat("own")
    assert Path("said").read_text() == ""
    Path("docs/results/own.json").write_text("{}")
    reproduce.draw("own")
    assert Path("said").read_text() == "draw"
    Path("mine.py").write_text("raise SystemExit(3)")
    with pytest.raises(reproduce.Cut, match="goes on"):
        reproduce.repeat("own")
