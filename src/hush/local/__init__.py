"""What clients do with their own data."""

from hush.local.dp_sgd import DpSgd
from hush.local.flat import FlatModel
from hush.local.per_example import CoordinateClip, L2Clip
from hush.local.sgd import Sgd

__all__ = ["CoordinateClip", "DpSgd", "FlatModel", "L2Clip", "Sgd"]
