"""What is built and installed: one import name, nobody else's `callbacks` shadowed, and no torch where it is not wanted.

Nothing is downloaded: the environments made here see the packages of the one that runs the tests.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

REPO = Path(__file__).parent.parent
HEAVY = ("torch", "transformers", "trl", "peft", "accelerate", "datasets", "bitsandbytes")


def run(*command: str | Path, cwd: Path, code: int = 0) -> str:
    done = subprocess.run(list(map(str, command)), cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == code, f"{shlex.join(map(str, command))} ended with {done.returncode}:\n{done.stdout}{done.stderr}"
    return done.stdout


def checkout(target: Path) -> Path:
    """The repository as git would lay it out, without what tests and tools leave behind."""
    left_out = shutil.ignore_patterns(".git", ".venv", "build", "dist", "*.egg-info", "__pycache__", ".*_cache", ".hypothesis")
    return Path(shutil.copytree(REPO, target, symlinks=True, ignore=left_out))


def environment(folder: Path) -> Path:
    """The Python of a fresh environment that sees the packages of this one, but not an editable install of ours."""
    venv.create(folder, with_pip=False)
    here = sysconfig.get_paths()["purelib"]
    packages = folder / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    (packages / "outer.pth").write_text(here + "\n")
    return folder / "bin" / "python"


def install(python: Path, *what: str | Path) -> None:
    command = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-index", "--no-deps"]
    run(*command, "--ignore-installed", "--no-build-isolation", *what, cwd=python.parent)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a source archive and the wheel that was built from it."""
    root = tmp_path_factory.mktemp("build")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", root, checkout(root / "source"), cwd=root)
    return root


@pytest.fixture(scope="module")
def wheel_python(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    python = environment(tmp_path_factory.mktemp("wheel") / "env")
    install(python, next(built.glob("*.whl")))
    return python


@pytest.fixture(scope="module")
def editable_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("editable")
    python = environment(root / "env")
    install(python, "--editable", checkout(root / "source"))
    return python


def test_the_wheel_has_one_import_name_and_each_file_once(built: Path) -> None:
    with zipfile.ZipFile(next(built.glob("*.whl"))) as wheel:
        names = wheel.namelist()
    assert len(names) == len(set(names))
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"diagnose"}
    assert {"diagnose/__init__.py", "diagnose/py.typed", "diagnose/callbacks/curve_doctor.py"} <= set(names)
    sources = {
        path.relative_to(REPO).as_posix() for path in (REPO / "diagnose").rglob("*") if path.suffix == ".py" and path.is_file()
    }
    sources |= {f"diagnose/{path.relative_to(REPO).as_posix()}" for path in (REPO / "callbacks").rglob("*.py")}
    assert sources == {name for name in names if name.endswith(".py")}
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert {f"diagnose/callbacks/qlora/demo/{name}" for name in ("base.txt", "examples.jsonl")} <= set(names)
    static = {path.relative_to(REPO).as_posix() for path in (REPO / "diagnose" / "tensorboard" / "static").rglob("*.*")}
    assert {"diagnose/tensorboard/static/index.js", "diagnose/tensorboard/static/vendor/uPlot.esm.js"} <= static <= set(names)
    assert "diagnose/tensorboard/static/vendor/LICENSE" in names


def test_the_source_archive_holds_what_its_tests_need(built: Path) -> None:
    with tarfile.open(next(built.glob("*.tar.gz"))) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", ".ci/run", "callbacks/curve_doctor.py"} <= names
    assert {"tests/conftest.py", "tests/tiny.py", "tests/test_packaging.py"} <= names
    kept = [path.relative_to(REPO).as_posix() for path in (REPO / "fixtures").rglob("*.json")]
    assert kept
    assert set(kept) <= names
    assert not [name for name in names if "__pycache__" in name]


