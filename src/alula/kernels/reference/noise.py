"""Gumbel noise as a pure function of (seed, sample, position, token). Knows nothing of models or requests.

The generator is Philox4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", 2011), laid
out so that a GPU twin can compute any element alone:

    key      (seed mod 2^32, seed div 2^32)
    counter  (token div 4, position, sample index, 0)
    word h   number (token mod 4) of the four that one counter gives

    v = (h + 0.5) * SCALE            in fp32; 0 < v < 1, and v keeps its full precision near 0
    noise = -log(-log1p(-v))         a standard Gumbel variable

Large noise, the kind that wins a draw, comes from small v, where fp32 is finest: it reaches 22.9 in steps far below
one unit. The smallest value is -2.81; every value is finite. Integer arithmetic is exact everywhere; the two
logarithms are the device's own, so CPU and GPU agree to rounding, and each device agrees with itself bit for bit
however many rows or tokens a call asks for.

R rows, V vocabulary (or the given tokens), C counters, that is V/4 rounded up.
"""

from __future__ import annotations

import torch
from torch import Tensor

MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)
NUM_ROUNDS = 10
WORD = 0xFFFFFFFF

# 2^-32, reduced by 2^-24 of itself: the largest h rounds to 2^32 in fp32, and v must stay below 1.
SCALE = (1.0 - 2.0**-24) * 2.0**-32
# Counters are computed in whole vectors, so that no element is left to a scalar tail with another logarithm.
_COUNTERS_ALIGNED = 16
# On a CPU, rows are taken together up to this many counters: enough for two threads to share the work, few enough
# for the state to stay in the second-level cache.
_COUNTERS_AT_ONCE = 65536

Words = tuple[Tensor, Tensor, Tensor, Tensor]


def philox(counter: Words, key: tuple[Tensor, Tensor]) -> Words:
    """The four 32-bit output words for each counter. Arguments are int64 tensors of 32-bit values that broadcast
    against each other; results have the broadcast shape. Mutates nothing."""
    # A state word may carry rubbish above bit 31 wherever only its low half is read: that saves a mask a round.
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(3):  # out of place: here words still broadcast, and two of four are a column or a single row
        low0, low1 = c0 * MULTIPLIERS[0], c2 * MULTIPLIERS[1]
        c0 = ((low1 >> 32) ^ k0 ^ c1) & WORD
        c2 = ((low0 >> 32) ^ k1 ^ c3) & WORD
        c1, c3 = low1, low0
        k0, k1 = k0 + WEYL[0], k1 + WEYL[1]
    # By now c0 and c2 have met every argument: both have the broadcast shape.
    c0, c1, c2, c3 = (word.expand(c0.shape).contiguous() for word in (c0, c1, c2, c3))
    low0, low1 = torch.empty_like(c0), torch.empty_like(c0)
    for _ in range(NUM_ROUNDS - 3):
        torch.mul(c0, MULTIPLIERS[0], out=low0)
        torch.mul(c2, MULTIPLIERS[1], out=low1)
        torch.bitwise_right_shift(low1, 32, out=c0)
        c0.bitwise_xor_(c1).bitwise_xor_(k0).bitwise_and_(WORD)
        torch.bitwise_right_shift(low0, 32, out=c2)
        c2.bitwise_xor_(c3).bitwise_xor_(k1).bitwise_and_(WORD)
        c1, c3, low0, low1 = low1, low0, c3, c1  # the buffers of the last round's products are free again
        k0, k1 = k0 + WEYL[0], k1 + WEYL[1]
    return c0, c1.bitwise_and_(WORD), c2, c3.bitwise_and_(WORD)


