"""What happens to an update before and after the sum."""

from hush.transforms.clip import Clip
from hush.transforms.noise import Gaussian
from hush.transforms.sparsify import RandK, TopK

__all__ = ["Clip", "Gaussian", "RandK", "TopK"]
