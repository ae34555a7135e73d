"""The attention kernel that serves verify: decode-shaped, or made for prompts."""

from __future__ import annotations

from alula.explain.advice.lookup import advise
from alula.explain.case import Case
from alula.explain.figures import shown
from alula.explain.finding import Finding, Hypothesis
from alula.explain.hypotheses.support import cited, slow_verify
from alula.profile.quantities import Quantity


class AttentionKernelForWidth(Hypothesis):
    id = "attention_kernel_for_width"
    title = "Verify's attention kernel is made for another width"
    predicts = "a decode-shaped kernel serves the same rows faster than the prefill-shaped one in use"
    refuted_by = "both cost the same, or the decode-shaped one is in use"
    needs = ("attention_mode", "attention_backend", "experiment:attention_shapes")

    def judge(self, case: Case) -> Finding:
        prefill = case.spec.first(Quantity.FORWARD_MS, variant="prefill_attention")
        decode = case.spec.first(Quantity.FORWARD_MS, variant="decode_attention")
        mode = case.spec.first(Quantity.ATTENTION_MODE)
        step = advise(case, "attention")
        if prefill is not None and decode is not None and prefill.number and decode.number:
            gain = prefill.number - decode.number
            told = (
                f"Verify takes {shown(prefill.number)} ms prefill-shaped and {shown(decode.number)} ms "
                f"decode-shaped."
            )
            seen = cited(prefill, decode, mode)
            in_use = mode is None or str(mode.value) != "decode"
            if gain > 0.1 * decode.number and in_use:
                return self.confirmed(
                    told,
                    ms=gain,
                    part="verify",
                    evidence=seen,
                    fix=step,
                    predicted_speedup=case.sums.speedup_without(gain),
                )
            return self.refuted(told, evidence=seen)
        if mode is not None and str(mode.value).lower() == "prefill" and slow_verify(case):
            return self.suspected(
                "Verify is served by the prefill backend where the two differ, and it is slow: a few rows go "
                "through a kernel "
                "made for prompts.",
                evidence=cited(mode, case.spec.all(Quantity.ATTENTION_BACKEND)),
                confidence=0.25,
                weight=0.8,
                next_step=step,
            )
        return self.unknown("Verify was not measured with two attention kernels.", next_step=step)
