"""A method of one's own, in one file or in a package: run, compared, tuned, audited and certified like any other."""

from __future__ import annotations

import json
import math
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hush import plugins
from hush.config import RunConfig
from hush.errors import UsageError
from hush.tuning.space import Range, default_space, parse_search

from .test_cli import hush

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_method.py"
SMALL = ["--clients", "40", "--cohort", "10", "--rounds", "2"]


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    shutil.copy(EXAMPLE, tmp_path / "mine.py")
    return "mine.py:fed_soft"


def test_its_setting_is_explained_set_checked_and_kept(mine: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = hush(capsys, "methods", mine, "--json")
    assert code == 0, err
    told = json.loads(out)
    (own,) = (one for one in told["settings"] if one["key"] == "softness")
    assert (own["default"], own["range"]) == ("0.5", "[0, 1]")
    assert told["unit"] == "client"
    code, out, err = hush(capsys, "run", mine, *SMALL, "--set", "softness=0.3", "--out", "r")
    assert code == 0, err
    (run,) = json.loads((tmp_path / "r" / "config.json").read_text())["runs"]
    assert run["set"]["softness"] == 0.3
    certificate = json.loads((tmp_path / "r" / "certificate.json").read_text())
    assert certificate["configuration"]["run"]["method"] == "mine.py:fed_soft"
    assert certificate["configuration"]["run"]["code"].startswith("mine.py sha256 ")
    first = certificate["configuration"]["pipeline"][0]
    assert first["kind"].endswith(".SoftClip")
    assert (first["norm"], first["softness"]) == (1.0, 0.3)
    assert "softness" in (tmp_path / "r" / "report.html").read_text()
    for wrong, said in (
        ("softnes=1", "did you mean 'softness'"),
        ("softness=7", "must lie in [0, 1]"),
        ("kappa=1", "kappa goes with server=adam"),
        ("clip=0", "clip must be a positive number"),
    ):
        code, out, err = hush(capsys, "run", mine, *SMALL, "--set", wrong)
        assert code == 2, err
        assert said in err


def test_a_certificate_follows_its_file(mine: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = hush(capsys, "run", mine, *SMALL, "--out", "r")
    assert code == 0, err
    code, out, _ = hush(capsys, "certify", "r")
    assert code == 1
    assert "mine.py is not Hush's own, and is run only where you say so" in out
    code, _, err = hush(capsys, "certify", "r", "--code", "mine.py")
    assert code == 0, err
    (tmp_path / "elsewhere").mkdir()
    copy = shutil.copy(tmp_path / "mine.py", tmp_path / "elsewhere")
    (tmp_path / "mine.py").write_text((tmp_path / "mine.py").read_text() + "\n# changed\n")
    code, out, _ = hush(capsys, "certify", "r", "--code", "mine.py")
    assert code != 0
    assert "code has changed" in out
    code, _, err = hush(capsys, "certify", "r", "--code", copy)
    assert code == 0, err
    code, _, err = hush(capsys, "run", "--resume", "r")
    assert code == 2, err
    assert "code has changed" in err


@pytest.mark.parametrize("key", ["method", "model", "data"])
def test_who_verifies_a_certificate_runs_nothing_that_came_with_it(
    key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whoever gives a folder away writes its settings, and may put a file beside them."""
    monkeypatch.chdir(tmp_path)
    code, _, err = hush(capsys, "run", "dp-fedavg", *SMALL, "--out", "r")
    assert code == 0, err
    (tmp_path / "r" / "evil.py").write_text("from pathlib import Path\nPath('was-run').touch()\nf = None\n")
    for name in ("config.json", "certificate.json"):
        told = json.loads((tmp_path / "r" / name).read_text())
        (told["runs"][0] if "runs" in told else told)[key] = "evil.py:f" if name == "certificate.json" else "r/evil.py:f"
        (tmp_path / "r" / name).write_text(json.dumps(told))
    hush(capsys, "certify", "r")
    assert not (tmp_path / "was-run").exists()


def test_it_is_compared_and_tuned(mine: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = hush(capsys, "compare", "fedavg", mine, *SMALL, "--set", "softness=0.2", "--out", "c", "--json")
    assert code == 0, err
    assert [row["method"] for row in json.loads(out)["methods"]] == ["fedavg", "mine.py:fed_soft"]
    assert "softness means nothing to fedavg" in err
    code, out, err = hush(capsys, "tune", mine, *SMALL, "--search", "softness=0:1", "--trials", "2", "--out", "t", "--json")
    assert code == 0, err
    assert 0 <= json.loads(out)["best"]["softness"] <= 1
    code, out, err = hush(capsys, "compare", "fedavg", "dp-fedavg", "--set", "softness=0.2")
    assert code == 2, err
    code, out, err = hush(capsys, "compare", "fedavg", "dp-fedavg", "--set", "kappa=0.2")
    assert code == 2, err
    assert "kappa goes with server=adam" in err


def test_it_is_audited(mine: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = hush(capsys, "audit", mine, "--no-training", "--out", "a", "--json")
    assert code == 0, err
    assert json.loads(out)["passed"] is True


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("mine.py:fed_hard", "has nothing called 'fed_hard'"),
        ("mine.py:SoftClip", "is no method"),
        ("nowhere.py:fed_soft", "cannot be read"),
        ("broken.py:fed_soft", "cannot be imported: ZeroDivisionError"),
        ("mine.py:fed_soft+sketch", "has no setting 'mask'"),
    ],
)
def test_names_that_lead_nowhere(mine: str, name: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "broken.py").write_text("1 / 0\n")
    code, _, err = hush(capsys, "run", name)
    assert code == 2, err
    assert said in err


def test_a_search_stays_in_the_range_and_leaves_out_what_is_idle(
    mine: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (tmp_path / "mine.py").read_text()
    more = """
    depth: int = setting(2, "a whole number", "[1, 12]", search=around())
    open: float = setting(0.5, "an open end", "(0.1, 1)", search=around())
    unread: float = setting(0.5, "what the function never reads", "[0, 1]", search=around())
    idle: float = setting(0.5, "what goes with another server", "[0, 1]", search=around(), when=only_with("server", "adam"))
"""
    text = text.replace('"[0, 1]")', f'"[0, 1]", search=around()){more}').replace(
        "import setting", "import around, only_with, setting"
    )
    (tmp_path / "mine.py").write_text(text.replace("    pipeline =", "    s.depth, s.open, s.idle\n    pipeline ="))
    space = default_space(RunConfig(method=mine))
    assert space["softness"] == Range(0.05, 1.0, log=True)
    assert space["depth"] == Range(1, 12, log=True, whole=True)
    assert space["open"] == Range(math.nextafter(0.1, 1), math.nextafter(1, 0), log=True)
    assert not {"unread", "idle"} & space.keys()
    assert "idle" in default_space(RunConfig(method=mine, set={"server": "adam"}))
    with pytest.raises(UsageError, match="idle goes with server=adam"):
        parse_search(["idle=0.1:1"], RunConfig(method=mine))
    flags = ["--search", "server=average,adam", "--search", "idle=0.1:1", "--trials", "4", "--out", "t", "--json"]
    code, out, err = hush(capsys, "tune", mine, *SMALL, *flags)
    assert (code, json.loads(out)["failed"]) == (0, 0), err


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("init(self, dim):\n        return None", "SoftClip.init must return a dictionary of tensors"),
        ("encode(self, x, rnd, keys, public):\n        return x.tolist()", "SoftClip.encode must return a tensor with one row"),
        ("encode(self, x, rnd, keys, public):\n        return x.sum(0)", "not a tensor of shape (4810,)."),
        ("encode(self, x, rnd, keys, public):\n        return x @ x", "SoftClip.encode fails, line 39: RuntimeError: "),
        (
            "decode(self, total, state, rnd, public, secret):\n        return total",
            "SoftClip.decode must return the sum and the state",
        ),
        ("decode(self, total, state, rnd, public, secret):\n        return total[:3], state", "undo what encode does"),
        ("wire(self, incoming):\n        return 3", "SoftClip.wire must return a hush.Wire, not 3."),
        ("bound(self, incoming):\n        return 1.0", "SoftClip.bound must return a hush.Bound, not 1.0."),
    ],
)
def test_mistakes_in_a_transform_are_one_sentence(
    mine: str, body: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (tmp_path / "mine.py").read_text()
    (tmp_path / "mine.py").write_text(
        text.replace(
            "\n\n\n@dataclass(frozen=True, kw_only=True)", f"\n\n    def {body}\n\n\n@dataclass(frozen=True, kw_only=True)"
        )
    )
    for more in ([], ["--diagnostics"]):
        code, _, err = hush(capsys, "run", mine, *SMALL, *more)
        assert (code, said in err) == (2, True), err


def test_what_its_function_never_reads_is_refused(mine: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (tmp_path / "mine.py").read_text().replace("SoftClip(s.clip, s.softness)", "SoftClip(s.clip, 0.1)")
    (tmp_path / "mine.py").write_text(text)
    code, _, err = hush(capsys, "run", mine, *SMALL, "--set", "softness=0.3")
    assert (code, "softness does nothing in mine.py:fed_soft" in err) == (2, True)
    code, _, err = hush(capsys, "run", mine, *SMALL, "--out", "r")
    assert code == 0, err


def test_a_file_of_one_method_needs_no_name(mine: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = hush(capsys, "compare", "mine.py", "mine.py+blur", *SMALL, "--out", "c", "--dry-run", "--json")
    assert code == 0, err
    code, out, err = hush(capsys, "methods", "mine.py", "--json")
    assert (code, json.loads(out)["name"]) == (0, "mine.py:fed_soft"), err
    code, _, err = hush(capsys, "run", "mine.py", *SMALL, "--out", "r")
    assert code == 0, err
    assert json.loads((tmp_path / "r" / "config.json").read_text())["runs"][0]["method"] == str(tmp_path / mine)
    text = (tmp_path / "mine.py").read_text()
    (tmp_path / "mine.py").write_text(
        text + "\n\nfrom hush.methods import fedavg\nother = method('other', FedSoft)(lambda s: None)\n"
    )
    (tmp_path / "none.py").write_text("from hush.methods import fedavg\n")
    for name, said in (("mine.py", "declares fed_soft and other: write mine.py:fed_soft, say."), ("none.py", "declares no method")):
        code, _, err = hush(capsys, "audit", name)
        assert (code, f"{name} {said}" in err) == (2, True), err


def test_two_files_of_one_name_are_not_compared_as_one(mine: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "v2").mkdir()
    shutil.copy(tmp_path / "mine.py", tmp_path / "v2" / "mine.py")
    code, _, err = hush(capsys, "compare", mine, "v2/mine.py:fed_soft", *SMALL)
    assert (code, "rename a file" in err) == (2, True)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An installed package with entry points, as pip would leave it."""
    site = tmp_path / "site"
    (site / "soft_package-1.2.dist-info").mkdir(parents=True)
    shutil.copy(EXAMPLE, site / "soft_package.py")
    network = "torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(shape.numel(), classes))"
    more = f"\n\ndef tiny(shape, classes):\n    return {network}\n"
    (site / "soft_package.py").write_text((site / "soft_package.py").read_text() + more)
    info = site / "soft_package-1.2.dist-info"
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: soft-package\nVersion: 1.2\n")
    (info / "entry_points.txt").write_text(
        "[hush.methods]\nfed-soft = soft_package:fed_soft\n[hush.models]\ntiny = soft_package:tiny\n"
    )
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.chdir(tmp_path)
    plugins.installed.cache_clear()
    yield
    plugins.installed.cache_clear()
    sys.modules.pop("soft_package", None)


@pytest.mark.usefixtures("package")
def test_a_package_offers_methods_and_models(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = hush(capsys, "methods", "--json")
    assert code == 0, err
    assert "fed-soft" in {row["name"] for row in json.loads(out)["methods"]}
    code, out, err = hush(capsys, "run", "fed-soft+blur", *SMALL, "--model", "tiny", "--out", "r")
    assert code == 0, err
    run = json.loads((tmp_path / "r" / "certificate.json").read_text())["configuration"]["run"]
    assert (run["method"], run["model"], run["code"]) == ("fed-soft+blur", "tiny", "soft-package 1.2; soft-package 1.2")
    code, out, err = hush(capsys, "certify", "r")
    assert code == 0, err
