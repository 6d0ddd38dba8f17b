"""Count sketches of vectors: linear, of any size, and with the heavy coordinates still in them."""

from hush.sketch.hashes import Hashes, hashes_of, whole_tiles
from hush.sketch.norm import fullest_counter, largest_norm, worst_vector
from hush.sketch.tables import sketch, unsketch

__all__ = ["Hashes", "fullest_counter", "hashes_of", "largest_norm", "sketch", "unsketch", "whole_tiles", "worst_vector"]
