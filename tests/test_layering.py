"""The arrows between packages, and what no file of ours may do, read from the source itself."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
OURS = sorted(path for package in ("dreamsim", "worldmodels", "robots") for path in (ROOT / package).rglob("*.py"))
CONFIGS = sorted((ROOT / "configs").rglob("*.yaml"))
LIGHTNING = ("dreamsim/training/", "dreamsim/data/module.py", "dreamsim/cli.py")


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def imports(path: Path, everywhere: bool = True) -> Iterator[str]:
    """Yield every module that a file imports; ``everywhere`` False: at its top level only."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree) if everywhere else tree.body:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name(path)} imports relatively"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def calls(path: Path) -> Iterator[tuple[str, ast.Call]]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), node


@pytest.mark.parametrize("path", OURS, ids=name)
def test_the_arrows_between_packages(path):
    package = name(path).partition("/")[0]
    for module in imports(path):
        top = module.partition(".")[0]
        if package == "dreamsim":
            assert top not in ("worldmodels", "robots"), f"{name(path)} imports {module}; name it in a config instead"
        if package == "worldmodels" and top in ("dreamsim", "robots"):
            assert module.startswith("dreamsim.core."), f"{name(path)} imports {module}; only dreamsim.core is below it"
        if package == "robots":
            assert top not in ("dreamsim", "worldmodels", "torch"), f"{name(path)} imports {module}; robots stand alone"
        if top in ("lightning", "pytorch_lightning"):
            assert name(path).startswith(LIGHTNING), f"{name(path)} imports Lightning"


@pytest.mark.parametrize("path", sorted((ROOT / "dreamsim/core").rglob("*.py")), ids=name)
def test_core_stands_on_nothing_of_ours(path):
    for module in imports(path, everywhere=False):
        assert not module.startswith("dreamsim.") or module.startswith("dreamsim.core"), f"{name(path)}: {module}"


@pytest.mark.parametrize("path", OURS, ids=name)
def test_what_no_file_may_do(path):
    for called, node in calls(path):
        assert called != "hasattr", f"{name(path)}:{node.lineno} asks hasattr; ask for a power or a type"
        loads = called.startswith(("pickle.load", "pickle.Unpickler", "joblib.load"))
        own = bool(node.args) and ast.unparse(node.args[0]).startswith("pickle.dumps(")
        assert own or not loads, f"{name(path)}:{node.lineno} loads a pickle"
        if called == "torch.load":
            safe = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}.get("weights_only")
            assert safe == "True", f"{name(path)}:{node.lineno} loads without weights_only=True"
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ExceptHandler):
            assert node.type is not None, f"{name(path)}:{node.lineno} has a bare except"


def test_importing_the_command_costs_nothing():
    code = "import sys, dreamsim.cli; print(sorted({'torch', 'numpy', 'lightning', 'gymnasium'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("path", CONFIGS, ids=name)
def test_every_config_is_used_and_names_what_exists(path):
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "tests").rglob("*.py"), *CONFIGS]
    assert any(name(path) in page.read_text() for page in pages if page != path), (
        f"no page, test or queue names {name(path)}"
    )
    for named in class_paths(yaml.safe_load(path.read_text())):
        module, _, last = named.rpartition(".")
        file = ROOT / f"{module.replace('.', '/')}.py"
        if file.is_file():
            defined = {
                node.name
                for node in ast.parse(file.read_text()).body
                if isinstance(node, (ast.ClassDef, ast.FunctionDef))
            }
            assert last in defined, f"{name(path)} names {named}"


def class_paths(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        if "class_path" in value:
            yield value["class_path"]
        for part in value.values():
            yield from class_paths(part)
    elif isinstance(value, list):
        for part in value:
            yield from class_paths(part)


def test_no_file_names_a_machine():
    listed = subprocess.run(["git", "ls-files"], capture_output=True, text=True, cwd=ROOT)
    if listed.returncode:
        pytest.skip("not a git checkout")
    for line in listed.stdout.splitlines():
        path = ROOT / line
        if path.suffix in (".py", ".md", ".yaml", ".toml", ".txt") and path.is_file():
            text = path.read_text()
            for place in ("/work" + "/", "/home" + "/", "/tmp" + "/", "/root" + "/"):
                assert place not in text, f"{line} names {place}"
