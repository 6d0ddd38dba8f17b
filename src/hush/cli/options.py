"""The flags that several commands share, each declared once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Data = Annotated[str | None, typer.Option("--data", help="Data set (hush data lists them).")]
Model = Annotated[str | None, typer.Option("--model", help="Model (hush models lists them).")]
Clients = Annotated[int | None, typer.Option("--clients", help="How many clients hold the data.")]
CohortSize = Annotated[float | None, typer.Option("--cohort", help="Expected number of clients a round.")]
Rounds = Annotated[int | None, typer.Option("--rounds", help="Number of rounds.")]
Noise = Annotated[float | None, typer.Option("--noise", help="Noise multiplier: standard deviation over the clip.")]
Epsilon = Annotated[float | None, typer.Option("--epsilon", help="Find the noise that spends this epsilon [default: 8].")]
BudgetFlag = Annotated[float | None, typer.Option("--budget", help="With --noise: stop before the round that exceeds this epsilon.")]
Delta = Annotated[float | None, typer.Option("--delta", help="Delta [default: clients^-1.1].")]
Sampling = Annotated[str | None, typer.Option("--sampling", help="poisson (default), fixed or bounded.")]
Participations = Annotated[int | None, typer.Option("--participations", help="With --sampling bounded: most rounds a client joins.")]
Partition = Annotated[str | None, typer.Option("--partition", help="iid (default) or dirichlet:ALPHA.")]
Seed = Annotated[int | None, typer.Option("--seed", help="Start of all public randomness [default: 0].")]
Seeds = Annotated[int, typer.Option("--seeds", help="Repeat with this many seeds; report mean and deviation.")]
Device = Annotated[str | None, typer.Option("--device", help="auto (default), cpu or cuda.")]
Memory = Annotated[str | None, typer.Option("--memory", help="What a chunk of clients may use, such as 2GiB.")]
Set = Annotated[list[str] | None, typer.Option("--set", help="A setting of the method: key=value. Repeatable.")]
Config = Annotated[Path | None, typer.Option("--config", help="A TOML file with the same keys; flags win over it.")]
Secure = Annotated[bool, typer.Option("--secure", help="Sum securely.")]
Dropout = Annotated[float | None, typer.Option("--dropout", help="Share of selected clients that never answers.")]
Validation = Annotated[int | None, typer.Option("--validation", help="Training examples held out for validation.")]
PublicExamples = Annotated[int | None, typer.Option("--public", help="Training examples made public and taken from the clients.")]
EvalEvery = Annotated[int | None, typer.Option("--eval-every", help="Evaluate every so many rounds.")]
TrackTest = Annotated[
    bool, typer.Option("--track-test", help="Evaluate the test set every round and report the best, as papers do.")
]
Out = Annotated[Path | None, typer.Option("--out", help="Run directory [default: a new one under runs/].")]
DataDir = Annotated[Path | None, typer.Option("--data-dir", help="Where data sets lie [default: $HUSH_DATA, or the user's cache].")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what it would cost; train nothing.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON object on standard output, and nothing else.")]
