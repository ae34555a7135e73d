"""alula: EAGLE-3 speculative decoding that accounts for every millisecond.

Importing this package loads no torch. `LLM` and `SamplingParams` are resolved on first use.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from alula.core.config import EngineConfig, ParallelConfig, SpeculationConfig
    from alula.core.sampling import SamplingParams
    from alula.engine.llm import LLM

__version__ = "0.1.0"
__all__ = ["LLM", "EngineConfig", "ParallelConfig", "SamplingParams", "SpeculationConfig", "__version__"]


def __getattr__(name: str) -> Any:
    if name == "LLM":
        from alula.engine.llm import LLM

        return LLM
    if name == "SamplingParams":
        from alula.core.sampling import SamplingParams

        return SamplingParams
    if name in ("EngineConfig", "ParallelConfig", "SpeculationConfig"):
        from alula.core import config

        return getattr(config, name)
    raise AttributeError(f"module 'alula' has no attribute {name!r}")
