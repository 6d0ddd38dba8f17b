"""Census tables in the place of patients': five hospitals' CSV files, a test table of nobody's, and its description.

    python examples/federation/adult_tables.py FOLDER_OF_ADULT tables

FOLDER_OF_ADULT has adult.data and adult.test (https://archive.ics.uci.edu/dataset/2/adult). A person is a row of one hospital.
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path

from hush.tasks.readers.adult import CATEGORIES, FIELDS, LABELS

READ = ("education", "marital-status", "occupation", "relationship", "sex")
HOSPITALS = "abcde"


def main(adult: Path, out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    people = rows(adult / "adult.data")
    for number, name in enumerate(HOSPITALS):
        write(out / f"hospital-{name}.csv", people[number :: len(HOSPITALS)])
    write(out / "public.csv", rows(adult / "adult.test"))
    categories = "\n".join(f"{name} = {list(CATEGORIES[name])!r}" for name in READ)
    told = f'test = "public.csv"\ntarget = "above_50k"\nclasses = 2\nmodel = "logistic"\nfeatures = {list(READ)!r}\n'
    (out / "study.toml").write_text(f"{told}\n[categories]\n{categories}\n".replace("'", '"'))


def rows(path: Path) -> list[list[str]]:
    """What is read of each person, and what is learned."""
    lines = [line for line in path.read_text().splitlines() if line.count(",") == len(FIELDS)]
    people = [[value.strip() for value in line.split(",")] for line in lines]
    wanted = [list(FIELDS).index(name) for name in READ]
    return [[*(person[i] for i in wanted), str(LABELS[person[-1].rstrip(".")])] for person in people]


def write(path: Path, people: list[list[str]]) -> None:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([[*READ, "above_50k"], *people])


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
