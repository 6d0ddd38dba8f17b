"""`hush audit METHOD|RUN`: an empirical lower bound on epsilon beside the claim, on the code that really runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from hush.audit.audit import Audit
from hush.audit.audit import audit as attack
from hush.cli import options
from hush.cli.console import Json, print_json, say, spinner
from hush.cli.folders import new_folder, picture
from hush.config import NOISE_MODES, RunConfig, parse_settings, runs_of
from hush.engines.rundir import RunDir
from hush.errors import NoGuarantee, UsageError
from hush.experiment import resolve
from hush.methods import whole_name
from hush.names import pick
from hush.plugins import shown
from hush.privacy.guarantee import at_least
from hush.privacy.plan import is_private, needs_noise, with_noise, with_secure_noise
from hush.privacy.shares import as_summed
from hush.report.plots import trade_off_figure


def audit(
    target: Annotated[str, typer.Argument(help="A method, or the directory of a run.")],
    noise: Annotated[float | None, typer.Option("--noise", help="Noise multiplier [default: 1, or the run's].")] = None,
    sampling: options.Sampling = None,
    noise_mode: Annotated[str | None, typer.Option("--noise-mode", help="fast (default) or secure.")] = None,
    settings: Annotated[list[str] | None, typer.Option("--set", help="A setting of the method: key=value. Repeatable.")] = None,
    training: Annotated[bool, typer.Option(help="Also train once, with canaries among the clients.")] = True,
    folder: options.DataDir = None,
    out: Annotated[Path | None, typer.Option("--out", help="Where the report goes [default: the run, or a new folder].")] = None,
    as_json: Json = False,
) -> None:
    """Attack a method as it runs: structural checks, its whole claimed profile, one training. Exit code 2 if it fails."""
    typed = {"noise": noise, "sampling": sampling, "noise_mode": noise_mode}
    config, place = _asked(target, {k: v for k, v in typed.items() if v is not None}, parse_settings(settings or []), out)
    experiment = resolve(config, lenient=True)
    method = experiment.method
    if not is_private(method):
        raise NoGuarantee(f"{method.name} adds no noise: it claims nothing that an audit could test.", "Audit a private method.")
    if needs_noise(method):
        method = with_noise(method, config.noise if config.noise is not None else getattr(method.local, "shows_at", 1.0))
    if config.secure:  # what the fewest shares add up to is drawn once: the protocol has tests of its own
        method = as_summed(replace(experiment, method=method).as_run())
    elif config.noise_mode == "secure":
        method = with_secure_noise(method, experiment.cohort)
    rate = experiment.cohort.size / experiment.population
    with spinner() as progress:
        bar = progress.add_task("setting up")
        task = experiment.task(folder) if training else None
        rounds = min(experiment.rounds, 20)
        unit = experiment.config.unit
        result = attack(
            method, experiment.cohort, task, rounds, rate, None, lambda what: progress.update(bar, description=what), unit
        )
    place.write_json("audit.json", result.to_dict())
    drawn = picture(place, "audit.png", lambda: trade_off_figure(result))
    files = [str(place.path / "audit.json"), *([drawn] if drawn else [])]
    if config.secure:
        say("note: shares of noise were drawn as the one noise they add up to; masks, losses and refusals have tests of their own")
    if as_json:
        print_json(result.to_dict() | {"files": files})
    else:
        _print(result, files)
    if not result.passed:
        raise typer.Exit(2)


def _asked(target: str, typed: dict[str, Any], settings: dict[str, str], out: Path | None) -> tuple[RunConfig, RunDir]:
    """What to audit, and where the report goes."""
    if "noise_mode" in typed:
        pick(dict.fromkeys(NOISE_MODES), typed["noise_mode"], "noise mode")
    if Path(target).is_dir():
        folder = RunDir(Path(target))
        runs = runs_of(folder)
        if len(runs) != 1:
            raise UsageError(f"{target} holds a comparison: audit one of its methods by name.")
        ran = runs[0].to_dict()
        if runs[0].noise is None and folder.has("certificate.json"):  # the noise that the budget led to
            typed = {"noise": folder.read_json("certificate.json")["noise_multiplier"], "epsilon": None} | typed
        own = {key: value for key, value in runs[0].set.items() if key != "noise"} | settings
        return RunConfig.read(ran | typed | {"set": own}), RunDir(out) if out is not None else folder
    method = whole_name(target)
    return RunConfig.read({"method": method, "set": settings} | typed), RunDir(out or new_folder(f"audit-{shown(method)}"))


def _print(result: Audit, files: list[str]) -> None:
    for check in result.checks:
        print(f"  {'ok   ' if check.passed else 'WRONG'} {check.name}: {check.detail}")
    for attempt in result.attacks:
        figures = (
            f"at least {attempt.epsilon_found:.2f} found, {at_least(attempt.epsilon_claimed)} claimed at delta={attempt.delta:.1e}"
        )
        print(f"  {'ok   ' if attempt.passed else 'WRONG'} attack, {attempt.name}: epsilon {figures} ({attempt.detail})")
    print("  (claims are of the scenes themselves: the same noise, in so many rounds; a run's own epsilon is on its certificate)")
    noise = f"at noise {result.noise_multiplier:.4g}"
    if result.claimed:
        survived, broken = "was not caught: its paper's claim may still be false", "breaks its paper's claim, which is false"
        print(f"{result.method} as its paper writes it, {noise}, {survived if result.passed else broken}.")
    else:
        survived, broken = "passes: nothing was found that its claim does not allow", "FAILS its audit"
        print(f"{result.method} with {result.cohort} cohorts {noise} {survived if result.passed else broken}.")
    say("Everything is in " + " and ".join(files))
