"""A setting has one home: its default, its help, its range and what it goes with are read from one field."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hush.errors import UsageError
from hush.methods import METHODS, build, documented, recipe_of
from hush.settings import Settings, not_with, only_with, setting


@dataclass(frozen=True, kw_only=True)
class Some(Settings):
    rate: float = setting(0.5, "a rate", within="(0, 1]")
    count: int | None = setting(None, "a count", within="[1, inf)", unset="as many as there are")
    kind: str = setting("plain", "a kind", choices=("plain", "fancy"))
    frills: int = setting(3, "how many frills", within="[0, 9]", when=only_with("kind", "fancy"))
    colour: str = setting("red", "their colour", when=(only_with("kind", "fancy"), not_with("frills", 0)))
    loud: bool = setting(False, "whether it is loud")


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"rat": 1}, "no setting of it 'rat'; did you mean 'rate'"),
        ({"rate": "fast"}, "rate must be a number, not 'fast'"),
        ({"rate": 0}, r"rate must lie in \(0, 1\], not 0"),
        ({"rate": float("nan")}, "rate must lie"),
        ({"count": 0}, "count must be a number from 1"),
        ({"count": 2.5}, "count must be a whole number"),
        ({"count": True}, "count must be a whole number"),
        ({"kind": "fany"}, "kind must be plain or fancy"),
        ({"frills": 4}, "frills goes with kind=fancy, not with kind=plain"),
        ({"kind": "fancy", "frills": 0, "colour": "blue"}, "colour does nothing with frills=0"),
        ({"loud": "perhaps"}, "loud must be true or false"),
        ({"kind": 3}, "kind must be a word"),
    ],
)
def test_what_cannot_be_meant_gets_one_sentence(values: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        Some.read(values, "it")


def test_values_as_a_command_line_gives_them() -> None:
    own = Some.read({"rate": "0.25", "count": "7", "kind": "fancy", "frills": "2", "loud": "yes"}, "it")
    assert own == Some(rate=0.25, count=7, kind="fancy", frills=2, loud=True)
    assert Some.read({"count": "none"}, "it").count is None
    assert Some.read({"count": "1e3"}, "it").count == 1000


values = st.fixed_dictionaries(
    {},
    optional={
        "rate": st.floats(1e-6, 1.0),
        "count": st.none() | st.integers(1, 10**6),
        "kind": st.sampled_from(["plain", "fancy"]),
        "frills": st.integers(0, 9),
        "colour": st.text(max_size=5),
        "loud": st.booleans(),
    },
)


@given(values)
def test_what_is_active_makes_the_same_settings_and_what_is_idle_is_refused(values: dict[str, Any]) -> None:
    whole = Some(**values)
    active = whole.active()
    assert Some.read(active, "it").active() == active
    if idle := set(values) - set(active):
        with pytest.raises(UsageError, match="|".join(idle)):
            Some.read(values, "it")


@pytest.mark.parametrize("name", METHODS)
def test_every_method_round_trips_its_active_settings(name: str) -> None:
    method = build(name)
    assert method.settings is not None
    again = recipe_of(name).built(method.settings.active())
    assert again == method
    assert again.settings == method.settings


def test_a_field_that_says_nothing_of_itself_is_refused() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Silent(Settings):
        quiet: int = 3

    with pytest.raises(UsageError, match="says nothing of itself"):
        Silent.known()


def test_methods_in_python_take_names_and_say_so() -> None:
    with pytest.raises(UsageError, match="have names"):
        METHODS["dp-fedavg"](0.1)
    with pytest.raises(UsageError, match="did you mean 'lr'"):
        METHODS["dp-fedavg"](learning_rate=0.1)


def test_settings_and_configurations_need_no_torch() -> None:
    script = "import sys, hush.config, hush.methods, hush.settings, hush.methods.groups; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_the_page_on_settings_is_the_one_that_they_write() -> None:
    page = (Path(__file__).parents[1] / "docs" / "settings.md").read_text()
    assert page == documented.page(), "run: python -m hush.methods.documented > docs/settings.md"
