"""A method by name: its settings, and the function that makes the method of them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar

from hush.errors import UsageError
from hush.settings import Settings

if TYPE_CHECKING:
    from hush.core import Method

P = ParamSpec("P")
S = TypeVar("S", bound=Settings)


@dataclass(frozen=True)
class Recipe(Generic[P]):
    """`hush.methods.dp_fedavg`, say. Called with settings as keywords it gives the method that they describe."""

    name: str
    settings: type[Settings]
    make: Callable[[Any], Method]
    rounds: int | None = None
    """How many a run usually has, where that is the method's to say and not the data set's."""
    everybody: bool = False
    """Whether all clients usually take part in every round."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Method:
        if args:
            raise UsageError(f"Settings of {self.name} have names, as lr={args[0]!r} has: hush methods {self.name} lists them.")
        return self.built(kwargs)

    def built(self, given: Mapping[str, Any], name: str | None = None) -> Method:
        """The method that these settings make, under a name that may have parts."""
        name = name or self.name
        settings = self.settings.read(given, name)
        own, read = watched(settings)
        made = self.make(own)
        if not hasattr(made, "pipeline"):
            raise UsageError(f"The function of {name} returns {made!r}: let it return a Method.")
        for key in given:
            if key not in read and getattr(settings, key) != self.settings.defaults()[key]:
                raise UsageError(f"{key} does nothing in {name}, whose function never reads it.")
        return replace(made, name=name, settings=settings)

    @property
    def summary(self) -> str:
        """One line on what it does."""
        return (inspect.getdoc(self.make) or "").split("\n")[0]


def watched(settings: Settings) -> tuple[Settings, set[str]]:
    """The same settings, and the names of those that are read from them."""
    kind, read = type(settings), set[str]()

    class Watched(kind):  # type: ignore[misc, valid-type]
        def __getattribute__(self, name: str) -> Any:
            read.add(name)
            return super().__getattribute__(name)

    own: Settings = object.__new__(Watched)
    own.__dict__.update(settings.__dict__)
    return own, read


def method(name: str, settings: Callable[P, S], **usual: Any) -> Callable[[Callable[[S], Method]], Recipe[P]]:
    """A function of settings, as the recipe of a method by that name.

    @method("fed-soft", FedSoft)
    def fed_soft(s: FedSoft) -> Method:
        "Updates are shortened softly, and noised."
        return Method(local_training(s), chain(SoftClip(s.clip, s.softness), Gaussian(s.noise)), server_step(s))
    """
    if not isinstance(settings, type) or not issubclass(settings, Settings):
        raise UsageError(f"The settings of {name} are a class, a frozen dataclass that inherits from hush.settings.Settings.")
    return lambda make: Recipe(name, settings, make, **usual)
