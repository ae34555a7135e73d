"""Is the law of the emitted tokens the target's? Exact enumeration for the toy of toy_engine.py, and the tests of
specs/eagle3.md 4.5: chi-square and total variation of three tokens, and the acceptance identity.

The exact law is computed here from the table in double precision, by loops, sharing nothing with the engine.
"""

from __future__ import annotations

import itertools
import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from toy_engine import FAULTS, VOCAB_SIZE, Mix, Sample, Toy, collect, draft_table, random_table

from alula.core.sampling import SamplingParams

LENGTH = 3  # tokens whose joint law is tested: 512 cells; first those from the first on, then from the second on,
# since the first is drawn by prefill, and what a cycle leaves behind shows in the next
NUM_TOKENS = LENGTH + 1
MIN_EXPECTED = 5.0
MIN_P_VALUE = 1e-4
MAX_TV_RATIO = 3.0
MAX_SIGMAS = 3.0

Law = list[float]


def processed(logits: Sequence[float], params: SamplingParams, prompt: Sequence[int], output: Sequence[int]) -> Law:
    """p of one draw: penalties, temperature, top-k, top-p, min-p, each renormalised."""
    values = [_penalised(value, token, params, prompt, output) for token, value in enumerate(logits)]
    if params.greedy:
        best = values.index(max(values))
        return [float(token == best) for token in range(len(values))]
    largest = max(values)
    weights = [math.exp((value - largest) / params.temperature) for value in values]
    order = sorted(range(len(weights)), key=lambda token: (-weights[token], token))
    if params.top_k:
        order = order[: params.top_k]
    total = sum(weights[token] for token in order)
    kept, before = [], 0.0
    for token in order:
        if kept and before >= params.top_p * total:
            break
        kept.append(token)
        before += weights[token]
    kept = [token for token in kept if weights[token] >= params.min_p * weights[kept[0]]]
    total = sum(weights[token] for token in kept)
    return [weights[token] / total if token in kept else 0.0 for token in range(len(weights))]


def _penalised(
    value: float, token: int, params: SamplingParams, prompt: Sequence[int], output: Sequence[int]
) -> float:
    if token in prompt or token in output:
        value = value / params.repetition_penalty if value > 0 else value * params.repetition_penalty
    count = list(output).count(token)
    return value - params.frequency_penalty * count - params.presence_penalty * (count > 0)


class ExactLaw:
    """The target's law for one kind of request."""

    def __init__(self, table_VVV: Tensor, kind: Mix) -> None:
        self._table = table_VVV.double().tolist()
        self._kind = kind
        self._known: dict[tuple[int, ...], Law] = {}

    def next(self, output: tuple[int, ...]) -> Law:
        """p of the token after the prompt and `output`."""
        if output not in self._known:
            self._known[output] = self._next(output)
        return self._known[output]

    def _next(self, output: tuple[int, ...]) -> Law:
        tokens = (0, 0, *self._kind.prompt_ids, *output)
        logits = self._table[tokens[-2]][tokens[-1]]
        return processed(logits, self._kind.sampling, self._kind.prompt_ids, output)

    def windows(self) -> tuple[Tensor, Tensor]:
        """p of the first three tokens and of tokens 2 to 4, each [512], first token slowest."""
        sequences = itertools.product(range(VOCAB_SIZE), repeat=NUM_TOKENS)
        cells = [math.prod(self.next(s[:i])[token] for i, token in enumerate(s)) for s in sequences]
        joint_VCV = torch.tensor(cells, dtype=torch.float64).view(VOCAB_SIZE, -1, VOCAB_SIZE)
        return joint_VCV.sum(-1).flatten(), joint_VCV.sum(0).flatten()


@dataclass(frozen=True)
class Fit:
    """How well a sample fits a law. tv_ratio: total variation over its expectation under the law."""

    p_value: float
    tv_ratio: float

    @property
    def good(self) -> bool:
        return self.p_value > MIN_P_VALUE and self.tv_ratio < MAX_TV_RATIO


