"""What happens to an update before the sum and after it."""

from hush.transforms.adaptive import AdaptiveClip
from hush.transforms.clip import Clip
from hush.transforms.discretize import Discretize
from hush.transforms.noise import ExactNoise, Gaussian, Noise
from hush.transforms.sparsify import RandK, TopK

__all__ = ["AdaptiveClip", "Clip", "Discretize", "ExactNoise", "Gaussian", "Noise", "RandK", "TopK"]
