"""Plain decoding of alula against transformers: same weights, same prompts, one process, alternating.

    python benchmarks/against_transformers.py [--prompts N] [--tokens N] [--json FILE]

Both decode greedily in bf16 on the CPU with the same number of threads, and both are timed from their first answer
token to their last, so that prefill is left out on either side. transformers gets the model as a Hugging Face folder
written from the very tensors that alula reads.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from alula.core.environment import bind_threads

bind_threads()  # before torch is loaded, as the command line does

import torch  # noqa: E402
import transformers  # noqa: E402
from safetensors.torch import save_file  # noqa: E402
from transformers.generation.streamers import BaseStreamer  # noqa: E402

from alula import LLM, SamplingParams  # noqa: E402
from alula.bench.prompts import load_prompts  # noqa: E402
from alula.core.config import EngineConfig  # noqa: E402
from alula.models.checkpoint import open_checkpoint  # noqa: E402
from alula.models.source import resolve_source  # noqa: E402


class Stopwatch(BaseStreamer):
    """Notes when each token arrives; the first call brings the prompt."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def put(self, value: torch.Tensor) -> None:
        self.times.append(time.perf_counter())

    def end(self) -> None:
        """Nothing is held back."""

    def ms_per_token(self) -> float:
        answer = self.times[1:]
        return (answer[-1] - answer[0]) * 1e3 / (len(answer) - 1)


def write_folder(model: str, folder: Path) -> None:
    """The model as transformers reads it: config.json and bf16 safetensors."""
    checkpoint = open_checkpoint(resolve_source(model))
    tensors = {name: checkpoint.read(name).to(torch.bfloat16).contiguous() for name in checkpoint.names()}
    save_file(tensors, str(folder / "model.safetensors"), metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(checkpoint.config))


def alula_ms(llm: LLM, ids: tuple[int, ...], num_tokens: int) -> float:
    llm.take_cycles()
    llm.generate([ids], SamplingParams(max_tokens=num_tokens, ignore_eos=True), steps=0)
    decode = [cycle.wall_ms for cycle in llm.take_cycles() if not any(r.num_prefill for r in cycle.requests)]
    return sum(decode) / len(decode)


def transformers_ms(model: Any, ids: tuple[int, ...], num_tokens: int) -> float:
    watch = Stopwatch()
    model.generate(
        torch.tensor([ids]),
        attention_mask=torch.ones(1, len(ids), dtype=torch.int64),
        max_new_tokens=num_tokens,
        min_new_tokens=num_tokens,
        do_sample=False,
        pad_token_id=0,
        streamer=watch,
    )
    return watch.ms_per_token()


def compare(model: str, num_prompts: int, num_tokens: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        write_folder(model, Path(folder))
        reference = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    pairs = []
    with LLM(model, draft=None, config=EngineConfig(dtype="bfloat16")) as llm, torch.inference_mode():
        prompts = [tuple(llm.tokenizer.encode_chat(list(p.messages))) for p in load_prompts(None)[:num_prompts]]
        for warm_up in (alula_ms, transformers_ms):
            warm_up(llm if warm_up is alula_ms else reference, prompts[0], 8)
        for index, ids in enumerate(prompts):
            order = (0, 1) if index % 2 == 0 else (1, 0)
            timed = {
                s: (alula_ms(llm, ids, num_tokens) if s == 0 else transformers_ms(reference, ids, num_tokens))
                for s in order
            }
            pairs.append((timed[0], timed[1]))
            print(
                f"{index + 1}/{len(prompts)}: alula {timed[0]:.2f} ms, transformers {timed[1]:.2f} ms",
                file=sys.stderr,
            )
        facts = llm.describe()
    ours, theirs = (statistics.fmean(side) for side in zip(*pairs, strict=True))
    ratios = [b / a for a, b in pairs]
    return {
        "schema": 1,
        "benchmark": "against_transformers",
        "model": model,
        "dtype": "bfloat16",
        "processor": facts.facts["processor"],
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "prompts": len(pairs),
        "tokens": num_tokens,
        "alula_ms_per_token": ours,
        "transformers_ms_per_token": theirs,
        "ratio": theirs / ours,
        "ratio_per_prompt": {"min": min(ratios), "median": statistics.median(ratios), "max": max(ratios)},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    result = compare(options.model, options.prompts, options.tokens)
    text = json.dumps(result, indent=2)
    print(text)
    if options.json:
        options.json.write_text(text + "\n")


if __name__ == "__main__":
    main()