def fit(tokens_NL: Tensor, law: Tensor) -> Fit:
    """Chi-square over cells with expectation >= 5, the others pooled; a token sequence of probability 0 refutes."""
    powers = VOCAB_SIZE ** torch.arange(tokens_NL.shape[1] - 1, -1, -1)
    cells = (tokens_NL * powers).sum(1)
    counts = torch.bincount(cells, minlength=len(law)).double()
    num_runs = len(tokens_NL)
    expected = law * num_runs
    tv = 0.5 * (counts / num_runs - law).abs().sum()
    tv_expected = 0.5 * (2 * law * (1 - law) / (math.pi * num_runs)).sqrt().sum()
    if bool(((law == 0) & (counts > 0)).any()):
        return Fit(0.0, math.inf)
    large = expected >= MIN_EXPECTED
    pairs = [(counts[large], expected[large])]
    if float(expected[~large].sum()) >= MIN_EXPECTED:
        pairs.append((counts[~large].sum()[None], expected[~large].sum()[None]))
    seen, wanted = (torch.cat(column) for column in zip(*pairs, strict=True))
    statistic = float(((seen - wanted) ** 2 / wanted).sum())
    return Fit(chi_square_p(statistic, len(seen) - 1), float(tv / tv_expected) if tv_expected > 0 else 0.0)


