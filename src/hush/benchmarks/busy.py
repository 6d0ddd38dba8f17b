"""For how long a GPU computes: the union of its kernels and copies, by PyTorch's profiler."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager


def union(spans: Iterable[tuple[float, float]]) -> float:
    """The length that intervals cover together."""
    covered, end = 0.0, float("-inf")
    for first, last in sorted(spans):
        covered += max(0.0, last - max(first, end))
        end = max(end, last)
    return covered


@contextmanager
def gpu_seconds() -> Iterator[dict[str, float]]:
    """Of whatever runs inside: `gpu_s`, and how many `launches` it was. The host is slower meanwhile, kernels are not."""
    import torch
    from torch.autograd import DeviceType  # type: ignore[attr-defined]
    from torch.profiler import ProfilerActivity, profile

    found: dict[str, float] = {}
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        yield found
        torch.cuda.synchronize()
    ran = [one.time_range for one in seen.events() if one.device_type == DeviceType.CUDA]
    found["gpu_s"] = union((one.start, one.end) for one in ran) / 1e6
    found["launches"] = len(ran)
