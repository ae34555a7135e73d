"""Opens an engine as the shared options say. The one place of the command line that imports the run tower's top."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from alula.cli.options import EngineOptions
from alula.cli.output import Output, check_writable
from alula.cli.start import raise_if_interrupted
from alula.core.environment import bind_threads
from alula.core.errors import InvalidOption

if TYPE_CHECKING:
    from alula.engine.llm import LLM
    from alula.models.source import ModelSource


@contextmanager
def open_engine(model: str | ModelSource, options: EngineOptions, output: Output) -> Iterator[LLM]:
    """An engine for the length of the block; options are checked before torch is loaded."""
    config = options.config()
    if options.record is not None:
        if str(options.record) == "-":
            raise InvalidOption(
                "--record is '-'; expected a file (records are many lines, stdout is for the answer)"
            )
        check_writable("--record", options.record)
    if config.parallel.tp == 1:
        bind_threads()
    from alula.engine.llm import LLM

    with output.loading() as say:
        llm = LLM(model, draft=options.draft_name(), config=config, record=options.record, progress=say)
    with llm:
        raise_if_interrupted()
        if options.tokens_per_cycle is not None:
            output.note(
                f"acceptance is forced to {options.tokens_per_cycle:g} tokens per cycle (--tokens-per-cycle): figures "
                "are about costs, the text is meaningless"
            )
        _note_short_context(llm, options, output)
        yield llm


def _note_short_context(llm: LLM, options: EngineOptions, output: Output) -> None:
    """Says so where memory, and not the caller, made the context shorter than the model's."""
    facts = llm.describe().facts
    held, limit = facts.get("context_tokens", 0), facts.get("model_context_tokens", 0)
    if options.context is None and held < limit:
        output.note(
            f"the KV cache holds {held} tokens, the model's context is {limit}: answers end there "
            "(--kv-memory gives it more)"
        )
