"""The programs of the documentation run as they are."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parent.parent / "examples").glob("*.py"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(path), run_name="__main__")
    said = capsys.readouterr().out
    if path.stem == "secure_sum":
        assert "the sum over clients (0, 1, 2, 4) is -1" in said
    elif path.stem == "own_persons":
        assert "for each person against anyone who reads this client's messages" in said
    else:
        assert "for each client against anyone who reads the model" in said
