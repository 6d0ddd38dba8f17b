"""Groups of commands whose help is plain text, whichever typer and click draw it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, get_type_hints

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup
from typer.models import ArgumentInfo, CommandFunctionType


class Commands(typer.Typer):
    """A group of commands."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**{"cls": _Group, "rich_markup_mode": None, "no_args_is_help": True} | given)

    def command(self, name: str | None = None, **given: Any) -> Callable[[CommandFunctionType], CommandFunctionType]:
        return super().command(name, **{"cls": _Command} | given)


class _Group(TyperGroup):
    def get_help(self, ctx: Any) -> str:
        return _plain(super().get_help(ctx))


class _Command(TyperCommand):
    def get_help(self, ctx: Any) -> str:
        said = get_type_hints(inspect.unwrap(self.callback), include_extras=True) if self.callback is not None else {}
        for argument in self.params:  # click 8.5 has a help of its own for arguments, which erases typer 0.20's
            if isinstance(argument, TyperArgument) and argument.help is None:
                about = getattr(said.get(str(argument.name)), "__metadata__", ())
                argument.help = next((one.help for one in about if isinstance(one, ArgumentInfo)), None)
        return _plain(super().get_help(ctx))

    def format_arguments(self, ctx: Any, formatter: Any) -> None:
        """Nothing: typer lists them already, and click 8.5 would once more."""


def _plain(text: str) -> str:
    """Without the backslash that typer puts before a bracket for rich wherever rich is installed."""
    return text.replace("\\[", "[")
