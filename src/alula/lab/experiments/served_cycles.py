"""Served cycles, plain and speculative, alternating on the same prompts in one engine: what is to be explained.

Their records become evidence on the way that record files take (explain/readers/records.py).
"""

from __future__ import annotations

import io
from collections.abc import Sequence

import msgspec

from alula.core.errors import UserError
from alula.core.records import CycleRecord
from alula.explain.hypotheses.support import FORCED_ACCEPTANCE
from alula.explain.readers.records import RecordsReader
from alula.explain.sink import Sink
from alula.lab.budget import Share
from alula.lab.experiment import Experiment
from alula.lab.laboratory import Laboratory
from alula.profile.evidence import Label
from alula.profile.quantities import Quantity

WARM_UP_TOKENS = 16
WARM_UP_CYCLES = 3  # of each answer, not counted
FEWEST_PROMPTS = 2  # measured whatever the budget
PLAIN = 0


class ServedCycles(Experiment):
    name = "served_cycles"
    share = 0.4
    least_s = 0.0

    def run(self, laboratory: Laboratory, share: Share) -> None:
        """Each prompt plainly and with the draft, the order swapped at every other one."""
        unique: list[float] = []
        try:
            self._serve(laboratory, PLAIN, 0, WARM_UP_TOKENS, [])
            if laboratory.has_draft:
                self._serve(laboratory, None, 0, WARM_UP_TOKENS, [])
            laboratory.plain_cycles, laboratory.drafted_cycles = [], []
            for index in range(len(laboratory.workload.prompts)):
                sides: list[int | None] = [PLAIN, None] if laboratory.has_draft else [PLAIN]
                try:
                    for steps in sides if index % 2 == 0 else sides[::-1]:
                        self._serve(laboratory, steps, index, laboratory.workload.sampling.max_tokens, unique)
                except UserError as error:  # this prompt does not fit, the next one may
                    laboratory.sink(self.name).note(f"prompt {index + 1} was left out: {error}")
                if index + 1 >= FEWEST_PROMPTS and share.left_s <= 0:
                    break
        finally:  # also of an interrupted run
            _tell(laboratory, unique)

    def _serve(
        self, laboratory: Laboratory, steps: int | None, index: int, max_tokens: int, unique: list[float]
    ) -> None:
        llm, workload = laboratory.llm, laboratory.workload
        limit = min(max_tokens, workload.sampling.max_tokens)
        sampling = msgspec.structs.replace(workload.sampling, max_tokens=limit)
        llm.take_cycles()
        answer = llm.generate([workload.prompts[index]], sampling, steps=steps)[0]
        cycles = _decoding(llm.take_cycles())
        if answer.error is not None:
            raise UserError(answer.error)
        if steps == PLAIN:
            laboratory.plain_cycles += [cycle for cycle in cycles if not cycle.drafted]
        else:
            laboratory.drafted_cycles += [cycle for cycle in cycles if cycle.drafted]
            if answer.token_ids and not workload.textless:
                unique.append(len(set(answer.token_ids)) / len(answer.token_ids))
        laboratory.texts[tuple(answer.prompt_ids)] = tuple(answer.token_ids)


def _decoding(cycles: Sequence[CycleRecord]) -> list[CycleRecord]:
    """Cycles without known tokens, behind the first few."""
    decoded = [
        cycle for cycle in cycles if cycle.requests and not any(request.num_prefill for request in cycle.requests)
    ]
    return decoded[min(WARM_UP_CYCLES, len(decoded) // 2) :]


def _tell(laboratory: Laboratory, unique: Sequence[float]) -> None:
    sink = Sink("records of this run")
    lines = [laboratory.described, *laboratory.plain_cycles, *laboratory.drafted_cycles]
    text = b"\n".join(msgspec.json.encode(record) for record in lines) + b"\n"
    RecordsReader().read(io.BytesIO(text), sink)
    laboratory.keep(sink)
    forced = laboratory.described.facts.get("forced_tokens_per_cycle")
    if forced is not None and laboratory.drafted_cycles:
        laboratory.add(
            "served_cycles", Quantity.FLAG, float(forced), label=Label.SPECULATIVE, name=FORCED_ACCEPTANCE
        )
    if not laboratory.has_draft:
        laboratory.add("served_cycles", Quantity.ALGORITHM, "none", label=Label.BASELINE)
    if unique and laboratory.drafted_cycles:
        laboratory.times("served_cycles", Quantity.UNIQUE_TOKEN_SHARE, unique, label=Label.SPECULATIVE)
