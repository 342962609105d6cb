"""What the README says can be done can be done: commands, configs, links and the test command."""

import re
from pathlib import Path

import pytest

from dreamsim.cli import COMMANDS

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def test_every_command_named_exists():
    pages = "\n".join([README, *(page.read_text() for page in (ROOT / "docs").glob("*.md"))])
    blocks = "\n".join(pages.split("```")[1::2])
    named = set(re.findall(r"^dreamsim ([a-z]+)", blocks, re.MULTILINE)) | set(
        re.findall(r"[`/]dreamsim ([a-z]+)", pages)
    )
    assert {"fit", "evaluate", "play", "doctor", "check", "reproduce"} <= named <= {"fit", *COMMANDS}


def test_ci_runs_exactly_the_test_command_of_the_readme():
    script = (ROOT / ".ci/run").read_text()
    assert "\npython -m pytest\n" in README
    assert script.rstrip().endswith("\npython -m pytest")


@pytest.mark.parametrize(
    "page", [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))], ids=lambda page: page.name
)
def test_every_link_and_file_named_exists(page):
    text = page.read_text()
    for target in re.findall(r"\]\(([^)#:]+)\)", text):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"
    for target in re.findall(r"\b(?:configs|docs|tests)/[\w/.-]+\w", text):
        assert (ROOT / target).exists(), f"{page.name} names {target}"


def test_the_architecture_names_every_file_of_ours():
    page = (ROOT / "docs/architecture.md").read_text()
    for package in ("dreamsim", "worldmodels", "robots"):
        for path in (ROOT / package).rglob("*.py"):
            assert path.name in page or path.name == "__init__.py", f"docs/architecture.md says nothing of {path.name}"


def test_doctor_knows_every_extra():
    import tomllib

    from dreamsim.doctor import EXTRAS

    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(EXTRAS) == set(extras) - {"dev", "all"}


def test_what_errors_say_to_install_is_what_doctor_says():
    sources = "\n".join(path.read_text() for path in (ROOT / "dreamsim").rglob("*.py"))
    lines = re.findall(r"pip install [^\n]*\[[a-z{}]+\]'", sources)
    assert len(lines) >= 5
    for line in lines:
        assert re.fullmatch(r"pip install -c constraints.txt -e '\.\[[a-z{}]+\]'", line), line


def test_the_readme_asks_for_extras_that_exist():
    import tomllib

    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for group in re.findall(r"-e '\.\[([\w,]+)\]'", README + (ROOT / ".ci/run").read_text()):
        assert set(group.split(",")) <= set(extras)
