"""The readers that exist, by kind. A new format is a file with a class and a line here."""

from __future__ import annotations

from alula.explain.readers.allreduce_lines import AllReduceLines
from alula.explain.readers.bench_lines import BenchLines
from alula.explain.readers.bench_tables import BenchTables
from alula.explain.readers.commands import Commands
from alula.explain.readers.fences import Fences
from alula.explain.readers.gpu_state import GpuState
from alula.explain.readers.gpu_topology import GpuTopology
from alula.explain.readers.host_lines import HostLines
from alula.explain.readers.llama_cpp import LlamaCppLines
from alula.explain.readers.metrics_text import MetricsText
from alula.explain.readers.nccl_log import NcclLog
from alula.explain.readers.nccl_tests import NcclTests
from alula.explain.readers.profiler_lines import ProfilerLines
from alula.explain.readers.protocol import LineReader, StreamReader
from alula.explain.readers.python_calls import PythonCalls
from alula.explain.readers.records import RecordsReader
from alula.explain.readers.sentences import Sentences
from alula.explain.readers.sglang_log import SglangLog
from alula.explain.readers.tables import Tables
from alula.explain.readers.tensorrt_llm import TensorRtLines
from alula.explain.readers.trace import Trace
from alula.explain.readers.variables import Variables
from alula.explain.readers.vllm_log import VllmLog

# Those that begin runs stand first: a run is under way when the next reader looks at the same line. Commands lead,
# since one is complete only when the line behind it is seen.
LINE_READERS: tuple[type[LineReader], ...] = (
    Commands,
    PythonCalls,
    SglangLog,
    VllmLog,
    TensorRtLines,
    LlamaCppLines,
    MetricsText,
    BenchTables,
    Tables,
    BenchLines,
    Sentences,
    ProfilerLines,
    AllReduceLines,
    NcclLog,
    NcclTests,
    GpuTopology,
    GpuState,
    HostLines,
    Variables,
    Fences,
)
STREAM_READERS: tuple[type[StreamReader], ...] = (RecordsReader, Trace)
