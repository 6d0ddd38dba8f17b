"""A run is one piece of data: what `hush run` reads from flags and files, what `config.json` keeps, and what a certificate names.

As it is asked for, None means the data set's or the method's default; `hush.experiment.resolve` fills these in, once.
No torch here.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from hush.errors import DataError, UsageError
from hush.names import described, pick
from hush.plugins import shown
from hush.settings import Setting, Settings, setting
from hush.version import __version__

if TYPE_CHECKING:
    from hush.engines.rundir import RunDir

NOISE_MODES = ("fast", "secure")
SECURE_KEYS = ("sum_bits", "tolerate", "corrupted", "threat", "masks")
"""What says how a sum is made secure."""
DEFAULT_EPSILON = 8.0
NO_FLAG = "-"
CONFIG_FORMAT = 2
"""Of `config.json`: resolved runs."""


@dataclass(frozen=True, kw_only=True)
class RunConfig(Settings):
    """One run. A field's line of help is that of its flag."""

    method: str = setting("fed-smp-top-k", "Method (hush methods lists them).")
    data: str = setting("digits", "Data set (hush data lists them), or your own: a .toml file, or a folder with a data.toml.")
    model: str | None = setting(None, "Model (hush models lists them).")
    clients: int | None = setting(None, "How many clients hold the data.")
    cohort: float | None = setting(None, "Expected number of clients a round.")
    rounds: int | None = setting(None, "Number of rounds.")
    noise: float | None = setting(None, "Noise multiplier: standard deviation over the clip.")
    epsilon: float | None = setting(None, f"Find the noise that spends this epsilon [default: {DEFAULT_EPSILON:g}].")
    budget: float | None = setting(None, "With --noise: stop before the round that exceeds this epsilon.")
    delta: float | None = setting(None, "Delta [default: min(n^-1.1, 0.01), n the clients or, where records are protected, those].")
    unit: str | None = setting(None, "With a method that protects records: record (a row) or person [default: person if named].")
    sampling: str | None = setting(
        None, "poisson, fixed, bounded, secret or rotation [default: rotation where taking part shows, else poisson]."
    )
    participations: int | None = setting(None, "With --sampling bounded: most rounds of a client.")
    partition: str | None = setting(
        None, "iid, dirichlet:ALPHA, shards:K, natural; +lognormal:SIGMA or +zipf:A for unequal sizes [default: the data set's]."
    )
    evaluation: str | None = setting(None, "central: on nobody's examples; clients: on a tenth of each client's own, kept apart.")
    validation: int | None = setting(None, "Training examples held out for validation.")
    public: int | None = setting(None, "Training examples made public, taken from the clients.")
    test_examples: int | None = setting(None, "Judge on so many test examples at most [default: all, or hush data's].")
    start: str = setting("random", "random weights (default), or features of images of nobody, processes, or public ones, public.")
    seed: int = setting(0, "Start of all public randomness [default: 0].")
    device: str = setting("auto", "auto (default), cpu or cuda.")
    memory: str | None = setting(None, "What a chunk of clients may use, such as 2GiB.")
    chunk: int | None = setting(None, "How many clients train side by side [default: what the memory allows].", within="[1, inf)")
    dtype: str = setting("float32", "Numbers of the model: float32 (default) or float64.")
    secure: bool = setting(False, "Sum by secure aggregation: noise in shares, the server learns the sum alone.")
    sum_bits: int | None = setting(None, "With --secure: bits of each entry [default: 24, or the method's own].")
    tolerate: float | None = setting(
        None, "With --secure: share of a cohort that may vanish [default: what --dropout makes likely]."
    )
    corrupted: float | None = setting(None, "With --secure: share that may tell the server all it knows [default: 0.1].")
    threat: str | None = setting(None, "With --secure: a curious (default) or a malicious server.")
    masks: str | None = setting(None, "With --secure: fresh in every round (default), or amortised, as CPFed's.")
    noise_mode: str = setting("fast", "fast (default, for research) or secure: exact, cryptographic, not repeatable.")
    noise_seed: int | None = setting(None, "Repeat noise and cohorts to the last bit: no guarantee holds then.")
    diagnostics: bool | None = setting(
        None, "Keep un-noised figures [default: where nothing is guaranteed].", flag="--diagnostics/--no-diagnostics"
    )
    ledger: str | None = setting(None, "A ledger shared by all runs on the same clients; its budget is enforced.")
    population: str | None = setting(None, "With --ledger: whose privacy is spent [default: the data set].")
    rollback_protection: bool = setting(
        True,
        "Refuse a shared ledger that this machine cannot remember (default), or go on, and say so on the certificate.",
        flag="--rollback-protection/--no-rollback-protection",
    )
    dropout: float = setting(0.0, "Share of selected clients that vanishes.")
    eval_every: int = setting(1, "Evaluate every so many rounds.")
    track_test: bool = setting(False, "Evaluate the test set every round and report the best, as papers do.")
    set: Mapping[str, Any] = field(
        default_factory=dict, metadata={"hush": Setting("A setting of the method: key=value. Repeatable.")}
    )
    """The method's own settings."""
    code: str | None = setting(None, "What names the code of a method, model or data set that is not Hush's.", flag=NO_FLAG)
    federation: str | None = setting(None, "The roster's fingerprint, where the clients were real ones.", flag=NO_FLAG)
    begins_with: str | None = setting(None, "SHA-256 of the weights of an earlier run that it began with.", flag=NO_FLAG)
    from_python: str | None = setting(None, "What came as objects, which this configuration names and cannot make.", flag=NO_FLAG)

    @classmethod
    def read(cls, given: Mapping[str, Any], of: str = "") -> Self:
        """Checked values, or one sentence about the first that is wrong; `of` says where they stand, as ' in run.toml'."""
        for key in given:
            pick(cls.known(), key, f"key{of}")
        own = given.get("set", {})
        if not isinstance(own, Mapping):
            raise UsageError(f"[set]{of} must be a table of key = value.")
        plain = {key: value for key, value in given.items() if key != "set"}
        return cls(**cls.converted(plain, of), set=dict(own))

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; `read` is the inverse."""
        return {f.name: getattr(self, f.name) for f in fields(self)} | {"set": dict(self.set)}

    def published(self) -> dict[str, Any]:
        """What a certificate tells of it: nothing of the machine, and of a file its name alone."""
        hidden = ("device", "memory", "chunk", "ledger", "population", "diagnostics")
        own = {key: value for key, value in self.to_dict().items() if key not in hidden}
        data = described(self.data) if self.data.endswith(".toml") else self.data
        return own | {"data": data, "method": shown(self.method), "model": None if self.model is None else shown(self.model)}

    def to_toml(self) -> str:
        """What differs from a run with nothing typed, in the words of `--config`; `read_toml` is the inverse."""
        usual = RunConfig()
        keys = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "set"}
        lines = [
            f"{key} = {_in_toml(value)}" for key, value in keys.items() if key in ("method", "data") or value != getattr(usual, key)
        ]
        settings = [f"{key} = {_in_toml(value)}" for key, value in self.set.items() if value is not None]
        return "\n".join([*lines, "", "[set]", *settings]) + "\n"


def _in_toml(value: Any) -> str:
    """For these kinds as JSON writes it, but for numbers without an end."""
    return json.dumps(value, ensure_ascii=False)


def read_toml(path: Path) -> dict[str, Any]:
    """The keys of a configuration file: those of `RunConfig`, with the method's own under `[set]`."""
    try:
        return tomllib.loads(path.read_text())
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise DataError(f"{path} is not valid TOML: {error}.") from error


def parse_settings(pairs: list[str]) -> dict[str, str]:
    """`key=value` pairs of `--set`."""
    settings = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise UsageError(f"--set takes key=value, not '{pair}'.")
        settings[key.strip()] = value.strip()
    return settings


def runs_of(folder: RunDir, name: str = "config.json") -> list[RunConfig]:
    """The runs that a folder's `config.json` describes, every default filled in."""
    value = folder.read_json(name)
    if isinstance(value, dict) and ("specs" in value or value.get("format", CONFIG_FORMAT) != CONFIG_FORMAT):
        raise DataError(
            f"{folder.path / name} has format {value.get('format', 1)}, and this Hush ({__version__}) reads {CONFIG_FORMAT}: "
            "use the Hush that wrote it, or start the run again with this one."
        )
    if not isinstance(value, dict) or value.get("format") != CONFIG_FORMAT or not isinstance(value.get("runs"), list):
        raise DataError(f"{folder.path / name} is not what a run of Hush writes, or is of another version: start it again.")
    return [RunConfig.read(run, f" in {folder.path / name}") for run in value["runs"]]
