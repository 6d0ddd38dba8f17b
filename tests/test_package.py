from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_import_is_light() -> None:
    """`import hush` needs torch, numpy and dp-accounting; what the command line and reports use stays out."""
    script = (
        "import torch, sys, time; began = time.perf_counter(); import hush; hush.simulate; took = time.perf_counter() - began; "
        "heavy = {'typer', 'rich', 'pydantic', 'matplotlib', 'safetensors', 'sklearn'} & set(sys.modules); "
        "print(took, sorted(heavy))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    _, heavy = done.stdout.strip().split(" ", 1)
    assert heavy == "[]"


def import_each_as_the_first(every: int) -> None:
    """In a process of its own: all packages, and of their modules one in `every`."""
    script = f"""
import pkgutil, sys, importlib, torch, hush
found = [m for m in pkgutil.walk_packages(hush.__path__, 'hush.') if m.name != 'hush.__main__']
assert len(found) > 50
names = [m.name for m in found if m.ispkg] + [m.name for m in found if not m.ispkg][::{every}]
for name in names:
    for loaded in [m for m in sys.modules if m == 'hush' or m.startswith('hush.')]: del sys.modules[loaded]
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as missing:
        if missing.name not in ('triton', 'jax'): raise  # which are there where a GPU is, or a peer
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_every_package_and_some_modules_can_be_the_first_to_be_imported() -> None:
    """No import works only because another one happened before it. `make soak` imports every module."""
    import_each_as_the_first(every=8)


def test_the_wheel_builds_and_runs_from_a_clean_place(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path), str(ROOT)]
    done = subprocess.run(build, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = tmp_path.glob("hush_fl-*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert "hush/tasks/digits.csv.gz" in names
    assert "hush/py.typed" in names
    assert not [n for n in names if n.startswith("tests")]
    target = tmp_path / "site"
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", str(target), str(wheel)]
    subprocess.run(install, check=True, capture_output=True)
    script = (
        f"import sys; sys.path.insert(0, {str(target)!r}); import hush; assert hush.__file__.startswith({str(target)!r}); "
        "r = hush.simulate(hush.methods.dp_fedavg(noise=1.0), hush.load_task('digits'), rounds=1); print(r.sentence())"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=tmp_path)
    assert "% accuracy" in done.stdout, done.stderr


def test_core_transforms_and_methods_know_nothing_of_engines_or_the_command_line() -> None:
    for room in ("core.py", "cohort.py", "server.py", "transforms", "local", "methods", "privacy"):
        place = ROOT / "src" / "hush" / room
        for file in [place] if place.is_file() else place.glob("*.py"):
            text = file.read_text()
            assert "hush.engines" not in text, file
            assert "hush.cli" not in text, file
