"""Every module as the first that is imported: `make soak`."""

from __future__ import annotations

from tests.test_package import import_each_as_the_first


def test_every_module_can_be_the_first_to_be_imported() -> None:
    import_each_as_the_first(every=1)
