"""The self-check of a head finds wrong boundaries, wrong feedback and a head that knows nothing, on the real model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tiny_heads
from decoding import with_head
from twelve import read_reference

import tiny_models
from alula.core.config import EngineConfig, SpeculationConfig
from alula.core.errors import InvalidOption
from alula.engine import head_check
from alula.engine.head_check import run_head_check
from alula.engine.setup import EngineSpec, Parts
from alula.models.source import ModelSource, resolve_source
from alula.spec.head_check import HeadReport


@pytest.fixture(scope="module")
def report(smollm2: Parts, smollm2_source: ModelSource) -> Any:
    """Checks the loaded model with another reading of its head, along 96 tokens of one answer of its own.

    It is one of the answers on which the readings differ clearly; over all twelve of tests/data/twelve.json the first
    draft agrees in 57 % of tokens, one boundary lower in 55 %, one higher in 51 %.
    """
    answer = read_reference()["answers"][7]
    texts = [(tuple(answer["prompt_ids"]), tuple(answer["answer_ids"][:96]))]

    def run(
        boundaries: tuple[int, ...] | None = None, feedback: str | None = None, weights: str = "trained"
    ) -> HeadReport:
        parts = smollm2
        if weights != "trained" or boundaries is not None or feedback is not None:
            head = smollm2_source.builtin_head
            parts = with_head(smollm2, weights, head, aux_boundaries=boundaries, feedback=feedback)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(head_check, "load_parts", lambda *_: parts)
            patch.setattr(head_check, "_answers", lambda _: texts)
            spec = EngineSpec(source=smollm2_source, head=smollm2_source.builtin_head, config=EngineConfig())
            return run_head_check(spec)

    return run


def test_the_right_reading_has_no_warnings(report: Any) -> None:
    found = report()
    assert found.warnings == ()
    assert (found.boundaries, found.feedback, found.num_tokens) == ((2, 15, 27), "pre", 96)
    agreement = found.agreement_percent
    assert agreement.keys() == {"-1", "+0", "+1"}
    assert agreement["+0"] > max(agreement["-1"], agreement["+1"]) + 3
    assert found.tokens_per_cycle["pre"] > found.tokens_per_cycle["post"] + 0.3


@pytest.mark.parametrize("offset", [-1, 1])
def test_boundaries_that_are_off_by_one_are_warned_of(report: Any, offset: int) -> None:
    """As when a head that counts outputs is read as one that counts inputs; the suggestion is the right reading."""
    found = report(boundaries=tuple(b + offset for b in (2, 15, 27)))
    warning = next(w for w in found.warnings if "boundaries" in w)
    assert "--aux-boundaries 2,15,27" in warning
    assert f"offset {-offset:+d}" in warning


def test_a_wrong_feedback_is_warned_of(report: Any) -> None:
    found = report(feedback="post")
    (warning,) = found.warnings
    assert "--feedback pre" in warning


def test_a_head_that_knows_nothing_is_warned_of(report: Any) -> None:
    found = report(weights="random")
    assert any("not trained for this target" in w for w in found.warnings)
    assert found.agreement_percent["+0"] < 5


def test_offsets_that_leave_the_target_are_not_tried() -> None:
    """tiny_models' head reads boundaries 1, 2, 3 of four layers; with 0, 2, 4 both neighbours leave the target."""
    found = _tiny(SpeculationConfig(aux_boundaries=(0, 2, 4)))
    assert found.agreement_percent["-1"] is None
    assert found.agreement_percent["+1"] is None
    assert found.agreement_percent["+0"] is not None


def test_a_head_that_reads_the_final_hidden_state_has_no_neighbours(tmp_path: Path) -> None:
    form = tiny_heads.but(boundaries=())
    found = _tiny(SpeculationConfig(), tiny_heads.write_form(tmp_path, form))
    assert found.agreement_percent.keys() == {"+0"}
    assert found.boundaries == ()


def test_without_a_head_there_is_nothing_to_check() -> None:
    source = resolve_source(str(tiny_models.checkpoint("plain")))
    with pytest.raises(InvalidOption, match="no head to check"):
        run_head_check(EngineSpec(source=source, head=None, config=EngineConfig(dtype="float32", device="cpu")))


def _tiny(speculation: SpeculationConfig, head: Path | None = None) -> HeadReport:
    config = EngineConfig(
        dtype="float32",
        device="cpu",
        kv_memory_bytes=2**23,
        speculation=speculation,
        context_tokens=256,
    )
    source = resolve_source(str(tiny_models.checkpoint("plain")))
    spec = EngineSpec(source=source, head=head or tiny_models.head("plain"), config=config)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(head_check, "_ANSWER_TOKENS", 20)
        return run_head_check(spec)
