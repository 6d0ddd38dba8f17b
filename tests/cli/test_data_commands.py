"""`hush data`, `hush data show`, `hush models`: what there is, and who would hold what."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hush.tasks.catalogue import CATALOGUE
from tests.cli.test_cli import hush


def test_every_data_set_is_listed_with_licence_size_and_checksums(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, out, _ = hush(capsys, "data", "--json", "--data-dir", str(tmp_path))
    assert code == 0
    rows = {row["name"]: row for row in json.loads(out)["data"]}
    papers = {"fashion-mnist", "mnist", "svhn", "cifar10", "cifar100", "emnist", "femnist", "shakespeare", "adult", "digits"}
    assert papers <= set(rows)
    for name, row in rows.items():
        assert row["licence"]
        assert row["citation"]
        assert row["here"] is (name == "digits")
        if name != "digits":
            assert row["bytes"] > 1e6
            assert row["source"].startswith("http")
            assert all(len(file["sha256"]) == 64 and file["bytes"] for file in row["files"])
    assert (rows["femnist"]["natural"], rows["shakespeare"]["natural"], rows["shakespeare-tff"]["natural"]) == (3400, 660, 715)
    code, out, _ = hush(capsys, "data", "--data-dir", str(tmp_path))
    assert code == 0
    for entry in CATALOGUE.values():
        assert entry.name in out
        assert entry.licence.split()[0] in out


def test_every_model_is_listed_with_the_papers_counts(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = hush(capsys, "models", "--json")
    assert code == 0
    counts = {row["name"]: row["parameters"] for row in json.loads(out)["models"]}
    assert counts["fed-smp-cnn"]["fashion-mnist"] == 1_663_370
    assert counts["fed-smp-svhn-cnn"]["svhn"] == 3_431_754
    assert counts["fed-spa-mnist-cnn"]["mnist"] == 21_840
    assert counts["fed-spa-cifar-cnn"]["cifar10"] == 537_610
    assert counts["afo-cnn"]["femnist"] == 1_206_590
    assert counts["ddgauss-cnn"]["femnist"] == 1_018_174
    assert counts["char-lstm"] == {"shakespeare": 819_920}
    assert counts["char-lstm-every"] == {"shakespeare-tff": 822_570}
    assert set(counts["logistic"]) == set(CATALOGUE) - {"shakespeare", "shakespeare-tff"}
    for entry in CATALOGUE.values():
        assert all(entry.name in counts[model] for model in (entry.model, *entry.papers))
    code, out, _ = hush(capsys, "models")
    assert code == 0
    assert "resnet18" in out


@pytest.mark.parametrize("spec", ["iid", "dirichlet:0.1+zipf:1", "shards:2"])
def test_a_picture_of_who_would_hold_what(capsys: pytest.CaptureFixture[str], tmp_path: Path, spec: str) -> None:
    picture = tmp_path / "new" / "p.png"
    args = ("data", "show", "digits", "--partition", spec, "--clients", "60", "--public", "50", "--out", str(picture))
    code, out, _ = hush(capsys, *args, "--json")
    assert code == 0
    told = json.loads(out)
    assert (told["clients"], told["examples"], told["partition"]) == (60, 1500 - 150 - 50, spec)
    assert told["picture"] == str(picture)
    assert picture.read_bytes().startswith(b"\x89PNG")
    spread = told["effective_labels_per_client"]
    assert 1 <= spread["min"] <= spread["median"] <= spread["max"] <= 10
    assert (spread["median"] > 6) == (spec == "iid")
    code, out, _ = hush(capsys, *args)
    assert code == 0
    assert "60 clients hold 1,300 examples" in out


def test_pictures_that_cannot_be(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for args, said in (
        (("digits", "--out", "p.gif"), "a .png or a .svg"),
        (("digits", "--partition", "natural"), "by nature"),
        (("digitz",), "did you mean 'digits'"),
        (("digits", "--partition", "dirichlet"), "dirichlet needs a positive number"),
        (("digits", "--out", "/proc/p.png"), "cannot be written"),
        (("mnist", "--data-dir", str(tmp_path)), "hush data fetch mnist"),
    ):
        code, out, err = hush(capsys, "data", "show", *args)
        assert code == 2
        assert said in err
        assert not out


def test_a_run_takes_the_data_sets_flags(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    common = ("run", "fedavg", "--rounds", "2", "--clients", "50", "--cohort", "10", "--json")
    code, out, _ = hush(
        capsys,
        *common,
        "--partition",
        "iid+lognormal:1",
        "--evaluation",
        "clients",
        "--set",
        "max_local_steps=2",
        "--out",
        str(tmp_path / "a"),
    )
    assert code == 0
    result = json.loads(out)
    assert result["per_client"]["figure"] == "accuracy"
    assert "test_accuracy" in result["un_noised"]
    record = json.loads((tmp_path / "a" / "rounds.jsonl").read_text().splitlines()[-1])
    assert set(record["un_noised"]) == {"validation_accuracy", "validation_loss"}
    page = (tmp_path / "a" / "report.html").read_text()
    assert "accuracy at which a tenth of" in page
    assert "(simulation only)" in page  # on the next line of the same label
    assert "un-noised views of the clients' data" in page
    code, out, _ = hush(capsys, *common, "--test-examples", "100", "--out", str(tmp_path / "b"))
    assert code == 0
    result = json.loads(out)
    assert result["un_noised"] == ["train_loss", "wasted_work"]
    assert result["per_client"] is None
    assert any("100 of 297" in note for note in result["notes"])
    code, _, err = hush(capsys, *common, "--evaluation", "klients", "--out", str(tmp_path / "c"))
    assert code == 2
    assert "did you mean 'clients'" in err


def test_the_certificate_says_which_figures_are_not_covered(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    args = (
        "--rounds",
        "1",
        "--clients",
        "50",
        "--cohort",
        "10",
        "--noise",
        "1",
        "--evaluation",
        "clients",
        "--out",
        str(tmp_path / "a"),
    )
    assert hush(capsys, "run", "dp-fedavg", *args)[0] == 0
    certificate = json.loads((tmp_path / "a" / "certificate.json").read_text())
    assert {"test_accuracy", "validation_accuracy", "per_client"} <= set(certificate["un_noised"])
    assert "Not covered" in (tmp_path / "a" / "certificate.html").read_text()
    code, out, _ = hush(capsys, "certify", str(tmp_path / "a"))
    assert code == 0, out
