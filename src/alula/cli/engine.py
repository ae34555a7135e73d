"""Opens an engine as the shared options say. The one place of the command line that imports the run tower's top."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from alula.cli.notes import notes
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
        described = llm.describe()
        for note in notes(described.device, described.facts, options):
            output.note(note)
        yield llm
