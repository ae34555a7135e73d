"""How one request draws its tokens. Knows nothing of models or devices."""

from __future__ import annotations

import msgspec

from alula.core.errors import InvalidOption

MAX_SEED = 2**63 - 1


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Sampling of one request; checked once, at construction.

    The processed distribution is, in this order: penalties, temperature, top-k, top-p, min-p, renormalised in
    fp32. `temperature` 0 is greedy: the lowest token id among the largest logits.

    Raises InvalidOption where a value is out of range.
    """

    temperature: float = 0.0
    top_k: int = 0  # 0: no limit
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    sample_index: int = 0  # the n-th answer to one prompt: part of the noise key
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    max_tokens: int = 256
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None  # how many alternatives a token is reported with; None: no logprobs

    def __post_init__(self) -> None:
        self._settle_types()
        _check(0.0 <= self.temperature < float("inf"), "temperature", self.temperature, "a number from 0")
        _check(self.top_k >= 0, "top_k", self.top_k, "0 (no limit) or a positive count")
        _check(0.0 < self.top_p <= 1.0, "top_p", self.top_p, "a number above 0 and at most 1")
        _check(0.0 <= self.min_p <= 1.0, "min_p", self.min_p, "a number from 0 to 1")
        _check(0 <= self.seed <= MAX_SEED, "seed", self.seed, f"a whole number from 0 to {MAX_SEED}")
        _check(0 <= self.sample_index < 2**32, "sample_index", self.sample_index, "a whole number from 0")
        _check(
            0.0 < self.repetition_penalty < float("inf"),
            "repetition_penalty",
            self.repetition_penalty,
            "a positive number (1 is none)",
        )
        for name in ("presence_penalty", "frequency_penalty"):
            value = getattr(self, name)
            _check(-2.0 <= value <= 2.0, name, value, "a number from -2 to 2")
        _check(self.max_tokens >= 1, "max_tokens", self.max_tokens, "at least 1")
        _check(all(self.stop), "stop", self.stop, "strings that are not empty")
        _check(
            self.logprobs is None or 0 <= self.logprobs <= 20,
            "logprobs",
            self.logprobs,
            "a whole number from 0 to 20, or none",
        )

    def _settle_types(self) -> None:
        """One stop string stands for a tuple of one, a list for a tuple; any other type is refused by name."""
        if isinstance(self.stop, str):
            msgspec.structs.force_setattr(self, "stop", (self.stop,))
        for field in msgspec.structs.fields(type(self)):
            value = getattr(self, field.name)
            try:
                settled = msgspec.convert(value, field.type)
            except msgspec.ValidationError as error:
                raise InvalidOption(f"{field.name} is {value!r}: {str(error).lower()}") from error
            if settled is not value:
                msgspec.structs.force_setattr(self, field.name, settled)

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0

    @property
    def penalised(self) -> bool:
        return self.repetition_penalty != 1.0 or self.presence_penalty != 0.0 or self.frequency_penalty != 0.0


def _check(holds: bool, name: str, found: object, expected: str) -> None:
    if not holds:
        raise InvalidOption(f"{name} is {found!r}; expected {expected}")
