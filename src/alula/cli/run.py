"""`alula run`: answers one prompt, or a conversation at the terminal, as it is generated.

Reads prompts and prints text; how tokens come about is the engine's business.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Generator
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from alula.cli.engine import open_engine
from alula.cli.options import Budget, EngineOptions, Json, Model, Raw, SamplingOptions
from alula.cli.output import SCHEMA, Output
from alula.core.errors import AlulaError, InvalidOption
from alula.core.records import CycleRecord
from alula.core.sampling import SamplingParams

if TYPE_CHECKING:
    from alula.bench.results import Speculation
    from alula.engine.llm import LLM

_PROMPT_MARK = "> "


@dataclass(kw_only=True)
class Answer:
    """One answer as far as it came; filled while it streams, so that an interruption loses nothing."""

    prompt: str
    pieces: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    finish_reason: str = "abort"
    cycles: list[CycleRecord] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(self.pieces)


@dataclass(frozen=True, kw_only=True)
class Session:
    """What stays the same from answer to answer."""

    llm: LLM
    output: Output
    sampling: SamplingParams
    system: str | None
    raw: bool
    deadline: float | None

    def opening(self) -> list[dict[str, str]]:
        return [{"role": "system", "content": self.system}] if self.system else []


def run(
    model: Model,
    engine: EngineOptions,
    sampling: SamplingOptions,
    prompt: Annotated[
        str | None, typer.Option(help="The prompt; without it, stdin, or a conversation at the terminal.")
    ] = None,
    system: Annotated[str | None, typer.Option(help="System message.")] = None,
    max_tokens: Annotated[int, typer.Option(help="Longest answer.")] = 512,
    stop: Annotated[list[str] | None, typer.Option(help="End the answer before this text; repeatable.")] = None,
    raw: Raw = False,
    json_file: Json = None,
    budget: Budget = None,
) -> None:
    """Generate text, as it comes, with tokens/s and tokens per cycle at the end."""
    deadline = deadline_of(budget)
    with Output("run", json_file) as output:
        if raw and system is not None:
            raise InvalidOption("--system needs the chat template, which --raw leaves out; drop one of them")
        params = sampling.params(seed=engine.seed, max_tokens=max_tokens, stop=tuple(stop or ()))
        text = _given_prompt(prompt)
        with open_engine(model, engine, output) as llm:
            session = Session(llm=llm, output=output, sampling=params, system=system, raw=raw, deadline=deadline)
            output.document = _document(session)
            if text is None:
                _converse(session)
            else:
                _answer(session, text, text if raw else [*session.opening(), {"role": "user", "content": text}])


def deadline_of(budget_s: float | None) -> float | None:
    """The moment of time.monotonic() at which a budget that starts now is spent."""
    if budget_s is None:
        return None
    if not budget_s > 0:
        raise InvalidOption(f"--budget is {budget_s}; expected seconds above 0")
    return time.monotonic() + budget_s


def _given_prompt(option: str | None) -> str | None:
    """The prompt of the option or of stdin; None where a person sits at stdin."""
    if option is not None:
        if not option.strip():
            raise InvalidOption("--prompt is empty; expected text")
        return option
    if sys.stdin is None:
        raise InvalidOption("no prompt: stdin is closed; give --prompt TEXT")
    if sys.stdin.isatty():
        return None
    try:
        text = sys.stdin.read().removesuffix("\n")
    except UnicodeDecodeError as error:
        raise InvalidOption(f"stdin is not UTF-8 text (byte {error.start})") from error
    if any("\ud800" <= character <= "\udfff" for character in text):  # how Python may carry bytes that are no text
        raise InvalidOption("stdin is not UTF-8 text")
    if not text.strip():
        raise InvalidOption("no prompt: stdin is empty; give --prompt TEXT, or text on stdin")
    return text


def _converse(session: Session) -> None:
    """Line by line until the end of stdin (Ctrl-D). Ctrl-C ends the command, as everywhere."""
    session.output.note("Type a message; Ctrl-D ends the conversation.")
    messages = session.opening()
    while (line := _next_line()) is not None:
        if not line.strip():
            continue
        if session.raw:
            _answer(session, line, line)
            continue
        messages.append({"role": "user", "content": line})
        answer = _answer(session, line, messages)
        messages.append({"role": "assistant", "content": answer.text})


def _next_line() -> str | None:
    try:
        if sys.stdout is not None and sys.stdout.isatty():
            return input(_PROMPT_MARK)
        print(_PROMPT_MARK, end="", file=sys.stderr, flush=True)  # stdout is for the answers alone
        return sys.stdin.readline() or None
    except EOFError:
        return None


def _answer(session: Session, prompt: str, request: str | list[dict[str, str]]) -> Answer:
    """Streams one answer. What came before an error or Ctrl-C stays printed and stands in the document."""
    answer = Answer(prompt=prompt)
    session.llm.take_cycles()
    try:
        # Closing the stream aborts the request, so that an engine with more to do does not finish it unread.
        stream = cast(Generator[Any, None, None], session.llm.stream(request, session.sampling))
        with closing(stream):
            for chunk in stream:
                answer.pieces.append(chunk.text)
                answer.token_ids += chunk.token_ids
                answer.finish_reason = chunk.finish_reason or answer.finish_reason
                session.output.write(chunk.text)
                if session.deadline is not None and time.monotonic() >= session.deadline:
                    break
    finally:
        answer.cycles = session.llm.take_cycles()
        session.output.document["answers"].append(_as_document(answer))
        _close_line(session, answer)
    if answer.finish_reason == "error":
        raise AlulaError("the engine gave up on this answer; --record FILE keeps the reason")
    return answer


def _close_line(session: Session, answer: Answer) -> None:
    if answer.pieces:
        session.output.write("\n")
        session.output.note(closing_line(answer))
        if graphs := _graph_line(session, answer):
            session.output.note(graphs)


def closing_line(answer: Answer) -> str:
    """Tokens, speed and tokens per cycle of one answer, in a line."""
    figures = _figures(answer)
    tokens = f"{len(answer.token_ids)} tokens"
    if figures["tokens_per_s"] is None:
        return f"{tokens} ({answer.finish_reason})"
    return (
        f"{tokens} ({answer.finish_reason}), {figures['tokens_per_s']:.1f} tokens/s, "
        f"{figures['tokens_per_cycle']:.2f} tokens per cycle, {figures['cycle_ms']:.1f} ms a cycle{_plainly(answer)}"
    )


def _graph_line(session: Session, answer: Answer) -> str | None:
    """How the phases ran; nothing on a CPU, which has no graphs."""
    from alula.bench.graph_report import how_phases_ran
    from alula.bench.results import count_outcomes

    outcomes = count_outcomes(answer.cycles)
    if not outcomes or session.llm.describe().device == "cpu":
        return None
    return f"phases: {how_phases_ran(outcomes)}"


def _plainly(answer: Answer) -> str:
    """A clause about cycles that could have drafted and did not."""
    from alula.bench.report import plain_cycles

    speculation = _speculation(answer)
    return "" if speculation is None or not speculation.plain_cycles else f"; {plain_cycles(speculation)}"


def _speculation(answer: Answer) -> Speculation | None:
    """None where no cycle could draft."""
    from alula.bench.results import count_speculation

    could = any(cycle.speculation is not None for cycle in answer.cycles)
    return count_speculation(answer.cycles) if could else None


def _figures(answer: Answer) -> dict[str, float | None]:
    from alula.bench.results import Answer as Measured
    from alula.bench.results import summarise_side

    measured = Measured(
        token_ids=tuple(answer.token_ids), finish_reason=answer.finish_reason, cycles=tuple(answer.cycles)
    )
    side = summarise_side([measured], 0)
    return {
        "tokens_per_s": side.tokens_per_s,
        "tokens_per_cycle": side.tokens_per_cycle,
        "cycle_ms": side.cycle_ms,
        "prefill_ms": side.prefill_ms,
    }


def _document(session: Session) -> dict[str, Any]:
    from msgspec import to_builtins

    described = session.llm.describe()
    return {
        "schema": SCHEMA,
        "command": "run",
        **{key: value for key, value in to_builtins(described).items() if key not in ("schema", "type")},
        "sampling": to_builtins(session.sampling),
        "answers": [],
    }


def _as_document(answer: Answer) -> dict[str, Any]:
    from msgspec import to_builtins

    from alula.bench.results import count_outcomes

    return {
        "prompt": answer.prompt,
        "text": answer.text,
        "token_ids": answer.token_ids,
        "finish_reason": answer.finish_reason,
        **_figures(answer),
        "speculation": to_builtins(_speculation(answer)),
        "outcomes": to_builtins(count_outcomes(answer.cycles)),
    }
