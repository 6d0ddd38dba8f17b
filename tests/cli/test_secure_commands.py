"""`hush run --secure` and `hush bench secagg`, as a user types them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hush.privacy.certificate import digest
from hush.report.certificate_page import certificate_page
from tests.cli.test_cli import FAST, hush

SECURE = ["fed-smp-rand-k", *FAST, "--secure"]


def test_a_run_whose_sum_is_secure(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, out, _ = hush(capsys, "run", *SECURE, "--dropout", "0.1", "--out", str(tmp_path / "r"), "--json")
    assert code == 0
    result = json.loads(out)
    assert (result["view"], result["relation"], result["sampling"]) == ("secagg", "zero-out", "rotation")
    assert result["epsilon"] == result["epsilon_server"]
    assert result["noise_mode"] == "secure"
    assert result["secure_sum"]["neighbours"] == 11
    assert result["secure_sum"]["honest_min"] < result["secure_sum"]["fewest_survivors"] < 12
    page = (tmp_path / "r" / "certificate.html").read_text()
    assert "a curious server that follows the protocol" in page
    assert "SecAgg+" in page
    assert "in no cohort of 12, however its graph is drawn" in page
    assert f"those of {result['secure_sum']['honest_min']} honest ones" in page
    code, out, _ = hush(capsys, "certify", str(tmp_path / "r"), "--json")
    assert code == 0
    assert json.loads(out)["verified"]


def test_what_is_changed_of_a_secure_sum_is_found(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Also where a forger made hash and page anew."""
    hush(capsys, "run", *SECURE, "--out", str(tmp_path / "r"), "--json")
    file, page = tmp_path / "r" / "certificate.json", tmp_path / "r" / "certificate.html"
    true, drawn = file.read_text(), page.read_text()

    def floor(c: dict[str, Any]) -> None:
        c["plan"]["honest_min"] += 5

    def promises(c: dict[str, Any]) -> None:
        c["secure_sum"]["threat"], c["secure_sum"]["corrupted"] = "malicious", 0.5

    def promises_everywhere(c: dict[str, Any]) -> None:
        c["secure_sum"]["corrupted"] = c["configuration"]["secure_sum"]["corrupted"] = 0.3

    def weaker_shares(c: dict[str, Any]) -> None:
        parts = c["configuration"]["pipeline"]
        parts[-1]["among"] = 110

    def no_sum(c: dict[str, Any]) -> None:
        c["secure_sum"] = c["configuration"]["secure_sum"] = None

    def less_likely(c: dict[str, Any]) -> None:
        c["secure_sum"]["leak_bound"] = c["configuration"]["secure_sum"]["leak_bound"] = 1e-20

    for change in (floor, promises, promises_everywhere, weaker_shares, no_sum, less_likely):
        told = json.loads(true)
        change(told)
        told["configuration_sha256"] = digest(told["configuration"])
        file.write_text(json.dumps(told))
        page.write_text(certificate_page(told))
        code, _, _ = hush(capsys, "certify", str(tmp_path / "r"))
        assert code == 2, change.__name__
    file.write_text(true)
    page.write_text(drawn)
    assert hush(capsys, "certify", str(tmp_path / "r"))[0] == 0


def test_a_dry_run_counts_the_protocols_bytes(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    _, out, _ = hush(capsys, "run", *SECURE, "--dry-run", "--json")
    expected = json.loads(out)
    _, out, _ = hush(capsys, "run", *SECURE, "--diagnostics", "--out", str(tmp_path / "r"), "--json")
    ran = json.loads(out)
    assert expected["uplink_bytes_per_client"] == pytest.approx(ran["uplink_bytes_per_client"], rel=0.01)
    assert expected["downlink_bytes_per_client"] == pytest.approx(ran["downlink_bytes_per_client"], rel=0.01)
    assert expected["epsilon"] == pytest.approx(ran["epsilon"])
    details = [json.loads(line) for line in (tmp_path / "r" / "diagnostics.jsonl").read_text().splitlines()]
    for told in details:  # in the model's own units, and with the shares of noise that came with the messages
        assert told["signal_norm"] <= 1.01
        noise = expected["noise_multiplier"] * (12 / 10) ** 0.5 * 65**0.5 / 12  # of 12 shares, where 10 suffice, on 65 entries
        assert told["noise_norm"] == pytest.approx(noise, rel=0.35)


def test_a_comparison_has_baselines_without_noise(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    flags = ["--secure", "--dropout", "0.1", "--out", str(tmp_path / "c"), "--json"]
    code, out, err = hush(capsys, "compare", "fedavg", "dp-fedavg", *FAST, *flags)
    assert code == 0
    assert "fedavg has no noise, so it is summed in the clear" in err
    assert "planned for the loss of" in err
    plain, secure = json.loads(out)["methods"]
    assert plain["secure_sum"] is None
    assert plain["sampling"] == secure["sampling"] == "rotation"
    assert secure["view"] == "secagg"


def test_rounds_that_break_off_are_told(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    flags = ["--dropout", "0.9", "--tolerate", "0", "--out", str(tmp_path / "r")]
    code, out, _ = hush(capsys, "run", *SECURE, *flags)
    assert code == 0
    assert "no round was opened" in out
    assert "nothing was released" in out
    assert "nothing was released" in hush(capsys, "certify", str(tmp_path / "r"))[1]
    assert "Nothing was released" in (tmp_path / "r" / "certificate.html").read_text()


def test_figures_of_this_machine(capsys: pytest.CaptureFixture[str]) -> None:
    small = ["bench", "secagg", "--clients", "5", "--clients", "8", "--entries", "1000", "--no-peer"]
    code, out, _ = hush(capsys, *small, "--json")
    assert code == 0
    told = json.loads(out)
    assert [row["clients"] for row in told["rounds"]] == [5, 8]
    assert all(row["exact"] for row in told["rounds"])
    assert told["theirs_over_ours"] is None
    assert told["masking"]["ratio"] > 0
    code, out, _ = hush(capsys, *small)
    assert code == 0
    assert "times AES alone" in out
