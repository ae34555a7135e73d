"""Heads of every published form in a cycle that stays on the device propose what they propose in the host's cycle."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import tiny_heads
from decoding import decode, request
from test_draft_model import FORMS
from tiny_heads import HeadForm, but

import tiny_models
from alula.core.sampling import SamplingParams
from alula.engine.device_engine import DeviceEngine
from alula.engine.engine import Engine
from alula.engine.setup import Parts
from alula.kernels.reference import seats as reference_seats
from alula.layers.block_kernels import reference_block_kernels
from alula.layers.kernels import reference_kernels
from alula.spec.drafting import ChainStart, Chooser, Drafter

STEPS = 3
SAMPLINGS = [
    SamplingParams(max_tokens=24, ignore_eos=True),
    SamplingParams(max_tokens=24, ignore_eos=True, temperature=1.0, seed=3),
]
Proposed = dict[int, list[int]]  # by tokens in the cache


def host_proposals(parts: Parts, sampling: SamplingParams, decisions: Sequence[bool]) -> tuple[list[int], Proposed]:
    proposed: Proposed = {}
    chain = Drafter.chain

    def keep(self: Drafter, starts: Sequence[ChainStart], choose: Chooser) -> list[list[int]]:
        found = chain(self, starts, choose)
        proposed.update((start.num_kv, drafts) for start, drafts in zip(starts, found, strict=True))
        return found

    with mock.patch.object(Drafter, "chain", keep):
        outcome = decode(
            Engine(parts),
            [request(tiny_models.random_ids(7, seed=2), STEPS, sampling=sampling)],
            decisions=decisions,
        )["r"]
    return outcome.token_ids, proposed


def device_proposals(
    parts: Parts, sampling: SamplingParams, decisions: Sequence[bool]
) -> tuple[list[int], Proposed]:
    proposed: Proposed = {}

    def keep(seats: Any, seats_B: Any, width: int, *rest: Any) -> None:
        if width > 1:
            proposed[int(seats.num_kv_S[1])] = seats.drafts_SK[1, : width - 1].tolist()
        reference_seats.accept_rows(seats, seats_B, width, *rest)

    own = SimpleNamespace(**{**vars(reference_seats), "accept_rows": keep})
    engine = DeviceEngine(replace(parts, block=replace(reference_block_kernels(), seats=own)))
    outcome = decode(
        engine, [request(tiny_models.random_ids(7, seed=2), STEPS, sampling=sampling)], decisions=decisions
    )["r"]
    return outcome.token_ids, proposed


@pytest.mark.parametrize("decisions", [[True], [True, True, False]], ids=["always", "now and then"])
@pytest.mark.parametrize("form", [*FORMS.values(), but(own_lm_head=False)], ids=[*FORMS, "no_lm_head"])
def test_the_same_drafts_as_on_the_host(tmp_path: Path, form: HeadForm, decisions: list[bool]) -> None:
    with mock.patch("alula.engine.setup.choose_kernels", lambda device, dtype: reference_kernels()):
        parts = tiny_heads.parts(form.family, tiny_heads.write_form(tmp_path, form), threads=1)
    for sampling in SAMPLINGS:
        tokens, expected = host_proposals(parts, sampling, [True])
        found_tokens, found = device_proposals(parts, sampling, decisions)
        assert found_tokens == tokens
        both = found.keys() & expected.keys()
        assert len(both) >= (4 if len(decisions) > 1 else len(expected))
        # The host drafts no more than the answer has room for.
        assert [found[at][: len(expected[at])] for at in both] == [expected[at] for at in both]