def test_every_package_is_listed() -> None:
    """The list in pyproject.toml is explicit: a package that is not in it would be missing from the wheel."""
    listed = tomllib.loads((REPO / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    there = {".".join(path.parent.relative_to(REPO).parts) for path in (REPO / "diagnose").rglob("__init__.py")}
    there |= {
        ".".join(("diagnose", *path.parent.relative_to(REPO).parts)) for path in (REPO / "callbacks").rglob("__init__.py")
    }
    assert sorted(listed) == sorted(there)


@pytest.mark.parametrize("kind", ["wheel_python", "editable_python"])
def test_a_users_own_callbacks_module_stays_theirs(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    (tmp_path / "callbacks.py").write_text("whose = 'theirs'\n")
    (tmp_path / "train.py").write_text(
        "import callbacks, diagnose.callbacks, diagnose.callbacks.guard, diagnose\n"
        "print(callbacks.whose)\n"
        "print(diagnose.callbacks.__name__, diagnose.callbacks.__doc__.splitlines()[0])\n"
        "print(diagnose.__version__, diagnose.__file__)\n"
    )
    python = request.getfixturevalue(kind)
    whose, ours, where = run(python, "train.py", cwd=tmp_path).splitlines()
    assert whose == "theirs"
    assert ours == "diagnose.callbacks Guests in other people's training loops."
    assert str(python.parent.parent.parent) in where
    assert str(REPO) not in where


@pytest.mark.parametrize("kind", ["wheel_python", "editable_python"])
def test_the_command_is_there(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    python = request.getfixturevalue(kind)
    told = run(python.parent / "diagnose", "--version", cwd=tmp_path)
    assert re.search(r"\d+\.\d+\.\d+", told)


@pytest.mark.parametrize("kind", ["wheel_python", "editable_python"])
def test_tensorboard_finds_the_view_and_its_page(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    (tmp_path / "use.py").write_text(
        "from importlib.metadata import distribution\n"
        "points = [p for p in distribution('curve-doctor').entry_points if p.group == 'tensorboard_plugins']\n"
        "plugin = points[0].load()().load(None)\n"
        "print(len(points), plugin.plugin_name, plugin.frontend_metadata().es_module_path)\n"
        "from diagnose.tensorboard.plugin import _static_files\n"
        "print(*sorted(_static_files()))\n"
    )
    first, files = run(request.getfixturevalue(kind), "use.py", cwd=tmp_path).splitlines()
    assert first == "1 curve_doctor /static/index.js"
    static = REPO / "diagnose" / "tensorboard" / "static"
    assert files.split() == sorted(path.relative_to(static).as_posix() for path in static.rglob("*") if path.is_file())


#: A Python in which the training libraries cannot be imported, as where they are not installed.
BLOCKED = f"""
import sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {HEAVY!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Blocker())
"""
LOG = '[{"step": 10, "loss": 2.0}, {"step": 20, "loss": NaN}, {"step": 30, "loss": NaN}]'


def test_without_the_train_extra_all_but_the_callback_works(wheel_python: Path, tmp_path: Path) -> None:
    (tmp_path / "trainer_state.json").write_text(f'{{"log_history": {LOG}}}')
    (tmp_path / "use.py").write_text(
        BLOCKED
        + "import diagnose\n"
        + "from diagnose.cli import main\n"
        + "code = main(['trainer_state.json'])\n"
        + "try:\n    from diagnose import CurveDoctor\n"
        + "except diagnose.errors.MissingExtraError as error:\n    print('MISSING', error)\n"
        + "print('CODE', code)\n"
    )
    out = run(wheel_python, "use.py", cwd=tmp_path)
    assert "nan-loss" in out
    assert "CODE 1" in out
    assert re.search(r"MISSING CurveDoctor needs torch and transformers .*: pip install 'curve-doctor\[train\]'", out)


def test_the_engine_imports_no_training_library(wheel_python: Path, tmp_path: Path) -> None:
    (tmp_path / "trainer_state.json").write_text(f'{{"log_history": {LOG}}}')
    (tmp_path / "use.py").write_text(
        "import sys\nimport diagnose\nimport diagnose.callbacks\n"
        "from diagnose.cli import main\nmain(['trainer_state.json'])\n"
        f"print('LOADED', sorted(set({HEAVY!r}) & set(sys.modules)))\n"
    )
    assert "LOADED []" in run(wheel_python, "use.py", cwd=tmp_path)


def commands(text: str) -> set[str]:
    """Lines of shell that make or use `.venv`."""
    return {line.strip() for line in text.splitlines() if re.match(r"\s*(python3\.11 -m venv|\.venv/bin/)", line)}


def test_ci_runs_what_the_readme_tells() -> None:
    told = commands((REPO / "README.md").read_text())
    assert any("diagnose fixtures --report" in line for line in told)
    assert any(line.endswith("-m pytest") for line in told)
    done = (REPO / ".ci" / "run").read_text()
    assert [line for line in told if line not in done] == []