def chi_square_p(statistic: float, degrees: int) -> float:
    """P(chi-square with that many degrees of freedom >= statistic)."""
    if degrees < 1:
        return 1.0
    halves = torch.tensor([degrees / 2, statistic / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(halves[0], halves[1]))


def agreement(p: Law, q: Law) -> list[float]:
    """For each token, the probability that draws from p and from q with one Gumbel noise both give it.

    Both give v where the noise of v exceeds that of each w by log max(p_w / p_v, q_w / q_v), so with exponential
    clocks: 1 / sum_w max(p_w / p_v, q_w / q_v).
    """
    return [
        0.0 if p[v] == 0 or q[v] == 0 else 1 / sum(max(p[w] / p[v], q[w] / q[v]) for w in range(len(p)))
        for v in range(len(p))
    ]


class ExactAcceptance:
    """P(the first draft, and the first two, of the first decoding cycle are accepted)."""

    def __init__(self, toy: Toy, kind: Mix) -> None:
        self._target = ExactLaw(toy.target_VVV, kind)
        self._table = toy.draft_VVV.tolist()
        self._toy = toy
        self._kind = kind

    def at_least(self, count: int, output: tuple[int, ...] | None = None) -> float:
        """P(the first `count` drafts are accepted), over the root that prefill drew."""
        if output is None:
            first = self._target.next(())
            return sum(p * self.at_least(count, (token,)) for token, p in enumerate(first) if p)
        if count == 0:
            return 1.0
        matches = self._matches(output)
        return sum(p * self.at_least(count - 1, (*output, token)) for token, p in enumerate(matches) if p)

    def _matches(self, output: tuple[int, ...]) -> list[float]:
        """P(target and draft both give that token) after `output`, by token."""
        p = self._target.next(output)
        tokens = (0, 0, *self._kind.prompt_ids, *output)
        row = self._table[tokens[-2]][tokens[-1]]
        hot = self._toy.hot_ids
        hot_logits = [row[token] for token in hot]
        if self._toy.argmax_drafts or self._kind.sampling.greedy:
            best = hot[hot_logits.index(max(hot_logits))]
            return [p[token] * (token == best) for token in range(VOCAB_SIZE)]
        # The draft knows no penalties: it only proposes.
        hot_law = processed(hot_logits, _without_penalties(self._kind.sampling), (), ())
        q = [0.0] * VOCAB_SIZE
        for token, value in zip(hot, hot_law, strict=True):
            q[token] = value
        return agreement(p, q)


def _without_penalties(params: SamplingParams) -> SamplingParams:
    return SamplingParams(
        temperature=params.temperature, top_k=params.top_k, top_p=params.top_p, min_p=params.min_p
    )


def acceptance_sigmas(sample: Sample, toy: Toy, kind: Mix, count: int) -> float:
    """How many standard deviations the measured P(`count` drafts accepted) is from the exact one."""
    exact = ExactAcceptance(toy, kind).at_least(count)
    num_runs = len(sample.first_accepted_N)
    measured = float((sample.first_accepted_N >= count).double().mean())
    deviation = math.sqrt(exact * (1 - exact) / num_runs)
    if deviation == 0:
        return 0.0 if abs(measured - exact) < 1e-12 else math.inf
    return abs(measured - exact) / deviation


@dataclass(frozen=True)
class Verdict:
    """One case's outcome."""

    name: str
    num_runs: int
    fits: tuple[Fit, Fit]  # tokens 1 to 3, tokens 2 to 4
    acceptance_sigmas: tuple[float, ...]
    tokens_per_cycle: float

    @property
    def good(self) -> bool:
        return all(fit.good for fit in self.fits) and all(sigmas < MAX_SIGMAS for sigmas in self.acceptance_sigmas)


TARGET_VVV = random_table(0)
PROMPT = (2, 5, 1)
PLAIN = SamplingParams(temperature=1.0, max_tokens=5)
FILTERED = SamplingParams(temperature=0.8, top_k=5, top_p=0.9, max_tokens=5)
WARM = SamplingParams(temperature=1.4, top_p=0.95, min_p=0.05, max_tokens=5)
PENALISED = SamplingParams(
    temperature=1.0,
    top_k=6,
    repetition_penalty=1.4,
    presence_penalty=0.6,
    frequency_penalty=0.5,
    max_tokens=5,
)
GREEDY = SamplingParams(max_tokens=5)


def _toy(draft: str, **changes: object) -> Toy:
    return Toy(TARGET_VVV, draft_table(draft, TARGET_VVV), **changes)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Case:
    """What runs side by side in one engine."""

    toy: Toy
    mix: tuple[Mix, ...]


def one(toy: Toy, sampling: SamplingParams, steps: int) -> Case:
    return Case(toy, (Mix(PROMPT, sampling, steps),))


# Item 1 of section 4.5: one noise for target and draft, with near, random, biased and adversarial drafts, whole and
# restricted vocabularies, pages that the chain runs over.
CASES: dict[str, Case] = {
    "one_noise_near": one(_toy("near"), FILTERED, 2),
    "one_noise_random": one(_toy("random", hot_ids=(0, 2, 3, 6, 7)), PLAIN, 2),
    "one_noise_biased_long": one(_toy("biased", page_tokens=2), WARM, 3),
    "one_noise_adversarial": one(_toy("adversarial"), FILTERED, 1),
    "one_noise_penalised": one(_toy("near"), PENALISED, 2),
    "argmax_drafts": one(_toy("near", argmax_drafts=True), FILTERED, 2),
    "argmax_drafts_restricted": one(_toy("near", argmax_drafts=True, hot_ids=(1, 3, 4)), PLAIN, 2),
    "greedy": one(_toy("near"), GREEDY, 3),
}
# Mixed batches: widths, prompts, chunks and ways of sampling side by side.
MIXED = Case(
    _toy("near", chunk_tokens=700, page_tokens=4),
    (
        Mix(PROMPT, FILTERED, 2),
        Mix((4,), PLAIN, 0),
        Mix((0, 7, 7, 3, 1), WARM, 3),
        Mix((6, 6), GREEDY, 1),
    ),
)


def judge(name: str, case: Case, num_runs: int) -> list[Verdict]:
    """Runs a case and compares each kind of request in it with its exact law. Each name has seeds of its own."""
    first_seed = zlib.crc32(name.encode()) << 24
    samples = collect(case.toy, case.mix, num_runs, NUM_TOKENS, first_seed)
    verdicts = []
    for i, (sample, kind) in enumerate(zip(samples, case.mix, strict=True)):
        first, second = ExactLaw(case.toy.target_VVV, kind).windows()
        tokens_NL = sample.tokens_NL
        fits = (fit(tokens_NL[:, :LENGTH], first), fit(tokens_NL[:, 1:], second))
        sigmas = tuple(
            acceptance_sigmas(sample, case.toy, kind, count) for count in range(1, sample.first_drafted + 1)
        )
        label = name if len(case.mix) == 1 else f"{name}[{i}]"
        per_cycle = sample.num_emitted / max(1, sample.num_cycles)
        verdicts.append(Verdict(label, num_runs, fits, sigmas, per_cycle))
    return verdicts


def faulty(fault: str) -> Case:
    """The first case, broken on purpose."""
    assert fault in FAULTS
    return one(_toy("near", fault=fault), FILTERED, 2)
