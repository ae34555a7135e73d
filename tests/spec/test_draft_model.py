"""The draft layer's numbers, against section 1.3 of specs/eagle3.md written down formula by formula."""

from __future__ import annotations

from pathlib import Path

import pytest
import tiny_heads
import torch
from tiny_heads import Formulas, HeadForm, but

from alula.layers.geometry import Segment, build_forward
from alula.spec.draft_model import DraftOutput
from alula.spec.drafting import ChainStart, Extension, greedy_chooser

FORMS = {
    "eagle3": HeadForm(),
    "norm_before_residual": but(norm_before_residual=True),
    "norm_output": but(norm_output=True),
    "fc_norm": but(fc_norm=True),
    "fc_norm_and_norm_output": but(fc_norm=True, norm_output=True),
    "norm_before_fc": but(norm_before_fc=True, norm_before_residual=True),
    "fc_bias": but(fc_bias=True),
    "qwen3": but(qk_norm=True),
    "final_hidden_state": but(boundaries=()),
    "one_boundary": but(boundaries=(2,)),
    "five_boundaries": but(boundaries=(0, 1, 2, 3, 4), fc_norm=True),
    "own_size": but(hidden_size=48, num_heads=6, num_kv_heads=3, head_dim=20, embedding=True),
    "one_kv_head": but(num_heads=8, num_kv_heads=1, head_dim=8),
    "full_vocabulary": but(hot=None),
}
SUCCESSORS = [17, 4, 250, 17, 99, 3, 301]


