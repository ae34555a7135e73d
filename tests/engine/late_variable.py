"""A worker whose module changes the environment when it is imported, long after its rank was started."""

from __future__ import annotations

import os

from rank_workers import RankWorker

from alula.comm.group import Group

os.environ["NCCL_ALGO"] = "Ring"


def build(payload: None, group: Group) -> RankWorker:
    return RankWorker(group)
