"""Which target and which head an `LLM` is asked for: names and places, before anything is loaded."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from alula.core.config import EngineConfig
from alula.core.errors import InvalidOption
from alula.models.source import ModelSource, resolve_source


class ModelChoice(msgspec.Struct, frozen=True, kw_only=True):
    """head: the folder of a head's weights; None where there is no head, or one of random weights alone.

    model_name and draft_name: for people and records; draft_name is None where nothing drafts.
    """

    source: ModelSource
    head: Path | None
    config: EngineConfig
    model_name: str
    draft_name: str | None


def choose_model(
    model: str | ModelSource,
    draft: str | None,
    config: EngineConfig,
    progress: Callable[[str], None] | None = None,
) -> ModelChoice:
    """Finds target and head. Raises ModelNotFound, or InvalidOption where acceptance is forced without a head."""
    source = model if isinstance(model, ModelSource) else resolve_source(model, progress)
    is_shape = source.kind == "shape"
    if is_shape and draft == "auto" and config.speculation.head == "trained":
        config = msgspec.structs.replace(
            config, speculation=msgspec.structs.replace(config.speculation, head="random")
        )
    head = _head_path(source, draft, progress)
    draft_name = _draft_name(head, config.speculation.head)
    forced = config.speculation.forced_tokens_per_cycle
    if forced is not None and draft_name is None:
        raise InvalidOption(
            f"--tokens-per-cycle {forced} forces how many drafts count, but nothing drafts here; "
            "give a head (--draft HEAD) or random weights (--draft-head random)"
        )
    return ModelChoice(
        source=source,
        head=head,
        config=config,
        model_name=f"{source.name} (a shape with random weights)" if is_shape else source.name,
        draft_name=draft_name,
    )


def _head_path(source: ModelSource, draft: str | None, progress: Callable[[str], None] | None) -> Path | None:
    """None: no head. "auto": the built-in model's own. Else a folder or a hub id."""
    if draft is None or draft == "none":
        return None
    if draft == "auto":
        return source.builtin_head
    return resolve_source(draft, progress, "head").path


def _draft_name(head: Path | None, weights: str) -> str | None:
    if head is None and weights == "trained":
        return None
    if head is None:
        return weights
    return str(head) if weights == "trained" else f"{head} ({weights})"
