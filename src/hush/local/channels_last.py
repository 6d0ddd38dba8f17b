"""Images whose channels lie innermost from the first pooling on: a CPU pools them so in half the time, and convolves as fast."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode


class ChannelsLast(TorchFunctionMode):
    """PyTorch's pooling of a lone client's images is met on its way; a module stays as it is."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is F.max_pool2d and args and args[0].dim() == 4:
            args = args[0].contiguous(memory_format=torch.channels_last), *args[1:]
        return func(*args, **kwargs or {})
