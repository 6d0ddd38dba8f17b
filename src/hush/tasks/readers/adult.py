"""Adult (census income): whether a person earns more than 50,000 dollars, from categorical attributes alone.

CPFed trains on "just the categorical features", one column for each category. The categories are the public ones of the
data set's own description, `adult.names`, written out here: found in the data instead, they would be a statistic of the
clients that no noise hides. Where the data has unknown values, `?` is a category of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import torch

from hush.tasks.raw import Raw
from hush.tasks.readers.damaged import damaged, reading
from hush.tasks.task import Examples

_DESCRIPTION = """
age: continuous
workclass: Private, Self-emp-not-inc, Self-emp-inc, Federal-gov, Local-gov, State-gov, Without-pay, Never-worked, ?
fnlwgt: continuous
education: Bachelors, Some-college, 11th, HS-grad, Prof-school, Assoc-acdm, Assoc-voc, 9th, 7th-8th, 12th, Masters, 1st-4th, \
    10th, Doctorate, 5th-6th, Preschool
education-num: continuous
marital-status: Married-civ-spouse, Divorced, Never-married, Separated, Widowed, Married-spouse-absent, Married-AF-spouse
occupation: Tech-support, Craft-repair, Other-service, Sales, Exec-managerial, Prof-specialty, Handlers-cleaners, \
    Machine-op-inspct, Adm-clerical, Farming-fishing, Transport-moving, Priv-house-serv, Protective-serv, Armed-Forces, ?
relationship: Wife, Own-child, Husband, Not-in-family, Other-relative, Unmarried
race: White, Asian-Pac-Islander, Amer-Indian-Eskimo, Other, Black
sex: Female, Male
capital-gain: continuous
capital-loss: continuous
hours-per-week: continuous
native-country: United-States, Cambodia, England, Puerto-Rico, Canada, Germany, Outlying-US(Guam-USVI-etc), India, Japan, \
    Greece, South, China, Cuba, Iran, Honduras, Philippines, Italy, Poland, Jamaica, Vietnam, Mexico, Portugal, Ireland, \
    France, Dominican-Republic, Laos, Ecuador, Taiwan, Haiti, Columbia, Hungary, Guatemala, Nicaragua, Scotland, Thailand, \
    Yugoslavia, El-Salvador, Trinadad&Tobago, Peru, Hong, Holand-Netherlands, ?
"""

FIELDS: dict[str, list[str]] = {
    name: [value.strip() for value in values.split(",")]
    for name, values in (line.split(": ") for line in _DESCRIPTION.strip().split("\n"))
}
CATEGORIES = {name: values for name, values in FIELDS.items() if values != ["continuous"]}

COLUMNS = tuple(f"{attribute}={category}" for attribute, values in CATEGORIES.items() for category in values)
"""What each of the 102 columns says."""

LABELS = {"<=50K": 0, ">50K": 1}

_COLUMN = {column: i for i, column in enumerate(COLUMNS)}
_USED = [(i, field) for i, field in enumerate(FIELDS) if field in CATEGORIES]


def read_adult(paths: Mapping[str, Path]) -> Raw:
    """One row of zeros and ones for each person; the label is 1 above 50,000 dollars."""
    return Raw(_examples(paths["adult.data"]), _examples(paths["adult.test"]))


def _examples(path: Path) -> Examples:
    rows = list(_rows(path))
    if not rows:
        raise damaged(f"{path} holds no row")
    x = torch.zeros(len(rows), len(COLUMNS))
    x.scatter_(1, torch.tensor([ones for ones, _ in rows]), 1.0)
    return Examples(x, torch.tensor([label for _, label in rows]))


def _rows(path: Path) -> Iterator[tuple[list[int], int]]:
    """Of each person: the columns that are 1, and the label."""
    with reading(path, OSError, UnicodeDecodeError):
        text = path.read_text(encoding="ascii")
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip() or (number == 1 and line.startswith("|")):  # adult.test begins with a note
            continue
        values = [value.strip() for value in line.split(",")]
        if len(values) != len(FIELDS) + 1:
            raise damaged(f"{path} has {len(values)} columns instead of {len(FIELDS) + 1} in line {number:,}")
        label = values[-1].removesuffix(".")  # as adult.test ends its lines
        if label not in LABELS:
            raise damaged(f"{path} has the unknown label {values[-1]!r} in line {number:,}, column income")
        ones = []
        for i, field in _USED:
            column = _COLUMN.get(f"{field}={values[i]}")
            if column is None:
                raise damaged(f"{path} has the unknown value {values[i]!r} in line {number:,}, column {field}")
            ones.append(column)
        yield ones, LABELS[label]
