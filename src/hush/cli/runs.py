"""`hush run` and `hush compare`."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from hush.cli import options
from hush.cli.console import figures, out, print_json, round_progress, say
from hush.engines.result import Result
from hush.engines.rundir import RunDir
from hush.errors import UsageError
from hush.experiment import Experiment, Spec, parse_settings, read_toml, resolve
from hush.report.seeds import over_seeds
from hush.report.tables import comparison


def run(
    method: Annotated[str | None, typer.Argument(help="Method (hush methods lists them).")] = None,
    data: options.Data = None,
    model: options.Model = None,
    clients: options.Clients = None,
    cohort: options.CohortSize = None,
    rounds: options.Rounds = None,
    noise: options.Noise = None,
    epsilon: options.Epsilon = None,
    budget: options.BudgetFlag = None,
    delta: options.Delta = None,
    sampling: options.Sampling = None,
    participations: options.Participations = None,
    partition: options.Partition = None,
    validation: options.Validation = None,
    public: options.PublicExamples = None,
    seed: options.Seed = None,
    seeds: options.Seeds = 1,
    device: options.Device = None,
    memory: options.Memory = None,
    settings: options.Set = None,
    config: options.Config = None,
    secure: options.Secure = False,
    dropout: options.Dropout = None,
    eval_every: options.EvalEvery = None,
    track_test: options.TrackTest = False,
    out_dir: options.Out = None,
    resume: Annotated[Path | None, typer.Option("--resume", help="Go on with the run in this directory.")] = None,
    data_dir: options.DataDir = None,
    dry_run: options.DryRun = False,
    as_json: options.Json = False,
) -> None:
    """Train one method and say what was learned, what it cost and what privacy was spent."""
    if resume is not None:
        _resume(resume, as_json)
        return
    _refuse_secure(secure)
    flags = dict(
        method=method, data=data, model=model, clients=clients, cohort=cohort, rounds=rounds, noise=noise, epsilon=epsilon,
        budget=budget, delta=delta, sampling=sampling, participations=participations, partition=partition,
        validation=validation, public=public, seed=seed, device=device, memory=memory, dropout=dropout,
        eval_every=eval_every, track_test=track_test or None,
    )  # fmt: skip
    spec = _spec(flags, settings, config)
    experiment = resolve(spec)
    if dry_run:
        _dry_run([experiment], data_dir, as_json)
        return
    folder = RunDir(out_dir or _new_folder(spec.method))
    if folder.started:
        raise UsageError(f"{folder.path} already holds a run: use --resume {folder.path}, or another --out.")
    folder.write_json("config.json", _config(spec, seeds, data_dir))
    _run_seeds(spec, seeds, folder, data_dir, as_json)


def compare(
    methods: Annotated[list[str], typer.Argument(help="Two or more methods.")],
    data: options.Data = None,
    model: options.Model = None,
    clients: options.Clients = None,
    cohort: options.CohortSize = None,
    rounds: options.Rounds = None,
    noise: options.Noise = None,
    epsilon: options.Epsilon = None,
    budget: options.BudgetFlag = None,
    delta: options.Delta = None,
    sampling: options.Sampling = None,
    participations: options.Participations = None,
    partition: options.Partition = None,
    validation: options.Validation = None,
    public: options.PublicExamples = None,
    seed: options.Seed = None,
    seeds: options.Seeds = 1,
    device: options.Device = None,
    memory: options.Memory = None,
    settings: options.Set = None,
    config: options.Config = None,
    secure: options.Secure = False,
    dropout: options.Dropout = None,
    eval_every: options.EvalEvery = None,
    track_test: options.TrackTest = False,
    out_dir: options.Out = None,
    data_dir: options.DataDir = None,
    dry_run: options.DryRun = False,
    as_json: options.Json = False,
) -> None:
    """Train several methods on the same task: one table, one plot. A setting goes to the methods that take it."""
    _refuse_secure(secure)
    flags = dict(
        data=data, model=model, clients=clients, cohort=cohort, rounds=rounds, noise=noise, epsilon=epsilon,
        budget=budget, delta=delta, sampling=sampling, participations=participations, partition=partition,
        validation=validation, public=public, seed=seed, device=device, memory=memory, dropout=dropout,
        eval_every=eval_every, track_test=track_test or None,
    )  # fmt: skip
    specs = [_spec(flags | {"method": name}, settings, config, shared=methods) for name in dict.fromkeys(methods)]
    experiments = [resolve(spec, lenient=True) for spec in specs]
    if dry_run:
        _dry_run(experiments, data_dir, as_json)
        return
    folder = RunDir(out_dir or _new_folder("compare"))
    if folder.started or (folder.path / "compare.json").exists():
        raise UsageError(f"{folder.path} already holds a run: choose another --out.")
    rows, curves = [], {}
    with _kept(folder.path, again="hush compare"):
        for spec in specs:
            results = _all_seeds(spec, seeds, RunDir(folder.path / spec.method), data_dir, lenient=True)
            rows.append(over_seeds(results))
            curves[spec.method] = results[0].history
            folder.write_json("compare.json", {"methods": rows})
    picture = _plot(folder, curves, f"{rows[0]['model']} on {rows[0]['data']}")
    if as_json:
        print_json({"methods": rows, "plot": picture})
        return
    out().print(comparison(rows))
    print(_last_sentence(rows, experiments, folder))
    say(f"Everything is in {folder.path}" + (f"; the picture is {picture}" if picture else ""))


def _spec(flags: dict[str, Any], settings: list[str] | None, config: Path | None, shared: list[str] | None = None) -> Spec:
    """Defaults, then the file, then the flags."""
    from hush.methods import settings_of
    from hush.names import pick

    values: dict[str, Any] = read_toml(config) if config is not None else {}
    given = dict(values.pop("set", {})) | parse_settings(settings or [])
    values |= {key: value for key, value in flags.items() if value is not None}
    for key in list(given):  # task-level keys may come through --set as well
        if key in Spec.model_fields and key != "set":
            values.setdefault(key, given.pop(key))
    if shared:
        known = {key: None for name in shared for key in settings_of(name)}
        for key in given:
            pick(known, key, "setting of these methods")
        given = {key: value for key, value in given.items() if key in settings_of(values["method"])}
    return Spec.read(values | {"set": given}, f" in {config}" if config else "")


def _refuse_secure(secure: bool) -> None:
    if secure:
        raise UsageError("--secure needs secure aggregation, which this version of Hush does not have yet: leave the flag out.")


def _config(spec: Spec, seeds: int, data_dir: Path | None) -> dict[str, Any]:
    return {"spec": spec.model_dump(), "seeds": seeds, "data_dir": str(data_dir.resolve()) if data_dir else None}


def _new_folder(name: str) -> Path:
    stamp = time.strftime("%Y%m%d-%H%M%S")
    path = Path("runs") / f"{name}-{stamp}"
    count = 1
    while path.exists():
        count += 1
        path = Path("runs") / f"{name}-{stamp}-{count}"
    return path


def _resume(path: Path, as_json: bool) -> None:
    if not path.is_dir():
        raise UsageError(f"There is no run directory {path}.")
    folder = RunDir(path)
    config = folder.read_json("config.json")
    spec = Spec.read(config["spec"], f" in {path / 'config.json'}")
    _run_seeds(spec, config["seeds"], folder, Path(config["data_dir"]) if config["data_dir"] else None, as_json)


def _run_seeds(spec: Spec, seeds: int, folder: RunDir, data_dir: Path | None, as_json: bool) -> None:
    if seeds < 1:
        raise UsageError(f"seeds must be at least 1, not {seeds}.")
    with _kept(folder.path, again=f"hush run --resume {folder.path}"):
        results = _all_seeds(spec, seeds, folder, data_dir)
    value = over_seeds(results)
    if seeds > 1:
        folder.write_json("result.json", value)
    if as_json:
        print_json(value)
        return
    if seeds > 1:
        out().print(comparison([value]))
    print(results[0].sentence() + ".")
    if results[0].stopped:
        print(f"Stopped early, {results[0].stopped}.")
    say(f"Everything is in {folder.path}")


def _all_seeds(spec: Spec, seeds: int, folder: RunDir, data_dir: Path | None, lenient: bool = False) -> list[Result]:
    """One run a seed; a run that is already complete is read back instead of repeated."""
    results = []
    for i in range(seeds):
        own = spec.model_copy(update={"seed": spec.seed + i})
        place = folder if seeds == 1 else RunDir(folder.path / f"seed-{own.seed}")
        results.append(_one(resolve(own, lenient), place, data_dir))
    return results


def _one(experiment: Experiment, folder: RunDir, data_dir: Path | None) -> Result:
    """One run with its progress bar and its page."""
    if folder.finished:
        return _read_back(folder)
    spec = experiment.spec
    if not (folder.path / "config.json").exists():
        folder.write_json("config.json", _config(spec, 1, data_dir))
    task = experiment.task(data_dir)
    with round_progress() as progress:
        label = spec.method if spec.seed == 0 else f"{spec.method} seed {spec.seed}"
        bar = progress.add_task(label, total=experiment.rounds, figures="")
        result = experiment.run(task, out=folder.path, resume=True, on_round=_advance(progress, bar))
    from hush.report.page import run_page

    details = folder.keep_rounds("diagnostics.jsonl", result.rounds)
    folder.write_bytes("report.html", run_page(result, details).encode())
    return result


def _advance(progress: Any, bar: Any) -> Callable[[dict[str, Any]], None]:
    shown = ""

    def on_round(record: dict[str, Any]) -> None:
        nonlocal shown
        shown = figures(record) if "epsilon" in record else shown
        progress.update(bar, completed=record["round"], total=record["rounds"], figures=shown)

    return on_round


def _read_back(folder: RunDir) -> Result:
    """A complete run from its files."""
    from hush.privacy.guarantee import Guarantee, Relation, Unit, View

    value = folder.read_json("result.json")
    certificate = folder.read_json("certificate.json")
    proved = certificate["guarantee"]
    guarantee = None
    if proved is not None:
        kinds = {"unit": Unit(proved["unit"]), "relation": Relation(proved["relation"]), "view": View(proved["view"])}
        guarantee = Guarantee(**proved | kinds | {"assumptions": tuple(proved["assumptions"])})
    history = folder.keep_rounds("rounds.jsonl", value["rounds"])
    return Result(**value | {"notes": tuple(value["notes"])}, guarantee=guarantee, history=history)


class _kept:  # noqa: N801  # reads as a word: with _kept(path, ...)
    """Say where the work is when Ctrl-C or an error ends it."""

    def __init__(self, path: Path, again: str) -> None:
        self.path, self.again = path, again

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if kind is KeyboardInterrupt:
            say(f"Interrupted; what was done is in {self.path}. Go on with: {self.again}")


def _dry_run(experiments: list[Experiment], data_dir: Path | None, as_json: bool) -> None:
    from hush.engines.estimate import estimate

    rows = []
    for e in experiments:
        task = e.task(data_dir)
        rows.append(estimate(e.method, task, e.cohort, e.rounds, e.budget, e.spec.delta, e.spec.device, e.spec.memory))
    if as_json:
        print_json(rows[0] if len(rows) == 1 else {"methods": rows})
        return
    for row in rows:
        privacy = "no privacy guarantee" if row["epsilon"] is None else f"eps={row['epsilon']:.2f} at delta={row['delta']:.1e}"
        sent, got = row["uplink_bytes_per_client"] / 1e6, row["downlink_bytes_per_client"] / 1e6
        took = row["estimated_seconds"]
        print(
            f"{row['method']}: {row['rounds']} rounds, {row['parameters']:,} parameters, {privacy}; "
            f"{sent:.3g} MB up and {got:.3g} MB down per client; about {took:.0f} s"
        )


def _plot(folder: RunDir, curves: dict[str, list[dict[str, Any]]], title: str) -> str | None:
    from hush.report.plots import as_png, comparison_figure

    try:
        folder.write_bytes("compare.png", as_png(comparison_figure(curves, title)))
    except UsageError as error:
        say(f"note: {error}")
        return None
    return str(folder.path / "compare.png")


def _last_sentence(rows: list[dict[str, Any]], experiments: list[Experiment], folder: RunDir) -> str:
    """The last method in words, beside DP-FedAvg if it was there."""
    read = {row["method"]: _read_back(RunDir(_first_run(folder.path / row["method"]))) for row in rows}
    last = read[experiments[-1].spec.method]
    beside = read.get("dp-fedavg")
    return f"{last.method}: {last.sentence(beside if beside is not last else None)}."


def _first_run(path: Path) -> Path:
    seeded = sorted(path.glob("seed-*"))
    return seeded[0] if seeded else path
