"""Search over settings at a fixed privacy budget, judged on validation examples: `hush tune`.

Optuna proposes; it is an extra, and loaded when a search begins.
"""

from hush.tuning.space import Choice, Range, Space
from hush.tuning.study import Trial, Tuning, tune

__all__ = ["Choice", "Range", "Space", "Trial", "Tuning", "tune"]
