"""The command line as a user types it: figures, refusals, interruptions."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hush.cli import main
from hush.cli.console import print_figures
from hush.report.figures import figures
from hush.report.tables import comparison
from hush.secret import Secret

FAST = ["--rounds", "3", "--clients", "60", "--cohort", "12", "--model", "logistic"]


def hush(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    """Exit code, standard output, standard error."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["hush", *args])
        patch.setenv("COLUMNS", "120")
        with pytest.raises(SystemExit) as stop:
            main()
    said = capsys.readouterr()
    return int(stop.value.code or 0), said.out, said.err


def shared_run(*args: str) -> None:
    """A command that succeeds, for a fixture of a whole module: `capsys` lasts one test only."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["hush", *args])
        with pytest.raises(SystemExit) as stop:
            main()
    assert not stop.value.code


def start(*args: str, cwd: Path) -> subprocess.Popen[str]:
    # a job in the background inherits an ignored SIGINT; a user's terminal does not
    script = "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
    script += "sys.argv = ['hush', *sys.argv[1:]]; from hush.cli import main; main()"
    command = [sys.executable, "-c", script, *args]
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, cwd=cwd, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for_rounds(path: Path, count: int, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise AssertionError(f"it ended too early: {process.communicate()}")
        if path.is_file() and path.read_text().count("\n") >= count:
            return
        time.sleep(0.02)
    raise AssertionError("no rounds in a minute")


@pytest.mark.parametrize(("flags", "low", "high"), [([], 0.62, 0.635), (["--sampling", "fixed"], 3.20, 3.23)])
def test_epsilon(capsys: pytest.CaptureFixture[str], flags: list[str], low: float, high: float) -> None:
    setting = ["--cohort", "100", "--clients", "6000", "--rounds", "180"]
    code, out, _ = hush(capsys, "epsilon", "--noise", "1.4", *setting, *flags, "--json")
    answer = json.loads(out)
    assert code == 0
    assert low <= answer["epsilon"] <= high
    assert answer["delta"] == pytest.approx(6000**-1.1)
    assert (answer["unit"], answer["relation"], answer["view"]) == ("client", "add-remove", "released")


def test_calibrate_maps_back(capsys: pytest.CaptureFixture[str]) -> None:
    setting = ["--cohort", "100", "--clients", "6000", "--rounds", "180", "--json"]
    _, out, _ = hush(capsys, "calibrate", "--epsilon", "1.01", *setting)
    noise = json.loads(out)["noise_multiplier"]
    _, out, _ = hush(capsys, "epsilon", "--noise", str(noise), *setting)
    assert 1.00 <= json.loads(out)["epsilon"] <= 1.01


def test_epsilon_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = hush(capsys, "epsilon", "--noise", "1.4", "--cohort", "100", "--clients", "6000", "--rounds", "180")
    assert "eps=0.63" in out
    assert "trusted" in out


def test_run_prints_one_json_object_and_fills_its_directory(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, out, _ = hush(capsys, "run", "fed-smp-rand-k", *FAST, "--epsilon", "4", "--out", str(tmp_path / "r"), "--json")
    assert code == 0
    result = json.loads(out)
    assert result["method"] == "fed-smp-rand-k"
    assert 3.9 <= result["epsilon"] <= 4.0
    assert result["epsilon_server"] is None
    names = {p.name for p in (tmp_path / "r").iterdir()}
    assert {"result.json", "rounds.jsonl", "model.safetensors", "certificate.json", "report.html", "config.json"} <= names
    assert json.loads((tmp_path / "r" / "result.json").read_text()) == result
    page = (tmp_path / "r" / "report.html").read_text()
    assert "<svg" in page
    assert "http://" not in page.replace("http://www.w3.org", "").replace("http://purl.org", "").replace(
        "http://creativecommons.org", ""
    )


def test_run_in_words_and_the_default_folder(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = hush(capsys, "run", "dp-fedavg", *FAST, "--noise", "4")
    assert code == 0
    assert "% accuracy; (eps=" in out
    assert "against anyone who reads the model" in out
    assert "Everything is in runs/dp-fedavg-" in err
    assert len(list((tmp_path / "runs").iterdir())) == 1


def test_seeds_report_mean_and_deviation(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, out, _ = hush(capsys, "run", "fedavg", *FAST, "--seeds", "3", "--out", str(tmp_path / "r"), "--json")
    value = json.loads(out)
    assert code == 0
    accuracies = [run["test_accuracy"] for run in value["runs"]]
    assert value["test_accuracy"] == pytest.approx(sum(accuracies) / 3)
    assert value["test_accuracy_std"] > 0
    assert value["seeds"] == [0, 1, 2]
    code, again, _ = hush(capsys, "run", "--resume", str(tmp_path / "r"), "--json")  # complete: read back, not repeated
    assert json.loads(again) == value


def test_compare_gives_one_table_and_one_plot(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    flags = [*FAST, "--epsilon", "1", "--set", "ratio=0.2", "--out", str(tmp_path / "c")]
    code, out, err = hush(capsys, "compare", "fedavg", "dp-fedavg", "fed-smp-rand-k", *flags)
    assert code == 0, err
    lines = [line.split() for line in out.splitlines()]
    assert [line[0] for line in lines[1:4]] == ["fedavg", "dp-fedavg", "fed-smp-rand-k"]
    assert lines[1][3] == "none"
    assert "5x less than DP-FedAvg" in out
    assert "publishing all 2 models costs more" in out
    picture = (tmp_path / "c" / "compare.png").read_bytes()
    assert picture.startswith(b"\x89PNG")
    assert len(json.loads((tmp_path / "c" / "compare.json").read_text())["methods"]) == 3


@pytest.mark.usefixtures("one_secret")
def test_a_comparison_that_broke_off_goes_on(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    flags = [*FAST, "--epsilon", "1", "--out", str(tmp_path / "c")]
    code, out, _ = hush(capsys, "compare", "fedavg", "dp-fedavg", *flags, "--json")
    assert code == 0
    for name in ("compare.json", "dp-fedavg/result.json"):
        (tmp_path / "c" / name).unlink()
    code, _, err = hush(capsys, "compare", "fedavg", "dp-fedavg", *flags)
    assert code == 2
    assert "already holds a run" in err
    code, again, _ = hush(capsys, "run", "--resume", str(tmp_path / "c"), "--json")
    assert code == 0
    assert [m["test_accuracy"] for m in json.loads(again)["methods"]] == [m["test_accuracy"] for m in json.loads(out)["methods"]]
    (tmp_path / "c" / "config.json").write_text('{"runs": 3}')
    code, _, err = hush(capsys, "run", "--resume", str(tmp_path / "c"))
    assert (code, "not what a run of Hush writes" in err) == (2, True)


def test_dry_run_trains_nothing(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, _ = hush(capsys, "run", "fed-smp-top-k", "--noise", "1.0", "--dry-run", "--json")
    value = json.loads(out)
    assert code == 0
    assert value["dry_run"]
    assert value["rounds"] == 60
    assert value["uplink_bytes_per_client"] == pytest.approx(481 * 4 * 60 / 4)
    assert value["epsilon"] > 0
    assert value["estimated_seconds"] > 0
    assert list(tmp_path.iterdir()) == []


def test_a_budget_stops_a_run(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    flags = ["--noise", "1.0", "--budget", "3", "--clients", "60", "--cohort", "12", "--model", "logistic", "--rounds", "40"]
    _, out, _ = hush(capsys, "run", "dp-fedavg", *flags, "--out", str(tmp_path / "r"))
    assert "Stopped early, budget" in out


def test_toml_and_flags(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    config = tmp_path / "c.toml"
    config.write_text(
        'method = "dp-fedavg"\nmodel = "logistic"\nrounds = 9\nclients = 60\ncohort = 12\nnoise = 4.0\n[set]\nclip = 0.5\n'
    )
    _, out, _ = hush(capsys, "run", "--config", str(config), "--rounds", "2", "--out", str(tmp_path / "r"), "--json")
    value = json.loads(out)
    _, other, _ = hush(
        capsys, "run", "--config", str(config), "--rounds", "2", "--epsilon", "1", "--out", str(tmp_path / "s"), "--json"
    )
    assert 0.97 < json.loads(other)["epsilon"] <= 1.0  # the flag wins over the file's noise
    assert (value["method"], value["rounds"], value["clip"], value["noise_multiplier"]) == ("dp-fedavg", 2, 0.5, 4.0)


BAD = {
    "run fedav": "did you mean 'fedavg'",
    "run --data digit": "did you mean 'digits'",
    "run --model mpl": "did you mean 'mlp'",
    "run fed-smp-rand-k --set ratio=1.5": "ratio must lie in (0, 1]",
    "run fed-smp-rand-k --set ratio=0": "ratio must lie in (0, 1]",
    "run --cohort 500 --clients 400": "cohort of 500 out of 400",
    "run fedavg --epsilon 2": "no privacy guarantee",
    "run fedavg-top-k --noise 2": "no privacy guarantee",
    "run dp-fedavg --noise 1 --epsilon 2": "not both",
    "run dp-fedavg --budget 2": "--budget stops a run of a given --noise",
    "run --set foo=1": "no setting of fed-smp-top-k 'foo'",
    "run --set foo": "key=value",
    "run --set lr=abc": "lr must be a number",
    "run --nope": "--nope",
    "run --config nowhere.toml": "cannot be read",
    "run --resume nowhere": "no run directory",
    "run --sum-bits 20": "goes with --secure",
    "run dp-fedavg --secure --sampling poisson": "any size",
    "run fedavg --secure": "adds no noise",
    "ledger create x.db --population p --epsilon 5 --clients 0": "--clients must be a number from 1",
    "ledger create x.db --population p --epsilon 5 --unit record --records 9": "give --delta",
    "ledger create x.db --population p --epsilon 5 --clients 9 --delta 3": "delta must lie between 0 and 1",
    "run dp-fedavg --set learning_rate=1": "did you mean 'lr'",
    "run dp-fedavg --rounds 99999999999999999999": "rounds must be at most",
    "run dp-fedavg --noise -1": "noise must be a positive number",
    "run dp-fedavg --epsilon -1": "epsilon must be a positive number",
    "run --delta 2": "delta must lie between",
    "run --rounds 0": "rounds must be a whole number of at least 1",
    "run --rounds many": "--rounds",
    "run --partition foo": "no partition",
    "run --clients 5000": "cannot be split",
    "run --memory lots": "memory must be a size",
    "run --dropout 1.5": "dropout must lie",
    "run --sampling foo": "no sampling",
    "run --seeds 0": "seeds must be at least 1",
    "run --public 0": "public examples",
    "run --device tpu9": "device",
    "run --device mps": "device",
    "run fedavg --resume nowhere": "leave the method and the other flags out",
    "run --resume nowhere --rounds 3": "leave the method and the other flags out",
    "run dp-fedavg --noise 1 --set noise=2": "not both",
    "run --participations 2": "goes with --sampling bounded",
    "run --partition dirichlet": "dirichlet needs a positive number",
    "run dp-fedavg --set ratio=0.1": "ratio goes with mask=rand-k or",
    "run --delta 0": "delta must lie between",
    "run --cohort 0": "cohort of 0",
    "epsilon --noise 0.01 --cohort 100 --clients 6000 --rounds 1 --sampling fixed --relation replace-one": "Raise the noise",
    "compare fedavg nope": "no method",
    "compare fedavg fedavg": "two different methods",
    "epsilon --noise 1": "--rounds",
    "epsilon --noise 1 --rounds 3": "--cohort and --clients",
    "epsilon --noise 1 --rounds 3 --unit record": "--records and --batch",
    "epsilon --noise 1 --rounds 3 --unit records": "no unit",
    "epsilon --noise 1 --cohort 9 --clients 3 --rounds 1": "cohort of 9 out of 3",
    "epsilon --noise 1 --cohort 1 --clients 3 --rounds 1 --relation foo": "no relation",
    "data fetch nope": "no data set",
    "run --data fashion-mnist --data-dir nowhere": "hush data fetch fashion-mnist",
}


@pytest.mark.parametrize("line", BAD)
def test_bad_input_gives_one_sentence_and_leaves_nothing(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = hush(capsys, *line.split())
    assert code == 2
    assert out == ""
    assert BAD[line] in err
    assert "Traceback" not in err
    assert len(err.strip().splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_damaged_configuration(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    config = tmp_path / "c.toml"
    for text, said in (
        ("method = ", "not valid TOML"),
        ("metod = 'fedavg'", "did you mean 'method'"),
        ("rounds = 'x'", "rounds in"),
        ("set = 5", "must be a table"),
        ("[set]\nratioo = 1", "did you mean 'ratio'"),
    ):
        config.write_text(text)
        code, _, err = hush(capsys, "run", "--config", str(config))
        assert (code, said in err) == (2, True), err


def test_an_occupied_folder_is_not_overwritten(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    place = ["--out", str(tmp_path / "r")]
    assert hush(capsys, "run", "fedavg", *FAST, *place)[0] == 0
    before = (tmp_path / "r" / "result.json").read_text()
    code, _, err = hush(capsys, "run", "fedavg", *FAST, *place)
    assert code == 2
    assert "already holds a run" in err
    assert (tmp_path / "r" / "result.json").read_text() == before


def test_lists(capsys: pytest.CaptureFixture[str]) -> None:
    for command, names in (
        ("methods", ["fedavg", "fed-smp-top-k"]),
        ("models", ["logistic", "1,663,370"]),
        ("data", ["fashion-mnist", "MIT", "digits"]),
    ):
        code, out, _ = hush(capsys, command)
        assert code == 0
        assert all(name in out for name in names)
        code, out, _ = hush(capsys, command, "--json")
        assert len(json.loads(out)[command]) >= 3
    code, out, _ = hush(capsys, "methods", "dp-fedavg+blur")
    assert code == 0
    assert all(word in out for word in ("protects clients", "blur", "0.4", "from the budget"))
    told = json.loads(hush(capsys, "methods", "fed-spa", "--json")[1])
    assert ("server", "fed-spa", "average, momentum, adam or fed-spa") in {
        (s["key"], s["default"], s["meaning"]) for s in told["settings"]
    }
    assert told["unit"] == "record"
    code, _, err = hush(capsys, "methods", "dp-fedavg+blurr")
    assert (code, "blur" in err) == (2, True)
    assert "bundled" in hush(capsys, "data", "fetch", "digits")[1]
    assert hush(capsys, "--version")[1].strip()


def test_progress_shows_accuracy_epsilon_and_bytes() -> None:
    record = {"validation_accuracy": 0.5, "test_accuracy": None, "epsilon": 1.234, "uplink_bytes_per_client": 2e6}
    assert figures(record) == "validation 50.0%  eps 1.24  2 MB"


LONG = ["--rounds", "2000", "--clients", "60", "--cohort", "12", "--noise", "30", "--model", "logistic"]


def test_ctrl_c_keeps_what_was_done(tmp_path: Path) -> None:
    process = start("run", "dp-fedavg", *LONG, "--out", "r", cwd=tmp_path)
    wait_for_rounds(tmp_path / "r" / "rounds.jsonl", 3, process)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "hush run --resume r" in err
    assert "Traceback" not in err
    assert (tmp_path / "r" / "checkpoint.safetensors").is_file()


def test_tables_are_whole_at_80_columns(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    usual = {
        "test_accuracy": 0.9,
        "best_test_accuracy": 0.9,
        "best_by": "validation",
        "uplink_bytes_per_client": 1e4,
        "seconds": 12.5,
    }
    usual |= {"downlink_bytes_per_client": 123456.0, "test_accuracy_std": 0.019, "best_test_accuracy_std": 0.019}
    rows = [
        {"method": "fed-smp-top-k+blur+lus", "epsilon": 8.0, "delta": 0.001, "unit": "client"},
        {"method": "dp-sgd", "epsilon": 8.0, "delta": 0.00037, "unit": "record"},
    ]
    print_figures(*comparison([usual | row for row in rows]))
    shown = capsys.readouterr().out
    assert "…" not in shown
    assert all(word in shown for word in ("best by validation", "epsilon", "delta", "of a", "MB down", "seconds", "90.0% ± 1.9"))
    assert shown.count("dp-sgd") == 2
    for command in (["methods"], ["methods", "dp-fedavg+blur"], ["data"], ["models"]):
        shared_run(*command)
        shown = capsys.readouterr().out
        assert "…" not in shown
        assert max(map(len, shown.splitlines())) <= 80


def test_a_configuration_file_is_toml_or_what_a_run_wrote(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = ["--rounds", "1", "--clients", "60", "--cohort", "12", "--model", "logistic"]
    for name, more in (("a", ["--set", "lr=0.2"]), ("b", ["--config", str(tmp_path / "a" / "config.json")])):
        code, _, err = hush(capsys, "run", "dp-fedavg", *(small if name == "a" else []), *more, "--out", str(tmp_path / name))
        assert code == 0, err
    assert (tmp_path / "a" / "config.json").read_text() == (tmp_path / "b" / "config.json").read_text()
    code, _, err = hush(
        capsys, "run", "--config", str(tmp_path / "a" / "config.json"), "--noise", "2", "--out", str(tmp_path / "c")
    )
    assert code == 0, err
    told = json.loads((tmp_path / "a" / "config.json").read_text())
    (tmp_path / "two.json").write_text(json.dumps(told | {"runs": told["runs"] * 2}))
    (tmp_path / "python.json").write_text(json.dumps(told | {"runs": [told["runs"][0] | {"from_python": "task"}]}))
    (tmp_path / "x.toml").write_text("lr = 0.1")
    for file, said in (
        ("two.json", "describes a comparison (dp-fedavg, dp-fedavg)"),
        ("python.json", "is of a run that Python started, and cannot make its task"),
        ("x.toml", "is a setting of the method: write it below a line [set]."),
    ):
        code, _, err = hush(capsys, "run", "--config", str(tmp_path / file))
        assert (code, said in err) == (2, True), err


@pytest.mark.parametrize("instead", ["raise RuntimeError('trying to pop from empty mode stack')", "return whole(*args, **kwargs)"])
def test_ctrl_c_that_a_library_turns_into_something_else(instead: str, tmp_path: Path) -> None:
    """An interrupt between two lines of a library arrives as its own error, or is swallowed; it is still the user's wish."""
    script = f"""
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
import hush.cli
import hush.cli.runs as runs
whole = runs.train
def train(*args, **kwargs):
    try:
        os.kill(os.getpid(), signal.SIGINT)
        for _ in range(10**7): pass
    except KeyboardInterrupt:
        {instead}
runs.train = train
sys.argv = ['hush', 'run', 'fedavg', '--rounds', '5', '--clients', '60', '--cohort', '12', '--model', 'logistic', '--out', 'r']
hush.cli.main()
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 130, done.stderr
    assert "Traceback" not in done.stderr
    assert "hush run --resume r" in done.stderr


def test_ctrl_c_while_everything_is_still_loading(tmp_path: Path) -> None:
    script = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # which a shell may have had ignored
        "import _thread, sys, threading, hush.cli; assert 'torch' not in sys.modules; sys.argv = ['hush', 'run', '--out', 'r']; "
        "threading.Timer(0.3, _thread.interrupt_main).start(); hush.cli.main()"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 130
    assert done.stderr == "hush: interrupted.\n"
    assert list(tmp_path.iterdir()) == []


def kill_twice_and_compare(tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str], kills: tuple[int, int]) -> None:
    """Kill the process outright after so many rounds; what is resumed ends as what ran through, to the last bit."""
    command = ["run", "fed-smp-top-k", *flags, "--out", "killed"]
    for rounds in kills:
        process = start(*command, cwd=tmp_path)
        wait_for_rounds(tmp_path / "killed" / "rounds.jsonl", rounds, process)
        process.kill()
        process.communicate()
        assert process.returncode == -signal.SIGKILL
        command = ["run", "--resume", "killed"]
    assert len((tmp_path / "killed" / "rounds.jsonl").read_text().splitlines()) >= kills[-1]
    kept = json.loads((tmp_path / "killed" / "run.json").read_text())
    code, again, err = hush(capsys, "run", "--resume", str(tmp_path / "killed"), "--json")
    assert code == 0, err
    with pytest.MonkeyPatch.context() as patch:  # a run that draws the secret that the other one kept
        patch.setattr(Secret, "fresh", lambda: Secret(bytes.fromhex(kept["secret"])))
        code, out, err = hush(capsys, "run", "fed-smp-top-k", *flags, "--out", str(tmp_path / "whole"), "--json")
    assert code == 0, err
    a, b = json.loads(out), json.loads(again)
    assert b["run_id"] == kept["run_id"]
    for key in ("seconds", "seconds_per_round", "run_id"):
        a.pop(key), b.pop(key)
    assert a == b
    for name in ("model.safetensors", "rounds.jsonl"):
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "killed" / name).read_bytes()


def test_sigkill_in_any_round_resumes_to_the_identical_result(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Twice, at different moments. `make soak` does it with a larger model and more clients."""
    flags = ["--rounds", "40", "--clients", "60", "--cohort", "12", "--model", "logistic", "--noise", "20", "--eval-every", "4"]
    flags += ["--set", "average_iterates=0.7", "--set", "local_epochs=1", "--set", "public_steps=3"]
    kill_twice_and_compare(tmp_path, capsys, flags, kills=(2, 9))


