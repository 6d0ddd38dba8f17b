"""Public randomness as data: counter-based random numbers from 64-bit keys, equal bit for bit on every device.

A client's batch order and dropout masks, and a round's shared coordinate mask, are pure functions of a key, so a cohort of a
hundred, a chunk of ten and a lone client all draw the same numbers. The mixer is SplitMix64's finaliser (Steele, Lea, Flood
2014). It is statistically good and *not* secret: noise and cohorts are drawn in `hush.secret` instead.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_GOLDEN = 0x9E3779B97F4A7C15
_MIX_A = 0xBF58476D1CE4E5B9
_MIX_B = 0x94D049BB133111EB
_WORD = 0xD1B54A32D192ED03
"""Added to every word that is folded in, so that the roles of key and word cannot be swapped."""
_MASK = (1 << 64) - 1
COIN = 2.0**-16
"""How finely the chance of a coin is told."""


def _signed(word: int) -> int:
    """The same 64 bits, read as the signed integer that torch holds."""
    word &= _MASK
    return word - (1 << 64) if word >> 63 else word


def _shift_right(x: Tensor, bits: int) -> Tensor:
    """Logical shift: torch's is arithmetic and would smear the sign bit."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def mix(x: Tensor) -> Tensor:
    """A bijection of 64-bit words in which every input bit flips half of the output bits."""
    if x.device.type == "cpu" and not torch._C._functorch.is_functorch_wrapped_tensor(x):
        return _mixed_by_numpy(x)
    x = (x ^ _shift_right(x, 30)) * _signed(_MIX_A)
    x = (x ^ _shift_right(x, 27)) * _signed(_MIX_B)
    return x ^ _shift_right(x, 31)


def _mixed_by_numpy(x: Tensor) -> Tensor:
    """The same in a third of the time, where a schedule is drawn by the host: numpy knows unsigned words."""
    words = np.atleast_1d(x.numpy()).view(np.uint64)  # a number by itself would warn of its overflow
    return torch.from_numpy(_mixed(words).view(np.int64)).view(x.shape)


