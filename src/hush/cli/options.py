"""The flags of `hush run`, `compare` and `tune`: one for each field of `RunConfig`, which is declared there alone."""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable, Mapping, Set
from dataclasses import MISSING, Field, dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, get_args, get_type_hints

import typer

from hush.cli.console import Json
from hush.config import NO_FLAG, RunConfig, parse_settings, read_toml, runs_of
from hush.errors import UsageError
from hush.methods import recipe_of, settings_of, taken, whole_name
from hush.names import DESCRIPTION, pick
from hush.plugins import absolute, is_in_file, shown


def option(key: str) -> Any:
    """How a field of `RunConfig` is typed, and what it says of itself."""
    known = RunConfig.known()[key]
    return typer.Option(known.flag or f"--{key.replace('_', '-')}", help=known.help)


Delta = Annotated[float | None, option("delta")]
Sampling = Annotated[str | None, option("sampling")]
Partition = Annotated[str | None, option("partition")]
Evaluation = Annotated[str | None, option("evaluation")]
RollbackProtection = Annotated[bool | None, option("rollback_protection")]
DataDir = Annotated[Path | None, typer.Option("--data-dir", help="Where data sets lie [default: $HUSH_DATA, or the user's cache].")]


@dataclass(frozen=True, kw_only=True)
class RunFlags:
    """What was typed after the methods: fields of `RunConfig`, and these."""

    idle: ClassVar[Mapping[str, str]] = {}
    """Flags that mean nothing to a command, and why: not listed, and refused where they are typed."""
    in_other_words: ClassVar[Mapping[str, str]] = {}
    """Flags that mean less to it than in general."""
    values: dict[str, Any]
    """By field; what was not typed is not there."""
    set: Annotated[list[str] | None, typer.Option("--set", help="A setting of the method: key=value. Repeatable.")] = None
    config: Annotated[Path | None, typer.Option("--config", help="A TOML file with the same keys; flags win over it.")] = None
    seeds: Annotated[int, typer.Option("--seeds", help="Repeat with this many seeds; report mean and deviation.")] = 1
    jobs: Annotated[int, typer.Option("--jobs", help="How many runs are made side by side, each by a process.")] = 1
    out: Annotated[Path | None, typer.Option("--out", help="Run directory [default: a new one under runs/].")] = None
    data_dir: DataDir = None
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what it would cost; train nothing.")] = False
    json: Json = False

    @property
    def typed(self) -> bool:
        """Whether any was, but for --json."""
        return bool(self.values) or any(
            getattr(self, f.name) != f.default for f in fields(self) if f.name not in ("json", "values")
        )

    def asked(self, method: str | None) -> RunConfig:
        """The run that was asked for: the file, and then the flags."""
        if self.seeds < 1:
            raise UsageError(f"seeds must be at least 1, not {self.seeds}.")
        if self.jobs < 1:
            raise UsageError(f"jobs must be at least 1, not {self.jobs}.")
        where = f" in {self.config}" if self.config else ""
        values = _read(self.config) if self.config is not None else {}
        own = _table(values.pop("set", {}), where) | parse_settings(self.set or [])
        typed = self.values | ({} if method is None else {"method": method})
        if {"noise", "epsilon"} & typed.keys():  # a flag wins over the file, also where it says the same otherwise
            values = {key: value for key, value in values.items() if key not in ("noise", "epsilon")}
        values |= typed
        if "method" in values:
            values["method"] = whole_name(str(values["method"]))
        _refuse_settings_of_the_method(values, where)
        _move_what_is_of_the_run(own, values, typed)
        return RunConfig.read(_found_from_elsewhere(values) | {"set": own}, where)

    def asked_of_each(self, names: list[str]) -> tuple[list[RunConfig], list[str]]:
        """One run for each method; a setting goes to those that use it, at least one, and the others are told of."""
        names = [absolute(name) if is_in_file(name) else name for name in map(whole_name, names)]
        if len(set(map(shown, names))) < len(names):
            raise UsageError("Two of these methods have one name, so that nobody could tell their rows apart: rename a file.")
        shared = self.asked(names[0])
        known = {key: None for name in names for key in settings_of(name)}
        for key in shared.set:
            pick(known, key, "setting of these methods")
        each = [replace(shared, method=name, set=taken(name, shared.set)) for name in names]
        notes = []
        for key in shared.set:
            without = [one.method for one in each if key not in one.set]
            if len(without) == len(names):
                recipe_of(names[0]).settings.read(shared.set, names[0])  # says what it goes with
                raise UsageError(f"{key} does nothing in any of these methods.")
            if without:
                notes.append(f"{key} means nothing to {', '.join(map(shown, without))}")
        return each, notes


def _table(own: object, where: str) -> dict[str, Any]:
    if not isinstance(own, dict):
        raise UsageError(f"[set]{where} must be a table of key = value.")
    return own


