"""Groups of commands whose help is plain text, whichever typer and click draw it; and commands loaded when they are typed."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, get_type_hints

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup
from typer.models import ArgumentInfo, CommandFunctionType

from hush.cli.interrupt import interrupted_at_once


class Commands(typer.Typer):
    """A group of commands."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**{"cls": _Group, "rich_markup_mode": None, "no_args_is_help": True} | given)

    def command(self, name: str | None = None, **given: Any) -> Callable[[CommandFunctionType], CommandFunctionType]:
        return super().command(name, **{"cls": _Command} | given)


class _Group(TyperGroup):
    def get_help(self, ctx: Any) -> str:
        return _plain(super().get_help(ctx))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, command, rest = super().resolve_command(ctx, args)
        return name, command.loaded() if isinstance(command, Later) else command, rest


class Later(TyperCommand):
    """A command whose module, and with it PyTorch, is imported when it is typed: until then its name and a line are known."""

    def __init__(self, name: str, home: str, line: str) -> None:
        super().__init__(name, short_help=line, help=line)
        self._home = home

    def loaded(self) -> Any:
        """The command itself."""
        module, _, found = self._home.partition(":")
        with interrupted_at_once():
            value, name = getattr(import_module(module), found), str(self.name)
        if not isinstance(value, typer.Typer):
            group = Commands(add_completion=False)
            group.command(name)(value)
            value = group
        command = typer.main.get_command(value)
        command.name = name
        return command


def loads_later(commands: Mapping[str, tuple[str, str]]) -> type[TyperGroup]:
    """A group of commands by name: where each lies, and the line that help has of it."""

    class Loading(_Group):
        def __init__(self, **given: Any) -> None:
            super().__init__(**given)
            self.commands = {name: Later(name, *told) for name, told in commands.items()}

    return Loading


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
