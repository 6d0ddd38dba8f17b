"""What `hush methods NAME` says of settings is true: every key is explained, and a printed default is what a method does."""

from __future__ import annotations

import pytest

from hush.methods import build, explained, names, recipe_of, settings_of, taken

NAMES = [*names(), "dp-fedavg+top-k+adam", "dp-fedavg+sketch+blur", "ddgauss+adaptive", "skellam+free-mask"]


@pytest.mark.parametrize("name", NAMES)
def test_every_printed_default_is_the_default(name: str) -> None:
    """Given as `--set` would give it, it changes nothing; another value would."""
    told = explained(name)
    known = recipe_of(name).settings.known()
    assert {one.key for one in told} == set(known) == set(settings_of(name))
    plain, tried = build(name), 0
    for one in told:
        if one.default == known[one.key].unset or not taken(name, {one.key: one.default}):  # a setting of a mask that is not there
            continue
        assert build(name, **{one.key: one.default}) == plain, one
        tried += 1
    assert tried >= 8
