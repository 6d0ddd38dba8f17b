# mypy: ignore-errors
# ruff: noqa: N803
"""The body of the GPU kernel: Triton compiles this function's source, so names in it mean Triton's own."""

import triton.language as tl


def add_up(x, table, sources, start, dim, tiles, homes, rows, scale, LANES: tl.constexpr, TURNS: tl.constexpr, BLOCK: tl.constexpr):
    """The counters of BLOCK tiles of one row of one client's sketch."""
    row, client = tl.program_id(1), tl.program_id(2).to(tl.int64)
    home = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = home < homes
    first = tl.load(start + row * (TURNS * homes + 1) + TURNS * home, mask=inside, other=0)
    last = tl.load(start + row * (TURNS * homes + 1) + TURNS * home + TURNS, mask=inside, other=0)
    lane = tl.arange(0, LANES)
    total = tl.zeros((BLOCK, LANES), dtype=tl.float32)
    for step in range(0, tl.max(last - first, axis=0)):
        live = first + step < last
        word = tl.load(sources + row * tiles + first + step, mask=live, other=0)
        tile, spin = (word & 0x7FFFFFFF) // LANES, word & (LANES - 1)
        place = tile[:, None] * LANES + ((lane[None, :] - spin[:, None]) & (LANES - 1))
        value = tl.load(x + client * dim + place, mask=live[:, None] & (place < dim), other=0.0)
        total += tl.where(word[:, None] < 0, -value, value)
    into = table + client * rows * homes * LANES + (row * homes + home[:, None]) * LANES + lane[None, :]
    tl.store(into, total * scale, mask=inside[:, None])
