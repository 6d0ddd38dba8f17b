"""`hush tune METHOD`: search over settings at a fixed privacy budget."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any

import typer

from hush.cli.console import figure, print_figures, print_json, round_progress, say
from hush.cli.folders import done, kept, new_folder, picture
from hush.cli.interrupt import stop_if_heard
from hush.cli.options import RunFlags, takes_flags
from hush.config import RunConfig
from hush.engines.jobs import Ask, Done, Failed, Note, SideBySide
from hush.engines.rundir import RunDir
from hush.errors import DataError, HushError, UsageError
from hush.plugins import shown
from hush.privacy.guarantee import at_least
from hush.report.tuning_picture import tuning_figure
from hush.tuning.asked import Asked
from hush.tuning.study import Player, Trial, Tuning, play, refuse_without_optuna, so_far
from hush.tuning.study import tune as search_on

STUDY = "study.db"
_TRIALS = 20
_SHOWN = 5


@takes_flags
def tune(
    method: Annotated[str | None, typer.Argument(help="Method (hush methods lists them).")] = None,
    trials: Annotated[int | None, typer.Option("--trials", help=f"How many settings to try [default: {_TRIALS}].")] = None,
    search: Annotated[
        list[str] | None,
        typer.Option("--search", help="KEY=LOW:HIGH[:log|:int], KEY=a,b,c, ratio=auto. Repeatable [default: what matters most]."),
    ] = None,
    pruning: Annotated[bool, typer.Option(help="Give up on trials that are worse than most at the same stage.")] = True,
    tuning_data: Annotated[
        str, typer.Option("--tuning-data", help="private: the clients' data; public: public examples alone, at no cost.")
    ] = "private",
    accounted: Annotated[bool, typer.Option("--accounted", help="Say what all trials together cost the clients.")] = False,
    resume: Annotated[Path | None, typer.Option("--resume", help="Go on with the search in this directory.")] = None,
    *,
    flags: RunFlags,
) -> None:
    """Search over settings at a fixed epsilon, judged on validation examples; the test examples stay unseen."""
    refuse_without_optuna()
    if resume is not None:
        if method is not None or flags.typed or search or accounted or not pruning or tuning_data != "private":
            raise UsageError("--resume goes on with a search as it was begun: leave the method and all flags but --trials out.")
        folder = RunDir(resume)
        asked = _begun(folder, trials)
    else:
        if flags.seeds != 1 or flags.dry_run:
            raise UsageError("A search has one seed and no dry run: leave --seeds and --dry-run to hush run.")
        config = flags.asked(method)
        place = flags.data_dir.resolve() if flags.data_dir else None
        more: dict[str, Any] = {"trials": _TRIALS if trials is None else trials, "pruning": pruning, "jobs": flags.jobs}
        asked = Asked.of(config, search or [], tuning_data, accounted, data_dir=place, **more)
        folder = RunDir(flags.out or new_folder(f"tune-{shown(config.method)}"))
        _refuse_another(folder, asked)
    found = _search(asked, folder)
    _tell(asked, found, folder, flags.json)


def _search(asked: Asked, folder: RunDir) -> Tuning:
    """All trials, with a bar; Ctrl-C keeps those that were made, and says what they found."""
    asked.read()
    folder.write_json("config.json", _config(asked))
    study = folder.path / STUDY

    def interrupted() -> str:
        found = so_far(study)
        best = f" The best so far: {_accuracy(found.best)} with {_settings(found.best)}." if found.ranked else ""
        made = f"Interrupted after {len(found.history)} of {asked.trials} trials.{best}"
        return f"{made} Go on with: hush tune --resume {folder.path}"

    with (
        kept(folder, interrupted, lambda: () if so_far(study).history else (STUDY,)),
        round_progress() as progress,
        _players(asked) as player,
    ):
        made = len(so_far(study).history)
        bar = progress.add_task(f"tuning {asked.config.method}", total=asked.trials, completed=made, figures="")

        def on_trial(found: Tuning) -> None:
            best = f"best {_accuracy(found.best)}" if found.ranked else ""
            progress.update(bar, completed=len(found.history), figures=best)

        return search_on(
            asked.begin,
            asked.space,
            trials=asked.trials,
            seed=asked.config.seed,
            pruning=asked.pruning,
            first=asked.first(),
            study=study,
            on_round=lambda _: stop_if_heard(),
            on_trial=on_trial,
            jobs=asked.jobs,
            player=player,
        )


@contextmanager
def _players(asked: Asked) -> Iterator[Player | None]:
    """Processes that play trials side by side; None where there is one at a time."""
    if asked.jobs < 2:
        yield None
        return
    same, said = json.dumps(_config(asked)), set[str]()
    with SideBySide(_play, asked.jobs) as others:

        def player(proposed: Sequence[Mapping[str, Any]], heard: Callable[[int, Any], Any]) -> Iterator[tuple[int, Done | Failed]]:
            def answer(number: int, told: Any) -> Any:
                if not isinstance(told, Note):
                    return heard(number, told)
                if told.text not in said:
                    say(f"note: {told.text}")
                said.add(told.text)
                return None

            return others.each([(same, dict(settings)) for settings in proposed], answer)

        yield player


def _play(piece: tuple[str, dict[str, Any]], ask: Ask) -> dict[str, Any]:
    """One trial, in a process of its own."""
    same, settings = piece
    return play(_as_asked(same).begin, settings, ask)


@lru_cache(maxsize=1)
def _as_asked(same: str) -> Asked:
    """Its data are read once."""
    return _read(json.loads(same))


def _tell(asked: Asked, found: Tuning, folder: RunDir, as_json: bool) -> None:
    """Files, then words."""
    value = asked.to_dict(found)
    folder.write_json("tune.json", value)
    folder.write_bytes("best.toml", asked.best_toml(found.best.settings).encode())
    title = f"{asked.config.method} on {asked.config.data}"
    plot = picture(folder, "tune.png", lambda: tuning_figure(found, asked.space, title))
    if as_json:
        print_json(value | {"plot": plot})
        return
    best = found.ranked[:_SHOWN]
    rows = [(str(t.number), _accuracy(t), *(_word(t.settings[key]) for key in asked.space), f"{t.seconds:.1f}") for t in best]
    print_figures(("trial", "validation", *asked.space, "seconds"), rows, first=figure)
    counts = ", ".join(f"{value[state]} {state}" for state in ("completed", "pruned", "failed") if value[state])
    if value["epsilon"] is None:
        print(f"{counts}; no privacy guarantee.")
    else:
        print(f"{counts}; each at epsilon {at_least(value['epsilon'])}, delta={at_least(value['delta'], 2)}.")
    print(f"Privacy of the tuning: {value['tuning_privacy']}.")
    place = ["--data-dir", str(asked.data_dir)] if asked.data_dir else []
    print(f"Run the best: {shlex.join(['hush', 'run', '--config', str(folder.path / 'best.toml'), *place])}")
    done(folder, plot)


# -- the folder ------------------------------------------------------------------------------------------------------------------


def _config(asked: Asked) -> dict[str, Any]:
    """What `--resume` reads."""
    keys = ("search", "trials", "pruning", "tuning_data", "accounted", "jobs")
    place = str(asked.data_dir) if asked.data_dir else None
    own = {key: getattr(asked, key) for key in keys} | {"search": list(asked.search), "data_dir": place}
    return {"tune": own | {"run": asked.config.to_dict()}}


def _begun(folder: RunDir, trials: int | None) -> Asked:
    """The search that a folder holds; more trials may be asked for."""
    if not folder.path.is_dir():
        raise UsageError(f"There is no run directory {folder.path}.")
    try:
        return _read(folder.read_json("config.json"), trials, f" in {folder.path / 'config.json'}")
    except (KeyError, TypeError, ValueError):
        raise DataError(f"{folder.path / 'config.json'} is not what hush tune writes.") from None


def _read(kept: dict[str, Any], trials: int | None = None, of: str = "") -> Asked:
    own = dict(kept["tune"])
    config = RunConfig.read(own.pop("run"), of)
    own |= {
        "data_dir": Path(own["data_dir"]) if own["data_dir"] else None,
        "trials": own["trials"] if trials is None else trials,
    }
    return Asked.of(config, **own)


def _refuse_another(folder: RunDir, asked: Asked) -> None:
    """The same command goes on where it stopped; another one needs another folder."""
    if not folder.started:
        return
    try:
        same = _config(_begun(folder, asked.trials)) == _config(asked)
    except HushError:
        same = False
    if not same:
        raise UsageError(f"{folder.path} already holds a run or another search: choose another --out.")


# -- words -----------------------------------------------------------------------------------------------------------------------


def _accuracy(trial: Trial) -> str:
    if trial.validation_accuracy is not None:
        return f"{100 * trial.validation_accuracy:.1f}%"
    return f"loss {trial.validation_loss:.4g}"


def _settings(trial: Trial) -> str:
    return ", ".join(f"{key}={_word(value)}" for key, value in trial.settings.items())


def _word(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
