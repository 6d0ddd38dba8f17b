"""Chunks of a cohort on several cores: one thread each, in place of many threads for every product.

Products of single clients are too small to be shared out. And where a core is busy elsewhere, the threads of one product wait for
each other at every one of them; here nobody waits but for the last chunk. What a chunk comes to does not depend on the others.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue
from typing import TypeVar

import torch
from torch import Tensor

from hush.core import Method, is_ours
from hush.local.flat import FlatModel

Done = TypeVar("Done")


def at_once(
    work: Callable[[Tensor, FlatModel], Done],
    parts: Sequence[Tensor],
    learner: FlatModel,
    method: Method,
    most: int,
    apart: bool = False,
) -> Iterator[Done]:
    """What `work` makes of every part, in their order; several at once where there are cores for it, and `most` that fit in.

    `apart`: nobody's last bits may depend on who else is there. How many threads share a product decides about these, and so must
    not follow from how many parts there are: one part, too, then has a thread of its own.
    """
    threads = min(torch.get_num_threads(), len(parts), most)
    ours = all(is_ours(type(part)) for part in (method.local, *method.pipeline.parts))  # others' code may not be made for it
    lone = threads < 2 and not (apart and torch.get_num_threads() > 1 and parts)
    if lone or not ours or not learner.may_have_twins:
        yield from (work(part, learner) for part in parts)
        return
    free = SimpleQueue[FlatModel]()
    for twin in learner.twins(threads):
        free.put(twin)

    def run(part: Tensor) -> Done:
        twin = free.get()
        try:
            return work(part, twin)
        finally:
            free.put(twin)

    own = torch.get_num_threads()
    pool = ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,))
    waiting = deque[Future[Done]]()
    try:
        for part in parts:
            waiting.append(pool.submit(run, part))
            if len(waiting) > threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)
        torch.set_num_threads(own)  # what a thread sets for itself, others that begin later would have as well
