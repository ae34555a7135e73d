"""Large models' bytes, experts' unions, messages and GPUs: arithmetic with known answers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alula.core.errors import InvalidOption
from alula.core.named_shapes import NAMED_SHAPES
from alula.core.shape import parse_shape
from alula.plan.experts import expected_union, largest_union
from alula.plan.gpus import find_gpu
from alula.plan.messages import allreduce_bytes, num_allreduces
from alula.plan.served import forward_bytes
from alula.plan.served_models import find_shape
from alula.plan.work import target_forward


@given(st.integers(1, 512), st.data())
def test_a_union_grows_with_rows_and_stays_between_its_bounds(experts: int, data: st.DataObject) -> None:
    each = data.draw(st.integers(1, experts))
    unions = [expected_union(experts, each, rows) for rows in range(0, 40, 3)]
    assert unions == sorted(unions)
    assert unions[0] == 0.0 and expected_union(experts, each, 1) == pytest.approx(each)
    for rows in (1, 4, 30):
        assert each - 1e-9 <= expected_union(experts, each, rows) <= largest_union(experts, each, rows) + 1e-9


def test_a_union_of_nonsense_is_refused() -> None:
    with pytest.raises(InvalidOption, match="experts"):
        expected_union(8, 9, 1)


def test_three_rows_of_a_384_expert_model() -> None:
    assert expected_union(384, 8, 3) == pytest.approx(23.5, abs=0.05)
    assert allreduce_bytes(7168, 1) == 14 * 1024 and allreduce_bytes(7168, 3) == 43008
    assert num_allreduces(61) == 123


def test_kimi_on_eight_gpus_reads_what_was_worked_out_by_hand() -> None:
    shape = find_shape("moonshotai/Kimi-K2.5")
    assert shape is not None
    one, three = (forward_bytes(shape, rows=rows, tp=8) for rows in (1, 3))
    assert one.experts == pytest.approx(1.5e9, rel=0.02)  # 8 experts x 60 layers x 24.8 MB over 8 GPUs
    assert one.other_weights == pytest.approx(4.5e9, rel=0.1)
    assert three.experts_most == pytest.approx(4.5e9, rel=0.02)
    assert one.total == pytest.approx(one.total_most)


def test_a_dense_shape_agrees_with_the_exact_count() -> None:
    shape, exact = find_shape("Llama-3.1-8B"), parse_shape(NAMED_SHAPES["llama-3.1-8b"])
    assert shape is not None and not shape.sparse
    counted = target_forward(exact, kv_tokens=512)
    read = forward_bytes(shape, rows=1, kv_tokens=512)
    assert read.other_weights == pytest.approx(counted.weight_bytes, rel=1e-3)
    assert read.kv == pytest.approx(counted.kv_read_bytes)


@pytest.mark.parametrize(
    "model,name",
    [
        ("deepseek-ai/DeepSeek-R1", "deepseek-v3"),
        ("Qwen/Qwen3-30B-A3B-Instruct-2507", "qwen3-30b-a3b"),
        ("/data/models/Meta-Llama-3.1-8B-Instruct", "llama-3-8b"),
        ("Llama-3.3-70B", "llama-3-70b"),
        ("openai/gpt-oss-120b", "gpt-oss-120b"),
        ("zai-org/GLM-4.5-Air", "glm-4.5-air"),
        ("kimi-k2.6", "kimi-k2.5"),
        ("DeepSeek-R1-Distill-Llama-8B", None),
        ("Qwen3.6-27B", None),
        ("my-own-model", None),
    ],
)
def test_models_are_found_by_the_names_people_write(model: str, name: str | None) -> None:
    shape = find_shape(model)
    assert (shape.name if shape else None) == name


def test_quantised_names_are_narrower() -> None:
    wide, narrow = find_shape("qwen3-32b"), find_shape("Qwen3-32B-FP8")
    assert wide is not None and narrow is not None
    assert forward_bytes(narrow, rows=1).total == pytest.approx(forward_bytes(wide, rows=1).total / 2)
    told = find_shape("qwen3-30b-a3b", "awq")
    assert told is not None and told.expert_bytes < 0.6 and told.weight_bytes == 2.0


@pytest.mark.parametrize(
    "name,found",
    [
        ("NVIDIA A100-SXM4-80GB", "A100 80 GB"),
        ("A100-PCIE-40GB", "A100 40 GB"),
        ("NVIDIA H20", "H20"),
        ("NVIDIA H200", "H200"),
        ("rtx-pro-6000", "RTX PRO 6000 Blackwell"),
        ("NVIDIA GeForce RTX 4090", "GeForce RTX 4090"),
        ("RTX A6000", "RTX A6000"),
        ("NVIDIA A10", "A10"),
        ("Voodoo 2", None),
        ("", None),
    ],
)
def test_gpus_are_found_by_the_names_drivers_print(name: str, found: str | None) -> None:
    gpu = find_gpu(name)
    assert (gpu.name if gpu else None) == found
    assert gpu is None or (gpu.memory_bytes_per_s > 1e11 and gpu.source)


def test_counts_under_one_are_refused() -> None:
    shape = find_shape("qwen3-8b")
    assert shape is not None
    with pytest.raises(InvalidOption, match="rows 0"):
        forward_bytes(shape, rows=0)