def _refuse_settings_of_the_method(values: dict[str, Any], where: str) -> None:
    """Where keys of the run stand."""
    mine = settings_of(values.get("method", RunConfig().method))
    if (key := next((key for key in values if key not in RunConfig.known() and key in mine), None)) is not None:
        raise UsageError(f"{key}{where} is a setting of the method: write it below a line [set].")


def _read(file: Path) -> dict[str, Any]:
    """The keys of a TOML file, or of the `config.json` that a run wrote."""
    if file.suffix != ".json":
        return read_toml(file)
    from hush.engines.rundir import RunDir

    runs = runs_of(RunDir(file.parent), file.name)
    if len(runs) != 1:
        names = ", ".join(shown(run.method) for run in runs)
        raise UsageError(f"{file} describes a comparison ({names}): hush compare these, with its keys in a TOML file.")
    if runs[0].from_python is not None:
        raise UsageError(f"{file} is of a run that Python started, and cannot make its {runs[0].from_python}: run it from there.")
    told = runs[0].to_dict()
    return told | {"code": None, "set": {key: value for key, value in told["set"].items() if key != "noise"}}


def _move_what_is_of_the_run(own: dict[str, Any], values: dict[str, Any], typed: dict[str, Any]) -> None:
    """`--set validation=0` says the same as `--validation 0`, unless the method has a setting of that name."""
    mine = settings_of(values.get("method", RunConfig().method)).keys() - {"noise"}
    for key in [key for key in own if key in RunConfig.known() and key not in mine]:
        if key in typed:
            raise UsageError(f"Give --{key.replace('_', '-')} or --set {key}=..., not both.")
        values[key] = own.pop(key)


def _found_from_elsewhere(values: dict[str, Any]) -> dict[str, Any]:
    """Files with their whole path: a run may be resumed from another folder."""
    found = dict(values)
    for key in ("method", "model"):
        if is_in_file(str(found.get(key, ""))):
            found[key] = absolute(found[key])
    data = str(found.get("data") or "")
    if data and (inside := Path(data) / DESCRIPTION).is_file():
        from hush.tasks.catalogue import every_dataset

        found["data"] = data if data in every_dataset() else str(inside)
    for key, is_file in (("ledger", True), ("data", str(found.get("data", "")).endswith(".toml"))):
        if found.get(key) and is_file:
            found[key] = str(Path(found[key]).resolve())
    return found


def takes_flags(command: Callable[..., None]) -> Callable[..., None]:
    """A command whose last parameter is a dataclass of flags; in place of its `values` stand all fields of `RunConfig`."""
    *own, last = inspect.signature(command, eval_str=True).parameters.values()
    kind = last.annotation
    of_run, of_command = _flags_of_runs(kind), _flags_of_commands(kind)

    @functools.wraps(command)
    def wrapper(**given: Any) -> None:
        values = {p.name: value for p in of_run if (value := given.pop(p.name)) is not None}
        flags = {p.name: given.pop(p.name) for p in of_command}
        _refuse_idle(kind, values.keys() | {p.name for p in of_command if flags[p.name] != p.default})
        command(**given, **{last.name: kind(**flags | ({"values": values} if of_run else {}))})

    parameters = [*(p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own), *of_run, *of_command]
    wrapper.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    wrapper.__annotations__ = {p.name: p.annotation for p in parameters}
    return wrapper


def _flags_of_runs(kind: type) -> list[inspect.Parameter]:
    """All fields of `RunConfig` that can be typed, where the dataclass asks for them."""
    if "values" not in get_type_hints(kind):
        return []
    kinds = RunConfig.kinds()
    names = [key for key, known in RunConfig.known().items() if key not in ("method", "set") and known.flag != NO_FLAG]
    return [_flag(key, None, kinds[key] | None, option(key), kind) for key in names]


def _flags_of_commands(kind: Any) -> list[inspect.Parameter]:
    """The dataclass' own fields."""
    hints = get_type_hints(kind, include_extras=True)
    own = [(f, get_args(hints[f.name])) for f in fields(kind) if f.name != "values"]
    return [_flag(f.name, _default(f), plain, known, kind) for f, (plain, known) in own]


def _flag(key: str, default: Any, plain: Any, known: Any, kind: type) -> inspect.Parameter:
    """A flag as this command lists it, if it does."""
    told = copy.copy(known)
    told.hidden, told.help = key in getattr(kind, "idle", ()), getattr(kind, "in_other_words", {}).get(key, known.help)
    return inspect.Parameter(key, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[plain, told])


def _refuse_idle(kind: type, typed: Set[str]) -> None:
    for key, why in getattr(kind, "idle", {}).items():
        if key in typed:
            raise UsageError(f"{why}: leave --{key.replace('_', '-')} out.")


def _default(flag: Field[Any]) -> Any:
    return inspect.Parameter.empty if flag.default is MISSING else flag.default