def gumbel(seeds_R: Tensor, sample_indices_R: Tensor, positions_R: Tensor, vocab_size: int) -> Tensor:
    """noise_RV in fp32. Arguments are int64, one entry a row (seed and sample: or one entry for all rows, which is
    faster); a position is the index, in the request's whole token sequence, of the token that is being drawn.
    Does not synchronise."""
    num_counters = _aligned((vocab_size + 3) // 4)
    noise_RC4 = torch.empty((positions_R.shape[0], num_counters, 4), dtype=torch.float32, device=positions_R.device)
    _fill_(noise_RC4, seeds_R, sample_indices_R, positions_R)
    return noise_RC4.flatten(1)[:, :vocab_size]


def gumbel_at(seeds_R: Tensor, sample_indices_R: Tensor, positions_R: Tensor, token_ids_V: Tensor) -> Tensor:
    """The columns `token_ids_V` of `gumbel`, bit for bit. `token_ids_V` is int64, [V] for all rows or [R, V].

    A counter is computed for each token: up to about a quarter of the vocabulary this is cheaper than all columns.
    """
    num_tokens = token_ids_V.shape[-1]
    padding = 4 * _aligned((num_tokens + 3) // 4) - num_tokens
    ids = torch.nn.functional.pad(token_ids_V.reshape(-1, num_tokens), (0, padding))
    w0, w1, w2, w3 = _words(ids >> 2, seeds_R, sample_indices_R, positions_R)
    lanes = ids & 3
    low_RV, high_RV = torch.where(lanes == 0, w0, w1), torch.where(lanes == 2, w2, w3)
    noise_RV = torch.where(lanes < 2, low_RV, high_RV).to(torch.float32)
    return _gumbel_from_words_(noise_RV)[:, :num_tokens]


class NoiseWindow:
    """The noise of one request, row by row as it advances; each position is computed once, though the draft draws
    from it and the target does so again, in the next cycle too where a draft was rejected.

    Positions are computed `block` at a time, ahead of use: two threads then share the work. Holds
    2 * (max_rows + block) rows of fp32, from the first use on: requests wait by the thousand. On a GPU, where noise is
    made inside the draw, there is no use for it.
    """

    def __init__(
        self,
        seed: int,
        sample_index: int,
        vocab_size: int,
        *,
        max_rows: int,
        block: int = 4,
        device: torch.device | str = "cpu",
    ) -> None:
        self._seed_1 = torch.tensor([seed], device=device)
        self._sample_index_1 = torch.tensor([sample_index], device=device)
        self._vocab_size, self._block = vocab_size, block
        self._shape = (2 * (max_rows + block), _aligned((vocab_size + 3) // 4), 4)
        self._noise_RC4 = torch.empty((0, *self._shape[1:]), dtype=torch.float32, device=device)
        self._first = 0  # position of row 0
        self._num_rows = 0

    def rows(self, first: int, num_rows: int) -> Tensor:
        """noise_RV of positions first, first+1, ...: a view, good until the next call. Positions may also go back.

        `num_rows` is at most the `max_rows` that the window was made for.
        """
        if not len(self._noise_RC4):
            self._noise_RC4 = self._noise_RC4.new_empty(self._shape)
        if not self._first <= first <= self._first + self._num_rows:
            self._first, self._num_rows = first, 0
        missing = first + num_rows - self._first - self._num_rows
        if missing > 0:
            missing = max(missing, self._block)
            if self._num_rows + missing > self._noise_RC4.shape[0]:
                self._drop_before(first)
            self._append(missing)
        start = first - self._first
        return self._noise_RC4[start : start + num_rows].flatten(1)[:, : self._vocab_size]

    def _drop_before(self, first: int) -> None:
        kept_RC4 = self._noise_RC4[first - self._first : self._num_rows].clone()
        self._first, self._num_rows = first, kept_RC4.shape[0]
        self._noise_RC4[: self._num_rows] = kept_RC4

    def _append(self, num_rows: int) -> None:
        start = self._first + self._num_rows
        positions_R = torch.arange(start, start + num_rows, device=self._noise_RC4.device)
        new_RC4 = self._noise_RC4[self._num_rows : self._num_rows + num_rows]
        _fill_(new_RC4, self._seed_1, self._sample_index_1, positions_R)
        self._num_rows += num_rows


def _aligned(num_counters: int) -> int:
    return -(-num_counters // _COUNTERS_ALIGNED) * _COUNTERS_ALIGNED


def _fill_(noise_RC4: Tensor, seeds_R: Tensor, sample_indices_R: Tensor, positions_R: Tensor) -> None:
    """Writes the noise of token 4c + lane to [row, c, lane]."""
    groups_1C = torch.arange(noise_RC4.shape[1], device=noise_RC4.device)[None]
    num_rows, num_counters = noise_RC4.shape[:2]
    at_once = max(1, _COUNTERS_AT_ONCE // num_counters) if noise_RC4.device.type == "cpu" else max(1, num_rows)
    for start in range(0, num_rows, at_once):
        rows = slice(start, start + at_once)
        seeds = seeds_R if seeds_R.shape[0] == 1 else seeds_R[rows]
        samples = sample_indices_R if sample_indices_R.shape[0] == 1 else sample_indices_R[rows]
        for lane, word_RC in enumerate(_words(groups_1C, seeds, samples, positions_R[rows])):
            noise_RC4[rows, :, lane].copy_(word_RC)
        _gumbel_from_words_(noise_RC4[rows])


def _words(groups: Tensor, seeds_R: Tensor, sample_indices_R: Tensor, positions_R: Tensor) -> Words:
    seeds_R1 = seeds_R[:, None]
    key = (seeds_R1 & WORD, (seeds_R1 >> 32) & WORD)
    positions_R1, samples_R1 = positions_R[:, None] & WORD, sample_indices_R[:, None] & WORD
    return philox((groups, positions_R1, samples_R1, torch.zeros_like(samples_R1)), key)


def _gumbel_from_words_(word: Tensor) -> Tensor:
    """In place: 32-bit words, held as fp32, to Gumbel noise."""
    return word.add_(0.5).mul_(-SCALE).log1p_().neg_().log_().neg_()
