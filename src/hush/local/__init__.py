"""What a client does with its data."""

from hush.local.flat import FlatModel
from hush.local.sgd import Sgd

__all__ = ["FlatModel", "Sgd"]
