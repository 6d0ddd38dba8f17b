"""One entry of the catalogue: where a data set comes from, what it holds, and sensible settings for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import nn

from hush.tasks.decoded import keep_decoded
from hush.tasks.fetch import File, verified
from hush.tasks.raw import Form, Raw


@dataclass(frozen=True)
class DataSet:
    """What Hush knows of a data set."""

    name: str
    title: str
    licence: str
    citation: str
    source: str
    forms: tuple[Form, ...] = field(repr=False)
    """The files that may hold it; the first are those that `hush data fetch` downloads."""
    train: int
    test: int
    shape: tuple[int, ...]
    classes: int
    model: str
    clients: int
    cohort: float
    rounds: int
    papers: tuple[str, ...] = ()
    """The models that papers train on it."""
    own: bool = False
    """Whether it is a user's, whose clients are those that it names."""
    text: bool = False
    """Whether inputs are characters, which only its papers' models read."""
    natural: int | None = None
    """How many clients it has by nature."""
    partition: str = "iid"
    evaluation: str = "central"
    validation: int = 0
    public: int = 0
    test_examples: int | None = None
    metrics: tuple[str, ...] | None = None
    loss: nn.Module | None = None
    """None: cross-entropy."""
    mean: tuple[float, ...] = ()
    """Published mean and deviation of each channel, over 255: images stay bytes, and the model's first layer scales them."""
    std: tuple[float, ...] = ()
    labels: tuple[str, ...] = ()
    """What the classes are called, where a number does not say it."""
    note: str = ""
    """What its users should know: a licence's terms, what the images are."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Local training that works on this data set; `hush.methods` has its own defaults for everything else."""
    record_settings: Mapping[str, Any] = field(default_factory=dict)
    """The same for methods that put noise on every local step."""
    person: str | None = None
    """The column that says whose a row is, in a user's own table."""
    person_rows: int = 10
    """How many rows of a person count at most."""
    record_clients: int | None = None
    """How many clients share it where records are protected: few enough that each holds many."""
    record_cohort: float | None = None
    record_rounds: int | None = None
    record_model: str | None = None

    @property
    def files(self) -> tuple[File, ...]:
        return self.forms[0].files

    @property
    def bundled(self) -> bool:
        return not self.files

    @property
    def bytes(self) -> int:
        return sum(file.size or 0 for file in self.files)

    def found(self, folder: Path) -> Form | None:
        """The form that lies in `folder`, if one does: rather one whose files have the right size."""
        place = folder / self.name
        here = [form for form in self.forms if all((place / file.name).is_file() for file in form.files)]
        whole = (form for form in here if all((place / file.name).stat().st_size == (file.size or 0) for file in form.files))
        return next(whole, here[0] if here else None)

    def load(self, folder: Path) -> Raw:
        """Its examples, from files that were verified first."""
        form = self.found(folder) or self.forms[0]
        paths = {file.name: verified(folder / self.name, file, self.name) for file in form.files}
        return keep_decoded(self.name, form.files, lambda: form.read(paths)) if form.slow else form.read(paths)
