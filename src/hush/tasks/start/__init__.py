"""Where training starts: at random weights, or with features that come from images of nobody."""

from hush.tasks.start.features import STARTS, read_start, start_from

__all__ = ["STARTS", "read_start", "start_from"]