def test_a_full_disk_gives_a_sentence_and_keeps_what_was_saved(tmp_path: Path) -> None:
    """A limit on file size stands in for a full disk: the kernel refuses the write in the same place."""
    script = (
        "import resource, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN); "
        "resource.setrlimit(resource.RLIMIT_FSIZE, (2500, 2500)); "
        "sys.argv = ['hush', *sys.argv[1:]]; from hush.cli import main; main()"
    )
    command = [sys.executable, "-B", "-c", script, "run", "dp-fedavg", *LONG, "--out", "r"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    assert "cannot be written" in done.stderr
    assert "Traceback" not in done.stderr
    assert not list((tmp_path / "r").glob(".*draft"))


def test_a_folder_of_runs_is_not_a_run(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A run written among others would hide them from hush certify."""
    assert hush(capsys, "run", "fedavg", *FAST, "--out", str(tmp_path / "runs" / "a"))[0] == 0
    code, _, err = hush(capsys, "run", "fedavg", *FAST, "--out", str(tmp_path / "runs"))
    assert (code, "folder of other runs" in err) == (2, True), err
    code, _, err = hush(capsys, "run", "fedavg", *FAST, "--out", str(tmp_path / "runs" / "a" / "result.json"))
    assert (code, "is a file" in err) == (2, True), err


def test_a_comparison_says_what_records_change_for_all(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = hush(capsys, "compare", "dp-fedavg", "fed-spa", "--rounds", "2", "--dry-run")
    assert code == 0
    assert "20 clients, 5 a round, 2 rounds" in err
    assert out.count("2 rounds of 5 of 20 clients") == 2
    assert "note" not in hush(capsys, "compare", "dp-fedavg", "fedavg", "--rounds", "2", "--dry-run")[2]
