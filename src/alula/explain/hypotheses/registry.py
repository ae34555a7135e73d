"""Every hypothesis, in the order in which a report lists those of equal rank."""

from __future__ import annotations

from alula.explain.finding import Hypothesis
from alula.explain.hypotheses.acceptance_decay import AcceptanceDecays
from alula.explain.hypotheses.acceptance_high import AcceptanceTooGood
from alula.explain.hypotheses.acceptance_low import AcceptanceBelowBreakEven
from alula.explain.hypotheses.allreduce_paths import AllreducePathsDiffer
from alula.explain.hypotheses.attention_kernel import AttentionKernelForWidth
from alula.explain.hypotheses.backend_refused import BackendRefused
from alula.explain.hypotheses.batch_large import BatchTooLarge
from alula.explain.hypotheses.ceiling import BreakEvenAboveCeiling
from alula.explain.hypotheses.clocks import ClocksHeldDown
from alula.explain.hypotheses.collectives_slow import CollectivesSlow
from alula.explain.hypotheses.contradictions import ContradictoryEvidence
from alula.explain.hypotheses.cost_line import FixedOrPerDraft
from alula.explain.hypotheses.draft_graph import DraftWithoutGraph
from alula.explain.hypotheses.draft_length import DraftLength
from alula.explain.hypotheses.draft_parallel import DraftTensorParallel
from alula.explain.hypotheses.draft_slow import DraftTooSlow
from alula.explain.hypotheses.expert_union import ExpertUnion
from alula.explain.hypotheses.extend_graph import ExtendWithoutGraph
from alula.explain.hypotheses.graph_batch import BatchOverGraph
from alula.explain.hypotheses.head_broken import HeadBroken
from alula.explain.hypotheses.host_bound import HostBound
from alula.explain.hypotheses.known_fault import KnownFaultFound
from alula.explain.hypotheses.like_for_like import NotLikeForLike
from alula.explain.hypotheses.p2p import PeerAccessOff, PeerPathDead
from alula.explain.hypotheses.protocol import ProtocolForSize
from alula.explain.hypotheses.queueing import Queueing
from alula.explain.hypotheses.random_prompts import RandomPrompts
from alula.explain.hypotheses.rank_skew import RankSkew
from alula.explain.hypotheses.variables import VariablesNotInForce
from alula.explain.hypotheses.verify_graph import VerifyWithoutGraph
from alula.explain.hypotheses.verify_rows import VerifyRowsCost
from alula.explain.known_faults import KNOWN_FAULTS

HYPOTHESES: tuple[Hypothesis, ...] = (
    BreakEvenAboveCeiling(),
    HeadBroken(),
    AcceptanceTooGood(),
    VerifyWithoutGraph(),
    BatchOverGraph(),
    DraftWithoutGraph(),
    ExtendWithoutGraph(),
    AllreducePathsDiffer(),
    CollectivesSlow(),
    BackendRefused(),
    PeerAccessOff(),
    PeerPathDead(),
    VariablesNotInForce(),
    ProtocolForSize(),
    HostBound(),
    FixedOrPerDraft(),
    ExpertUnion(),
    VerifyRowsCost(),
    AttentionKernelForWidth(),
    DraftTooSlow(),
    DraftTensorParallel(),
    RankSkew(),
    ClocksHeldDown(),
    AcceptanceBelowBreakEven(),
    AcceptanceDecays(),
    RandomPrompts(),
    BatchTooLarge(),
    Queueing(),
    DraftLength(),
    NotLikeForLike(),
    ContradictoryEvidence(),
    *(KnownFaultFound(fault) for fault in KNOWN_FAULTS if not fault.routine),
)
