"""What `hush methods NAME` says of settings is true: every key is explained, and a printed default is what a method does."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import TypeAdapter

from hush.methods import METHODS, build, names, settings_of, taken
from hush.methods.settings import INSTEAD, KNOWN, explained

NAMES = [*names(), "dp-fedavg+top-k+adam", "dp-fedavg+sketch+blur", "ddgauss+adaptive", "skellam+free-mask"]


@pytest.mark.parametrize("name", NAMES)
def test_every_printed_default_is_the_default(name: str) -> None:
    """Given as `--set` would give it, it changes nothing; another value would."""
    told = explained(name)
    assert {one.key for one in told} == set(settings_of(name))
    plain, tried = build(name), 0
    for one in told:
        if one.default == KNOWN[one.key].unset:
            continue
        given = {one.key: TypeAdapter(settings_of(name)[one.key]).validate_python(one.default)}
        if not taken(name, given):  # a setting of a mask that is not there
            continue
        assert build(name, **given) == plain, one
        tried += 1
    assert tried >= 8


def test_all_that_is_said_belongs_to_some_method() -> None:
    assert set(KNOWN) == {key for name in METHODS for key in settings_of(name)}
    for name, keys in INSTEAD.items():
        assert set(keys) <= set(settings_of(name)), name


def test_the_page_on_settings_names_them_all() -> None:
    page = (Path(__file__).parents[2] / "docs" / "settings.md").read_text()
    assert not [key for key in KNOWN if f"`{key}`" not in page]
