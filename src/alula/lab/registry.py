"""Every experiment, in the order of what it is worth: with little time only the first ones run."""

from __future__ import annotations

from alula.lab.experiment import Experiment
from alula.lab.experiments.attention_shapes import AttentionShapes
from alula.lab.experiments.backends_left_out import BackendsLeftOut
from alula.lab.experiments.ceilings import Ceilings
from alula.lab.experiments.clocks import Clocks
from alula.lab.experiments.collectives import Collectives
from alula.lab.experiments.draft_alone import DraftAlone
from alula.lab.experiments.environment import EnvironmentProof
from alula.lab.experiments.forced_acceptance import ForcedAcceptance
from alula.lab.experiments.graphs import EagerAgainstGraph
from alula.lab.experiments.other_layers import OtherLayers
from alula.lab.experiments.paths import CollectivePaths
from alula.lab.experiments.served_cycles import ServedCycles
from alula.lab.experiments.width_sweep import WidthSweep

EXPERIMENTS: tuple[Experiment, ...] = (
    ServedCycles(),
    EnvironmentProof(),
    CollectivePaths(),
    Collectives(),
    EagerAgainstGraph(),
    WidthSweep(),
    DraftAlone(),
    Ceilings(),
    OtherLayers(),
    Clocks(),
    ForcedAcceptance(),
    AttentionShapes(),
    BackendsLeftOut(),
)