def features_of(form: HeadForm, count: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(11)
    return torch.randn(count, form.num_features or 64, generator=generator)


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS.keys())
def test_the_layer_is_the_formula(tmp_path: Path, form: HeadForm) -> None:
    tensors = tiny_heads.tensors_of(form)
    model = tiny_heads.load(tiny_heads.write_form(tmp_path, form))
    drafter, table = tiny_heads.drafter(model)
    embedding = tensors.get("embed_tokens.weight", tiny_heads.load_target().embedding.weight_VH)
    features = features_of(form, len(SUCCESSORS))
    with torch.no_grad():
        forward = build_forward(drafter.geometry, [Segment(table, 0, len(SUCCESSORS))], SUCCESSORS, "extend")
        output = model(forward, model.fuse(features))
        logits = model.logits(output.normed_RH, "extend")
    formulas = Formulas(tensors, form, embedding)
    wanted_logits, y, out = formulas.layer(SUCCESSORS, formulas.fuse(features))
    torch.testing.assert_close(logits, wanted_logits, atol=2e-5, rtol=1e-4)
    torch.testing.assert_close(output.normed_RH, out, atol=2e-5, rtol=1e-4)
    torch.testing.assert_close(output.feedback_RH, out if form.norm_output else y, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("name", ["eagle3", "norm_output", "norm_before_residual", "qwen3", "final_hidden_state"])
def test_a_draft_step_feeds_back_without_fusion(tmp_path: Path, name: str) -> None:
    """Step 2 reads the hidden state before the final norm (after it with norm_output); fc is not applied again."""
    form = FORMS[name]
    tensors = tiny_heads.tensors_of(form)
    model = tiny_heads.load(tiny_heads.write_form(tmp_path, form))
    drafter, table = tiny_heads.drafter(model)
    embedding = tiny_heads.load_target().embedding.weight_VH
    features, count, seen = features_of(form, len(SUCCESSORS)), len(SUCCESSORS), []

    def choose(step: int, active: list[int], logits: torch.Tensor) -> torch.Tensor:
        seen.append(logits[0])
        return greedy_chooser(step, active, logits)

    with torch.no_grad():
        (state,) = drafter.extend([Extension(Segment(table, 0, count), SUCCESSORS, True)], features)
        assert state is not None
        (drafts,) = drafter.chain([ChainStart(table, count, 3, state)], choose)
    # The same by one pass of the formula a step, over all rows so far, each row with the feature that it had.
    hot = torch.tensor(form.hot)
    formulas = Formulas(tensors, form, embedding)
    fused = formulas.fuse(features)
    successors, wanted = list(SUCCESSORS), []
    for _ in range(3):
        logits, y, out = formulas.layer(successors, fused)
        torch.testing.assert_close(seen[len(wanted)], logits[-1], atol=5e-5, rtol=1e-4)
        wanted.append(int(hot[logits[-1].argmax()]))
        fused = torch.cat((fused, (out if form.norm_output else y)[-1:]))
        successors.append(wanted[-1])
    assert drafts == wanted


def test_an_explicit_feedback_wins_over_norm_output(tmp_path: Path) -> None:
    folder = tiny_heads.write_form(tmp_path, but(norm_output=True))
    outputs: dict[str, DraftOutput] = {}
    for feedback in ("pre", "post"):
        model = tiny_heads.load(folder, feedback=feedback)
        drafter, table = tiny_heads.drafter(model)
        with torch.no_grad():
            forward = build_forward(drafter.geometry, [Segment(table, 0, 2)], [5, 6], "extend")
            outputs[feedback] = model(forward, model.fuse(features_of(HeadForm(), 2)))
    assert torch.equal(outputs["post"].feedback_RH, outputs["post"].normed_RH)
    assert torch.equal(outputs["post"].normed_RH, outputs["pre"].normed_RH)
    assert not torch.allclose(outputs["pre"].feedback_RH, outputs["pre"].normed_RH)


def test_width_detection_is_not_used(tmp_path: Path) -> None:
    """With one auxiliary layer the features are as wide as the hidden state; fc still applies to them."""
    form = FORMS["one_boundary"]
    assert form.num_features == form.hidden_size
    model = tiny_heads.load(tiny_heads.write_form(tmp_path, form))
    features = features_of(form, 3)
    with torch.no_grad():
        fused = model.fuse(features)
    assert fused.shape == features.shape
    torch.testing.assert_close(fused, features @ tiny_heads.tensors_of(form)["fc.weight"].T, atol=1e-5, rtol=1e-4)


def test_positions_reach_the_engines_context(tmp_path: Path) -> None:
    """The head's own max_position_embeddings (32 here) is only how long its training texts were."""
    model = tiny_heads.load(tiny_heads.write_form(tmp_path, HeadForm()))
    drafter, table = tiny_heads.drafter(model)
    count = tiny_heads.CONTEXT_TOKENS
    with torch.no_grad():
        (state,) = drafter.extend(
            [Extension(Segment(table, 0, count), [7] * count, True)], features_of(HeadForm(), count)
        )
    assert state is not None
    assert torch.isfinite(state.logits_1D).all()


def test_features_are_the_residual_stream_at_the_boundaries() -> None:
    """Boundary 0 is the embedding, L the last layer's output before the final norm; the order is ascending."""
    import transformers

    import tiny_models

    ids = tiny_models.random_ids(6)
    target, geometry = tiny_heads.load_target(), tiny_heads.target_geometry()
    _, table = tiny_heads.drafter(tiny_heads.load(None, head="random"))
    with torch.no_grad():
        output = target(build_forward(geometry, [Segment(table, 0, 6)], ids, "verify"), (0, 1, 3, 4))
        captured: dict[int, torch.Tensor] = {}
        reference: transformers.LlamaForCausalLM = tiny_models.reference()
        hooks = [
            layer.register_forward_hook(
                lambda module, args, out, b=index: captured.__setitem__(
                    b, (out[0] if isinstance(out, tuple) else out).reshape(6, -1)
                )
            )
            for index, layer in enumerate(reference.model.layers, 1)
        ]
        embedded = reference.model.embed_tokens(torch.tensor(ids))
        reference(torch.tensor([ids]))
    for hook in hooks:
        hook.remove()
    wanted = torch.cat((embedded, captured[1], captured[3], captured[4]), -1)
    assert output.features_RF is not None
    torch.testing.assert_close(output.features_RF, wanted, atol=1e-4, rtol=1e-4)
