"""The flags of `hush run` and `hush compare`, declared once."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from hush.errors import UsageError
from hush.experiment import Spec, parse_settings, read_toml

Delta = Annotated[
    float | None,
    typer.Option("--delta", help="Delta [default: min(n^-1.1, 0.01), n the clients or, where records are protected, those]."),
]
Sampling = Annotated[
    str | None,
    typer.Option(
        "--sampling", help="poisson, fixed, bounded, secret or rotation [default: rotation where taking part shows, else poisson]."
    ),
]
Participations = Annotated[int | None, typer.Option("--participations", help="With --sampling bounded: most rounds of a client.")]
Partition = Annotated[
    str | None,
    typer.Option(
        "--partition",
        help="iid, dirichlet:ALPHA, shards:K, natural; +lognormal:SIGMA or +zipf:A for unequal sizes [default: the data set's].",
    ),
]
Evaluation = Annotated[
    str | None,
    typer.Option("--evaluation", help="central: on nobody's examples; clients: on a tenth of each client's own, kept apart."),
]
DataDir = Annotated[Path | None, typer.Option("--data-dir", help="Where data sets lie [default: $HUSH_DATA, or the user's cache].")]
RollbackProtection = Annotated[
    bool | None,
    typer.Option(
        "--rollback-protection/--no-rollback-protection",
        help="Refuse a shared ledger that this machine cannot remember (default), or go on, and say so on the certificate.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="One JSON object on standard output, and nothing else.")]


@dataclass(frozen=True, kw_only=True)
class RunFlags:
    """What was typed after the methods. A flag that was not typed is None: the file or the default decides."""

    data: Annotated[
        str | None, typer.Option("--data", help="Data set (hush data lists them), or a .toml file that describes your own.")
    ] = None
    model: Annotated[str | None, typer.Option("--model", help="Model (hush models lists them).")] = None
    clients: Annotated[int | None, typer.Option("--clients", help="How many clients hold the data.")] = None
    cohort: Annotated[float | None, typer.Option("--cohort", help="Expected number of clients a round.")] = None
    rounds: Annotated[int | None, typer.Option("--rounds", help="Number of rounds.")] = None
    noise: Annotated[float | None, typer.Option("--noise", help="Noise multiplier: standard deviation over the clip.")] = None
    epsilon: Annotated[float | None, typer.Option("--epsilon", help="Find the noise that spends this epsilon [default: 8].")] = None
    budget: Annotated[
        float | None, typer.Option("--budget", help="With --noise: stop before the round that exceeds this epsilon.")
    ] = None
    delta: Delta = None
    sampling: Sampling = None
    participations: Participations = None
    partition: Partition = None
    evaluation: Evaluation = None
    validation: Annotated[int | None, typer.Option("--validation", help="Training examples held out for validation.")] = None
    public: Annotated[int | None, typer.Option("--public", help="Training examples made public, taken from the clients.")] = None
    test_examples: Annotated[
        int | None, typer.Option("--test-examples", help="Judge on so many test examples at most [default: all, or hush data's].")
    ] = None
    start: Annotated[
        str | None,
        typer.Option(
            "--start", help="random weights (default), or features of images of nobody, processes, or public ones, public."
        ),
    ] = None
    seed: Annotated[int | None, typer.Option("--seed", help="Start of all public randomness [default: 0].")] = None
    seeds: Annotated[int, typer.Option("--seeds", help="Repeat with this many seeds; report mean and deviation.")] = 1
    device: Annotated[str | None, typer.Option("--device", help="auto (default), cpu or cuda.")] = None
    memory: Annotated[str | None, typer.Option("--memory", help="What a chunk of clients may use, such as 2GiB.")] = None
    set: Annotated[list[str] | None, typer.Option("--set", help="A setting of the method: key=value. Repeatable.")] = None
    config: Annotated[Path | None, typer.Option("--config", help="A TOML file with the same keys; flags win over it.")] = None
    secure: Annotated[
        bool | None, typer.Option("--secure", help="Sum by secure aggregation: noise in shares, the server learns the sum alone.")
    ] = None
    sum_bits: Annotated[
        int | None, typer.Option("--sum-bits", help="With --secure: bits of each entry [default: 24, or the method's own].")
    ] = None
    tolerate: Annotated[
        float | None,
        typer.Option("--tolerate", help="With --secure: share of a cohort that may vanish [default: what --dropout makes likely]."),
    ] = None
    corrupted: Annotated[
        float | None, typer.Option("--corrupted", help="With --secure: share that may tell the server all it knows [default: 0.1].")
    ] = None
    threat: Annotated[str | None, typer.Option("--threat", help="With --secure: a curious (default) or a malicious server.")] = None
    masks: Annotated[
        str | None, typer.Option("--masks", help="With --secure: fresh in every round (default), or amortised, as CPFed's.")
    ] = None
    noise_mode: Annotated[
        str | None,
        typer.Option("--noise-mode", help="fast (default, for research) or secure: exact, cryptographic, not repeatable."),
    ] = None
    noise_seed: Annotated[
        int | None, typer.Option("--noise-seed", help="Repeat noise and cohorts to the last bit: no guarantee holds then.")
    ] = None
    diagnostics: Annotated[
        bool | None,
        typer.Option("--diagnostics/--no-diagnostics", help="Keep un-noised figures [default: where nothing is guaranteed]."),
    ] = None
    ledger: Annotated[
        str | None, typer.Option("--ledger", help="A ledger shared by all runs on the same clients; its budget is enforced.")
    ] = None
    population: Annotated[
        str | None, typer.Option("--population", help="With --ledger: whose privacy is spent [default: the data set].")
    ] = None
    rollback_protection: RollbackProtection = None
    dropout: Annotated[float | None, typer.Option("--dropout", help="Share of selected clients that vanishes.")] = None
    eval_every: Annotated[int | None, typer.Option("--eval-every", help="Evaluate every so many rounds.")] = None
    track_test: Annotated[
        bool | None, typer.Option("--track-test", help="Evaluate the test set every round and report the best, as papers do.")
    ] = None
    out: Annotated[Path | None, typer.Option("--out", help="Run directory [default: a new one under runs/].")] = None
    data_dir: DataDir = None
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what it would cost; train nothing.")] = False
    json: Json = False

    def typed(self) -> list[str]:
        """The flags that were typed, but for --json."""
        return [f.name for f in fields(self) if f.name != "json" and getattr(self, f.name) != f.default]

    def spec(self, method: str | None, shared: list[str] | None = None) -> Spec:
        """Defaults, then the file, then the flags. With several methods, a setting goes to those of them that take it."""
        from hush.methods import settings_of, taken
        from hush.names import pick

        if self.seeds < 1:
            raise UsageError(f"seeds must be at least 1, not {self.seeds}.")
        values: dict[str, Any] = read_toml(self.config) if self.config is not None else {}
        given = values.pop("set", {})
        if not isinstance(given, dict):
            raise UsageError(f"[set] in {self.config} must be a table of key = value.")
        given = given | parse_settings(self.set or [])
        typed = {"method": method} | {key: value for key, value in asdict(self).items() if key in Spec.model_fields}
        if self.noise is not None or self.epsilon is not None:  # a flag wins over the file, also where it says the same otherwise
            values = {key: value for key, value in values.items() if key not in ("noise", "epsilon")}
        values |= {key: value for key, value in typed.items() if value is not None and key != "set"}
        for key in [key for key in given if key in Spec.model_fields]:  # --set validation=0 says the same as --validation 0
            if typed.get(key) is not None:
                raise UsageError(f"Give --{key.replace('_', '-')} or --set {key}=..., not both.")
            values[key] = given.pop(key)
        if values.get("ledger"):  # a run that is resumed from elsewhere must find the same one
            values["ledger"] = str(Path(values["ledger"]).resolve())
        if str(values.get("data", "")).endswith(".toml"):
            values["data"] = str(Path(values["data"]).resolve())
        if shared:
            known = {key: None for name in shared for key in settings_of(name)}
            for key in given:
                pick(known, key, "setting of these methods")
            given = taken(values["method"], given)
        return Spec.read(values | {"set": given}, f" in {self.config}" if self.config else "")


def takes_flags(command: Callable[..., None]) -> Callable[..., None]:
    """A command whose last parameter is `flags: RunFlags`, with each of its fields as a flag of its own."""

    @functools.wraps(command)
    def wrapper(**values: Any) -> None:
        own = {field.name: values.pop(field.name) for field in fields(RunFlags)}
        command(**values, flags=RunFlags(**own))

    hints = get_type_hints(RunFlags, include_extras=True)
    parameters = [
        p.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for p in inspect.signature(command, eval_str=True).parameters.values()
        if p.name != "flags"
    ]
    parameters += [
        inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=hints[field.name])
        for field in fields(RunFlags)
    ]
    wrapper.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    wrapper.__annotations__ = {p.name: p.annotation for p in parameters}
    return wrapper
