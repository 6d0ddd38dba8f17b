"""What happens to an update before the sum and after it."""

from hush.transforms.adaptive import AdaptiveClip, HistoryClip
from hush.transforms.clip import Clip
from hush.transforms.discretize import Discretize
from hush.transforms.free_mask import FreeMask
from hush.transforms.modulo import Modulo
from hush.transforms.noise import ExactNoise, Gaussian, MessageGaussian, Noise, NoiseShares
from hush.transforms.quantize import BinomialMechanism, Quantize
from hush.transforms.rotate import Rotate
from hush.transforms.score import Score
from hush.transforms.sketch import CountSketch
from hush.transforms.sparsify import RandK, TopK

__all__ = [
    "AdaptiveClip",
    "BinomialMechanism",
    "Clip",
    "CountSketch",
    "Discretize",
    "ExactNoise",
    "FreeMask",
    "Gaussian",
    "HistoryClip",
    "MessageGaussian",
    "Modulo",
    "Noise",
    "NoiseShares",
    "Quantize",
    "RandK",
    "Rotate",
    "Score",
    "TopK",
]
