import functools
import json
import re
import warnings
from html.parser import HTMLParser

import numpy as np
import pytest

from dreamsim.core.random import derive_seed
from dreamsim.core.spaces import Codec
from dreamsim.data.store import Store
from dreamsim.evaluation import chart, sections
from dreamsim.evaluation.intervals import interval
from dreamsim.evaluation.judge import judge, learning_curve
from dreamsim.evaluation.reading import reading, told_gap, verdict
from dreamsim.evaluation.report import numbers, text, write
from dreamsim.evaluation.trust import Beside
from dreamsim.imagination.imagine import Believer


def judged(toys, model, policy=None, **options):
    policy = policy or Believer(model, toys.Wave())
    names = {"delays": (), "task": "slide", "policy_name": "wave", "world_name": "toy"}
    return judge(toys.Slide, policy, model, 6, **{"film": False, **names, **options})


def test_the_dynamics_themselves_are_trusted_and_leave_no_gap(toys):
    found = judged(toys, toys.Exact())
    assert found.trusted == 35
    assert [(row.name, row.horizon) for row in found.beside] == [("15 steps", 15), ("trusted", 35), ("full", 40)]
    assert all(abs(row.gap.mean) < 1e-3 for row in found.beside)
    assert "can be trusted over all 35 steps" in verdict(found)
    assert sum("the same in the dream" in sentence for sentence in reading(found)) == 3


def test_a_dream_that_flatters_is_told_so_in_words(toys):
    found = judged(toys, toys.Exact(bonus=0.5))
    warned = [sentence for sentence in reading(found) if "more in the dream than in reality" in sentence]
    assert len(warned) == 3 and all("do not choose policies" in sentence for sentence in warned)
    gloomy = judged(toys, toys.Exact(bonus=-0.5))
    assert any("too pessimistic" in sentence for sentence in reading(gloomy))


def test_a_share_is_of_what_was_really_earned_in_those_steps():
    """A dream that promises 0.36 where reality gives 0.30 is off by a fifth, however much is earned later."""
    row = Beside("15 steps", 15, np.full(4, 0.36), np.full(4, 0.3), interval(np.full(4, 0.06)))
    said = told_gap(row)
    assert "20% of what it really earns" in said and "do not choose policies" in said
    assert "many times what it really earns" in told_gap(row._replace(real=np.full(4, 1e-4)))
    nothing = told_gap(row._replace(real=np.zeros(4), gap=interval(np.full(4, 0.36))))
    assert "really earns nothing" in nothing and "do not choose policies" in nothing


def test_a_wrong_dream_is_not_trusted_and_says_why(toys):
    found = judged(toys, toys.Exact(drag=-3.0))
    assert found.trusted == 0 and "cannot be trusted" in verdict(found)
    assert any("Its observations do not hold: at 1 step" in sentence for sentence in reading(found))
    assert [row.name for row in found.beside] == ["15 steps", "full"]


class Page(HTMLParser):
    """Collects what a page would ask the network for, and whether its tags close."""

    VOID = ("meta", "img", "br", "line", "rect", "circle", "polyline")

    def __init__(self):
        super().__init__()
        self.asked, self.open, self.kinds = [], [], set()

    def handle_starttag(self, tag, attributes):
        self.kinds.add(tag)
        self.asked += [v for k, v in attributes if k in ("src", "href", "xlink:href") and not v.startswith("data:")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag not in self.VOID:
            assert self.open.pop() == tag


def test_the_page_holds_everything_and_asks_for_nothing(toys, tmp_path):
    pytest.importorskip("imageio_ffmpeg")
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "metrics.csv").write_text("env_steps,return_mean\n0,1.5\n100,20\n200,35.5\n")
    make = functools.partial(toys.Slide, judged=True)
    model = toys.Exact(drag=0.95)
    policy = Believer(model, toys.Wave())
    found = judge(
        make, policy, model, 5, folder=folder, task="<slide>", policy_name="wave & co", about={"commit": "abc"}
    )
    path = write(found, folder)
    html = path.read_text()
    page = Page()
    page.feed(html)
    assert page.open == [] and page.asked == []
    assert not re.search(r"url\(|@import|<script|<link", html)
    assert {"svg", "video", "table"} <= page.kinds
    assert "&lt;slide&gt;" in html and "<slide>" not in html and "wave &amp; co" in html
    for words in (
        "Dream beside reality",
        "Learning curve",
        "If actions come late",
        "straight line",
        "prefers-color-scheme: dark",
        "abc",
        "100%",
    ):
        assert words in html
    assert all(str(seed) in html for seed in found.outcome.seeds)
    assert (folder / "films" / "dream.mp4").stat().st_size > 500
    assert sorted(file.name for file in folder.iterdir()) == ["films", "metrics.csv", "report.html", "report.json"]


def test_json_beside_it_holds_the_same_numbers(toys, tmp_path):
    found = judged(toys, toys.Exact(bonus=0.5))
    write(found, tmp_path)
    data = json.loads((tmp_path / "report.json").read_text())
    assert data["outcome"]["returns"] == found.outcome.returns.tolist()
    assert data["outcome"]["mean_return"]["low"] == pytest.approx(
        np.float64(numbers(found)["outcome"]["mean_return"]["low"])
    )
    assert data["trusted"] == found.trusted and data["drift"]["ends"]["foreseen"] is None
    assert [row["gap"]["mean"] for row in data["beside"]] == [row.gap.mean for row in found.beside]
    assert "episodes" not in data["outcome"] and data["task"] == "slide"


