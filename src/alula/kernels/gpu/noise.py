"""The noise of `kernels/reference/noise.py` inside a Triton kernel: any token's, alone. Words are the same bits; the
logarithms are the device's own.

`position`, `sample_index` and `seed` are int64 scalars of a row; counters and tokens are int32 blocks.
"""

from __future__ import annotations

import triton
import triton.language as tl

from alula.kernels.reference.noise import MULTIPLIERS, NUM_ROUNDS, SCALE, WEYL

_MULTIPLIER_0 = tl.constexpr(MULTIPLIERS[0])
_MULTIPLIER_1 = tl.constexpr(MULTIPLIERS[1])
_WEYL_0 = tl.constexpr(WEYL[0])
_WEYL_1 = tl.constexpr(WEYL[1])
_NUM_ROUNDS = tl.constexpr(NUM_ROUNDS)
_SCALE = tl.constexpr(SCALE)


@triton.jit
def noise_words(counter, seed, sample_index, position):
    """The four uint32 words of each counter: those of tokens 4c, 4c+1, 4c+2, 4c+3."""
    c0 = counter.to(tl.uint32)
    c1 = position.to(tl.uint32)
    c2 = sample_index.to(tl.uint32)
    c3 = tl.zeros_like(c2)
    k0 = seed.to(tl.uint32)
    k1 = (seed >> 32).to(tl.uint32)
    m0 = tl.full((), _MULTIPLIER_0, tl.uint32)
    m1 = tl.full((), _MULTIPLIER_1, tl.uint32)
    for _ in tl.static_range(_NUM_ROUNDS):
        high0, low0 = tl.umulhi(c0, m0), c0 * m0
        high1, low1 = tl.umulhi(c2, m1), c2 * m1
        c0, c1 = high1 ^ c1 ^ k0, low1
        c2, c3 = high0 ^ c3 ^ k1, low0
        k0 = k0 + tl.full((), _WEYL_0, tl.uint32)
        k1 = k1 + tl.full((), _WEYL_1, tl.uint32)
    return c0, c1, c2, c3


@triton.jit
def gumbel_from_words(word):
    """uint32 words to Gumbel noise, fp32."""
    v = (word.to(tl.float32) + 0.5) * _SCALE
    # log1p(-v), to full precision where v is small: Kahan's quotient makes up for the rounding of 1 - v.
    u = 1.0 - v
    lost = tl.where(u == 1.0, 1.0, 1.0 - u)
    exponential = tl.where(u == 1.0, v, -tl.log(u) * (v / lost))
    return -tl.log(exponential)


@triton.jit
def gumbel_tile(counter, seed, sample_index, position):
    """[C, 4]: the noise of the tokens 4c + lane, for C counters."""
    w0, w1, w2, w3 = noise_words(counter, seed, sample_index, position)
    pairs = tl.join(tl.join(w0, w2), tl.join(w1, w3))
    return gumbel_from_words(tl.reshape(pairs, [counter.shape[0], 4]))


@triton.jit
def gumbel_at(token, seed, sample_index, position):
    """The noise of any tokens, in their shape; a counter for each."""
    w0, w1, w2, w3 = noise_words(token >> 2, seed, sample_index, position)
    lane = token & 3
    low = tl.where(lane == 0, w0, w1)
    high = tl.where(lane == 2, w2, w3)
    return gumbel_from_words(tl.where(lane < 2, low, high))