def _mixed(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    words = (words ^ (words >> np.uint64(30))) * np.uint64(_MIX_A)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(_MIX_B)
    return words ^ (words >> np.uint64(31))


def fold(keys: Tensor, word: int | Tensor) -> Tensor:
    """New keys from `keys` and `word`: `fold(k, 1)` and `fold(k, 2)` are independent streams."""
    if isinstance(word, int):
        return mix(keys ^ _signed(_mix_int(word, _WORD)))
    return mix(keys ^ mix(word * _signed(_GOLDEN) + _signed(_WORD)))


def _mix_int(word: int, plus: int = 0) -> int:
    x = (word * _GOLDEN + plus) & _MASK
    x = ((x ^ (x >> 30)) * _MIX_A) & _MASK
    x = ((x ^ (x >> 27)) * _MIX_B) & _MASK
    return x ^ (x >> 31)


def derive(seed: int, *words: int) -> int:
    """A 63-bit seed for the stream that `words` name, from a run's seed."""
    x = _mix_int(seed)
    for word in words:
        x = _mix_int(x ^ _mix_int(word, _WORD))
    return x >> 1


def keys_of(seed: int, ids: Tensor) -> Tensor:
    """One key for each client id, for the stream `seed`."""
    return fold(torch.full_like(ids, _signed(_mix_int(seed))), ids)


def key_of(seed: int, device: torch.device) -> Tensor:
    """`[1]`: the one key of the stream `seed`, for what is drawn once for all clients."""
    return keys_of(seed, torch.zeros(1, dtype=torch.int64, device=device))


def words(keys: Tensor, count: int) -> Tensor:
    """`[..., count]` random 64-bit words for `[...]` keys."""
    return word_at(keys[..., None], torch.arange(count, device=keys.device))


def word_at(keys: Tensor, place: Tensor) -> Tensor:
    """The word number `place` of each key's stream: what `words` has there."""
    return mix(keys + (place + 1) * _signed(_GOLDEN))


_PLACES = 24
"""Bits of a place that lie beside 40 of a random word."""


def orders(keys: Tensor, sizes: Tensor) -> Tensor:
    """A random order of `sizes[i]` things for each key, end to end: by 40 bits of the words of `word_at`, then by place.

    The sizes are on the host.
    """
    if keys.device.type == "cpu" and not bool((sizes >= 1 << _PLACES).any()):
        return _orders_by_numpy(keys.numpy().view(np.uint64), sizes.numpy())
    total, sizes = int(sizes.sum()), sizes.to(keys.device)
    owner = torch.repeat_interleave(torch.arange(len(sizes), device=keys.device), sizes, output_size=total)
    place = torch.arange(total, device=keys.device) - (torch.cumsum(sizes, 0) - sizes)[owner]
    return place[((owner << 40) + (word_at(keys[owner], place) >> 24) + (1 << 39)).argsort(stable=True)]


def _orders_by_numpy(keys: NDArray[np.uint64], sizes: NDArray[np.int64]) -> Tensor:
    """The same, from words with the place in their last bits: to sort these takes a fifth of sorting places by words."""
    ends = sizes.cumsum()
    place = (np.arange(int(sizes.sum())) - np.repeat(ends - sizes, sizes)).view(np.uint64)
    words = _mixed(np.repeat(keys, sizes) + (place + np.uint64(1)) * np.uint64(_GOLDEN))
    last = np.uint64((1 << _PLACES) - 1)
    packed = ((words ^ np.uint64(1 << 63)) & ~last) | place  # a torch word is signed, so half of them come first
    for some in packed.reshape(len(sizes), -1) if len(set(sizes.tolist())) == 1 else np.split(packed, ends[:-1]):
        some.sort()
    return torch.from_numpy((packed & last).view(np.int64))


def digest(x: Tensor, keys: tuple[int, ...]) -> tuple[int, ...]:
    """64 bits for each key that a change in any bit of `x` changes; on the device, so that a large tensor need not travel."""
    wide = x.detach().contiguous().reshape(-1)
    bits = wide.view(torch.int64) if wide.element_size() == 8 else wide.view(torch.int32).long()
    places = torch.arange(1, len(bits) + 1, device=x.device) * _signed(_GOLDEN)
    return tuple(int(mix(mix(places + _signed(key)) ^ bits).sum()) for key in keys)


def row_marks(x: Tensor, batch: int = 1 << 16) -> Tensor:
    """64 bits for each row of `x`: equal rows have equal marks, and different ones hardly ever."""
    if not len(x):
        return torch.zeros(0, dtype=torch.int64, device=x.device)
    rows = x.detach().reshape(len(x), -1).contiguous().view(torch.uint8)
    rows = torch.nn.functional.pad(rows, (0, -rows.shape[1] % 8))
    places = torch.arange(rows.shape[1] // 8, device=x.device) * _signed(_GOLDEN)
    parts = [mix(mix(places) ^ part.view(torch.int64)).sum(1) for part in torch.split(rows, batch)]
    return torch.cat(parts)


def coins(keys: Tensor, shape: tuple[int, ...], share: float) -> Tensor:
    """`[..., *shape]` truths, each with the chance `share`, rounded to steps of `COIN`, for `[...]` keys.

    Four from a word: a word costs many passes over it, and dropout wants a coin for every activation.
    """
    count, most = math.prod(shape), round(share / COIN) - 2**15
    if most >= 2**15:
        return torch.ones(*keys.shape, *shape, dtype=torch.bool, device=keys.device)
    word, bar = words(keys, -(-count // 4)), most * 2**48
    # each quarter in turn at the top of the word, where what lies below it decides nothing; vmap knows no view as int16 before 2.13
    quarters = torch.stack([word << 48 < bar, word << 32 < bar, word << 16 < bar, word < bar], -1)
    return quarters.flatten(-2)[..., :count].reshape(*keys.shape, *shape)


def uniform(keys: Tensor, shape: tuple[int, ...]) -> Tensor:
    """`[..., *shape]` floats in [0, 1) with 24 random bits, for `[...]` keys."""
    count = math.prod(shape)
    bits = _shift_right(words(keys, count), 40)
    return (bits.to(torch.float32) * 2.0**-24).reshape(*keys.shape, *shape)