def test_a_policy_without_a_dream_gives_a_report_of_reality(toys, tmp_path):
    found = judge(toys.Slide, toys.Push(0.1), None, 3, film=False)
    assert found.drift is None and found.beside == [] and any("no dream" in note for note in found.notes)
    assert "real results only" in verdict(found)
    assert write(found, tmp_path).is_file()
    assert "return" in text(found)


def test_one_episode_is_told_as_one(toys, tmp_path):
    model = toys.Exact()
    found = judge(toys.Slide, Believer(model, toys.Wave()), model, 1, film=False)
    assert "one value: no interval" in text(found)
    assert any("too few" in sentence for sentence in reading(found))
    assert "NaN" not in write(found, tmp_path).read_text() and "nan" not in text(found)


def test_text_for_the_terminal_says_what_the_page_says(toys):
    found = judged(toys, toys.Exact(drag=1.0))
    said = text(found)
    assert verdict(found) in said and all(sentence in said for sentence in reading(found)[1:])
    rows = [
        line.split() for line in said.partition("open-loop drift")[2].splitlines()[2 : 2 + len(found.drift.horizons)]
    ]
    held = [int(h) for h, _, dream, limit, *_ in rows if float(dream) <= float(limit)]
    assert held[-1] == found.trusted and held == list(found.drift.horizons[: len(held)])
    assert f"trusted ({found.trusted})" in said and max(map(len, said.splitlines())) < 200


def test_a_horizon_that_cannot_be_measured_is_told(toys):
    found = judged(toys, toys.Exact(), horizons=[1, 500])
    assert found.drift.horizons == (1,) and any("[500] were not measured" in note for note in found.notes)


def test_a_curve_that_leaves_the_chart_is_cut_and_named_not_bent_along_its_edge():
    series = [chart.Series("low", [1, 2], [1, 1], "a"), chart.Series("steep", [1, 2], [0, 9], "c")]
    drawn = chart.lines(series, "", "", "", top=2)
    ends = re.search(r'class="line c" points="[^ ]+ [^,]+,([-0-9.]+)"', drawn)
    assert float(ends[1]) < -500 and "steep (leaves the chart)" in drawn and "low (leaves" not in drawn


def test_a_policy_that_cannot_act_in_the_dream_is_still_judged(toys):
    found = judge(toys.Slide, toys.Push(0.1), toys.Exact(decodes=False), 3, film=False)
    assert found.drift is not None and found.beside == []
    assert any("No return in the dream" in note for note in found.notes)


def test_what_cannot_be_filmed_is_said(toys):
    found = judge(functools.partial(toys.Slide, visible=False), toys.Push(0.1), None, 2)
    assert found.film is None and any("No film" in note and "rgb_array" in note for note in found.notes)


def test_seeds_that_training_used_give_a_warning_and_a_tag(toys, tmp_path):
    with Store.create(tmp_path / "store", toys.Slide.observation_space, toys.Slide.action_space) as store:
        for number, episode in enumerate(toys.episodes(2, lengths=(5,))):
            store.append(episode._replace(meta={"seed": derive_seed(0, "evaluate", number), "origin": "real"}))
        store.flush()
    with pytest.warns(UserWarning, match="2 of 4 evaluation episodes"):
        found = judge(toys.Slide, toys.Push(0.1), None, 4, folder=tmp_path, film=False)
    assert "no held-out result" in found.tags[0] and "WARNING" in text(found)
    assert "no held-out result" in write(found, tmp_path).read_text()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert judge(toys.Slide, toys.Push(0.1), None, 4, seed=9, folder=tmp_path, film=False).tags == []


def test_a_world_of_another_environment_is_refused(toys):
    other = Codec(toys.codec.observation_space["position"], toys.codec.raw_action_space)
    with pytest.raises(ValueError, match="the world was trained with the observation space"):
        judge(toys.Slide, toys.Push(0.1), toys.Exact(), 2, codec=other)


def test_learning_curves_of_both_column_names(tmp_path):
    assert learning_curve(None) == [] and learning_curve(tmp_path) == []
    (tmp_path / "metrics.csv").write_text("step,return,loss\n10,,0.5\n20,3.5,\n")
    assert learning_curve(tmp_path) == [(20.0, 3.5)]


def test_a_world_that_tells_its_doubt_is_asked_whether_it_knows_where_it_errs(toys):
    assert judged(toys, toys.Exact()).calibration is None
    world = toys.Exact(drag=0.3)
    world.uncertainty = lambda state, action: state["v"].abs().squeeze(-1)  # the faster, the more drag matters
    found = judged(toys, world)
    assert found.calibration.horizons == (1, 2, 4, 8, 16) and found.calibration.correlation[0] > 0.9
    assert numbers(found)["calibration"]["distrust"] == found.calibration.distrust
    assert any("standard deviations" in sentence and "doubt" in sentence for sentence in reading(found))
    assert (
        "Does it know where it errs?" in sections.doubted(found)
        and sections.doubted(found._replace(calibration=None)) == ""
    )
