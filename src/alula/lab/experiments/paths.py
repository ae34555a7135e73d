"""Which backend the collectives of decode and verify took, why others did not, and the table that was measured.

From dispatch records, on the way that record files take.
"""

from __future__ import annotations

import io
from typing import Any

import msgspec

from alula.comm.table import MeasuredTable
from alula.explain.readers.records import RecordsReader
from alula.explain.sink import Sink
from alula.lab.budget import Share
from alula.lab.experiment import Experiment
from alula.lab.laboratory import Laboratory
from alula.profile.quantities import Quantity


class CollectivePaths(Experiment):
    name = "collective_paths"
    least_s = 0.1

    def refusal(self, laboratory: Laboratory) -> str | None:
        return "there is one rank" if laboratory.described.tp == 1 else None

    def run(self, laboratory: Laboratory, share: Share) -> None:
        found = laboratory.llm.collectives()
        if found is not None:
            sink = Sink("dispatch records of this run")
            lines = [*found.dispatched, *found.differences]
            RecordsReader().read(io.BytesIO(b"".join(msgspec.json.encode(one) + b"\n" for one in lines)), sink)
            laboratory.keep(sink)
        self._sizes(laboratory)
        facts = laboratory.described.facts.get("collectives", {})
        if facts.get("table") is not None:
            table = msgspec.convert(facts["table"], MeasuredTable)
            for timing in table.timings:
                if timing.op == "all_reduce":
                    scope: dict[str, Any] = {"num_bytes": timing.num_bytes, "name": timing.backend}
                    laboratory.add(self.name, Quantity.ALLREDUCE_US, timing.us, **scope)

    def _sizes(self, laboratory: Laboratory) -> None:
        """What turns a table of latencies into milliseconds of a forward; hypotheses count two bytes a number."""
        if laboratory.sizes is not None and laboratory.described.dtype in ("bfloat16", "float16"):
            laboratory.add(self.name, Quantity.HIDDEN_SIZE, laboratory.sizes.target.hidden_size)
            laboratory.add(self.name, Quantity.NUM_LAYERS, laboratory.sizes.target.num_layers)
