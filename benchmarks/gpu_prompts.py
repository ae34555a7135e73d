"""Prompts of the GPU suite: the twelve of the reference head's README, MT-bench's first turns, and random token ids."""

from __future__ import annotations

import random

from gpu_scale import Scale

from alula import LLM
from alula.bench.prompts import load_prompts

# As in tests/data/twelve.json, which holds the reference's answers to them.
TWELVE = (
    "Can you explain how photosynthesis works?",
    "Write a short story about a lost dog.",
    "How do I make a vegan lasagne?",
    "What are the benefits of regular exercise?",
    "Can you help me plan a trip to Japan?",
    "Explain the difference between a list and a tuple in Python.",
    "What causes the tides?",
    "Give me tips for a job interview.",
    "How does the moon impact marine ecosystems?",
    "Suggest resources for learning Italian.",
    "What is machine learning?",
    "How can I save money each month?",
)


def twelve(llm: LLM, scale: Scale) -> list[list[int]]:
    """Token ids, through the model's chat template."""
    return [chat_ids(llm, text) for text in TWELVE[: scale.twelve]]


def built_in(llm: LLM, scale: Scale) -> list[list[int]]:
    """MT-bench's first turns."""
    return [llm.tokenizer.encode_chat(list(prompt.messages)) for prompt in load_prompts()[: scale.built_in_prompts]]


def many(llm: LLM, scale: Scale) -> list[list[int]]:
    """64 prompts: MT-bench's, the twelve, and random ids of many lengths."""
    return [*built_in(llm, scale), *twelve(llm, scale), *random_ids(llm, scale)]


def random_ids(llm: LLM, scale: Scale) -> list[list[int]]:
    generator = random.Random(3)
    vocab_size = llm.tokenizer.vocab_size
    return [
        generator.choices(range(vocab_size), k=generator.randint(*scale.random_lengths))
        for _ in range(scale.random_prompts)
    ]


def chat_ids(llm: LLM, text: str) -> list[int]:
    return llm.tokenizer.encode_chat([{"role": "user", "content": text}])
