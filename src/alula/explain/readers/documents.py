"""What a parsed JSON or YAML object is: server information, a model's config, benchmark results, a compose file, ...

Knows shapes of objects. Where the text of one came from (a file, a fence in Markdown, a line of a log, a URL) is its
caller's business.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from alula.explain.readers.commands import add_command
from alula.explain.readers.found import Place
from alula.explain.readers.labels import meaning_of
from alula.explain.readers.model_config import add_model_config
from alula.explain.readers.settings import TABLES, add_setting, add_settings, largest
from alula.explain.readers.tensorrt_llm import iteration_stats
from alula.explain.readers.variables import NAME, add_variable
from alula.profile.quantities import Quantity

Q = Quantity
_MAX_ITEMS, _MAX_DEPTH = 5000, 6
_SPEC_POSITIONS = ("spec_decode_per_position_acceptance_rates", "per_position_acceptance_rates")
_RESULT_KEYS = {
    "output_throughput": Q.TOKENS_PER_S,
    "accept_length": Q.TOKENS_PER_CYCLE,
    "acc_length": Q.TOKENS_PER_CYCLE,
    "spec_decode_acceptance_length": Q.TOKENS_PER_CYCLE,
    "spec_decode_num_drafts": Q.NUM_CYCLES,
    "spec_decode_draft_tokens": Q.NUM_DRAFTED,
    "spec_decode_accepted_tokens": Q.NUM_ACCEPTED,
    "mean_tpot_ms": Q.TOKEN_MS,
    "mean_itl_ms": Q.CHUNK_MS,
    "mean_ttft_ms": Q.TTFT_MS,
    "mean_e2e_latency_ms": Q.REQUEST_MS,
    "mean_e2el_ms": Q.REQUEST_MS,
    "max_concurrency": Q.CONCURRENCY,
    "concurrency": Q.CONCURRENCY,
    "temperature": Q.TEMPERATURE,
}


def read_document(place: Place, document: Any, depth: int = 0) -> bool:
    """Everything that is known in an object; False if it is nobody's."""
    if depth > _MAX_DEPTH:
        return False
    if isinstance(document, list):
        found = [read_document(place, one, depth + 1) for one in document[:_MAX_ITEMS] if isinstance(one, dict)]
        return any(found)
    if not isinstance(document, dict):
        return False
    return any(reader(place, document) for reader in _READERS) or _inside(place, document, depth)


def _inside(place: Place, document: Mapping[str, Any], depth: int) -> bool:
    """Objects of objects: {"plain": {...}, "eagle3": {...}} and wrappers of answers."""
    found = False
    for value in list(document.values())[:_MAX_ITEMS]:
        if isinstance(value, dict | list):
            found = read_document(place, value, depth + 1) or found
    return found


def _verdict(place: Place, document: Mapping[str, Any]) -> bool:
    """What `alula explain --json` wrote: conclusions, some of them bounds, and no evidence for new ones."""
    if not {"schema", "answer", "findings", "waterfall"} <= document.keys():
        return False
    place.sink.note(
        f"{place.sink.source}: a verdict of alula explain, not evidence; give the files it was made from"
    )
    return True


def _server_info(place: Place, document: Mapping[str, Any]) -> bool:
    """SGLang's /server_info (once /get_server_info): its arguments, flat, and its state."""
    if "model_path" not in document or "tp_size" not in document:
        return False
    place.sink.begin_run("sglang")
    place = Place(place.sink, place.reader, place.line, place.text, "sglang")
    place.add(Q.ENGINE, "sglang")
    place.add(Q.ENGINE_VERSION, _text(document.get("version")))
    if document.get("speculative_algorithm") is None:
        place.add(Q.ALGORITHM, "none")
    settings = {name: value for name, value in document.items() if value is not None and name != "internal_states"}
    add_settings(place, "sglang", settings)
    states = document.get("internal_states")
    for state in states[:64] if isinstance(states, list) else []:
        if isinstance(state, dict):
            length = _number(state.get("avg_spec_accept_length"))
            place.add(Q.TOKENS_PER_CYCLE, length if length and length >= 1.0 else None)
            running = state.get("effective_max_running_requests_per_dp") or state.get("max_running_requests")
            place.add(Q.MAX_RUNNING, largest(running))
    return True


def _vllm_info(place: Place, document: Mapping[str, Any]) -> bool:
    config = document.get("vllm_config")
    if not isinstance(config, str | dict):
        return False
    from alula.explain.readers.literal import parse_call

    settings = parse_call(f"config({config})", "config") if isinstance(config, str) else config
    place.sink.begin_run("vllm")
    place = Place(place.sink, place.reader, place.line, place.text, "vllm")
    place.add(Q.ENGINE, "vllm")
    add_settings(place, "vllm", settings or {})
    return True


def _model_config(place: Place, document: Mapping[str, Any]) -> bool:
    return add_model_config(place, document)


def _iteration(place: Place, document: Mapping[str, Any]) -> bool:
    return iteration_stats(Place(place.sink, place.reader, place.line, place.text, "tensorrt-llm"), dict(document))


def _bench_result(place: Place, document: Mapping[str, Any]) -> bool:
    """One result object of a load generator, or of a person who wrote numbers down."""
    if "output_throughput" not in document and not ("mean_tpot_ms" in document or "accept_length" in document):
        return False
    if place.sink.num_runs and place.reader in place.sink.recognised:
        place.sink.begin_run()
    limit = _number(document.get("max_concurrency"))
    batch = {"batch": int(limit)} if limit and limit == int(limit) else {}
    for name, quantity in _RESULT_KEYS.items():
        value = _number(document.get(name))
        if value is None or (quantity is Q.TOKENS_PER_CYCLE and value < 1.0):
            continue
        place.add(quantity, value, **(batch if quantity is Q.TOKENS_PER_S else {}))
    rate = _number(document.get("spec_decode_acceptance_rate"))
    if rate is not None and rate <= 100.0:
        place.add(Q.ACCEPTED_PER_DRAFTED, rate / 100.0 if rate > 1.0 else rate)
    for name in _SPEC_POSITIONS:
        rates = document.get(name)
        for position, one in enumerate(rates[:64] if isinstance(rates, list) else []):
            share = _number(one)
            if share is not None and share <= 100.0:
                place.add(Q.ACCEPTANCE, share / 100.0 if share > 1.0 else share, position=position)
    place.add(Q.DATASET, _text(document.get("dataset_name")))
    place.add(Q.MODEL, _text(document.get("model_id")))
    return True


def _numbers(place: Place, document: Mapping[str, Any]) -> bool:
    """A plain object of numbers, as people write them: {"plain_tps": 82.2, "spec_tps": 60.5, "k": 2}."""
    from alula.explain.readers.labels import side_of

    values = {name: value for name, one in document.items() if (value := _number(one)) is not None}
    meanings = {name: meaning_of(str(name)) for name in values}
    known = [one for one in meanings.values() if one and one.quantity and one.axis is None]
    if not known or len(document) > 64:
        return False
    scope = {
        one.axis: int(values[name])
        for name, one in meanings.items()
        if one and one.axis in ("batch", "steps", "width") and values[name] == int(values[name])
    }
    for name, meaning in meanings.items():
        if meaning is None or meaning.quantity is None or meaning.axis is not None:
            continue
        quantity = meaning.quantity
        side = side_of(str(name).replace("_", " "))
        if quantity is Q.TOKENS_PER_S and side is not None:
            quantity = side
        own = {k: v for k, v in scope.items() if quantity is not Q.PLAIN_TOKENS_PER_S or k != "steps"}
        place.add(quantity, values[name] * meaning.factor, **own)
    return True


def _compose(place: Place, document: Mapping[str, Any]) -> bool:
    """docker compose: the command and environment of each service."""
    services = document.get("services")
    if not isinstance(services, dict):
        return False
    found = [_container(place, one) for one in services.values() if isinstance(one, dict)]
    return any(found)


def _kubernetes(place: Place, document: Mapping[str, Any]) -> bool:
    containers = document.get("containers")
    if not isinstance(containers, list):
        return False
    found = [_container(place, one) for one in containers if isinstance(one, dict)]
    return any(found)


def _container(place: Place, service: Mapping[str, Any]) -> bool:
    parts = [_shell(service.get(name)) for name in ("entrypoint", "command", "args")]
    command = " ".join(part for part in parts if part)
    image = str(service.get("image", ""))
    engine = next((name for name in ("vllm", "sglang", "trtllm") if name in image.lower()), None)
    engine = "tensorrt-llm" if engine == "trtllm" else engine
    found = place.sink.num_runs
    if command:
        add_command(place.sink, place.line, command, engine)
    variables = service.get("environment") or service.get("env")
    count = 0
    for name, value in _pairs(variables):
        if NAME.fullmatch(name):
            add_variable(place, Q.VARIABLE_PLANNED, name, value)
            count += 1
    return bool(count) or place.sink.num_runs > found


def _shell(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(_quoted(str(part)) for part in value[:_MAX_ITEMS])
    return value if isinstance(value, str) else ""


def _quoted(part: str) -> str:
    return f"'{part}'" if any(sign in part for sign in ' {}"') and "'" not in part else part


def _pairs(variables: Any) -> list[tuple[str, str]]:
    """`- A=b`, `A: b` and Kubernetes' `- name: A / value: b`."""
    if isinstance(variables, dict):
        return [(str(name), _text(value) or "") for name, value in variables.items()]
    pairs = []
    for one in variables if isinstance(variables, list) else []:
        if isinstance(one, dict) and "name" in one:
            pairs.append((str(one["name"]), _text(one.get("value")) or ""))
        elif isinstance(one, str) and "=" in one:
            name, _, value = one.partition("=")
            pairs.append((name, value))
    return pairs


def _engine_config(place: Place, document: Mapping[str, Any]) -> bool:
    """A config file of an engine: flags as keys, or TensorRT-LLM's extra options."""
    keys = {str(name).replace("-", "_") for name in document}
    engine = None
    if any(name.startswith("speculative_") and name in TABLES["sglang"] for name in keys):
        engine = "sglang"
    elif isinstance(document.get("speculative_config"), dict):
        engine = "tensorrt-llm" if "decoding_type" in document["speculative_config"] else "vllm"
    elif {"cuda_graph_config", "kv_cache_config"} & keys:
        engine = "tensorrt-llm"
    elif {"tensor_parallel_size", "max_num_seqs", "compilation_config"} & keys and {
        "model",
        "enforce_eager",
    } & keys:
        engine = "vllm"
    if engine is None:
        return False
    place.sink.begin_run(engine)
    place = Place(place.sink, place.reader, place.line, place.text, engine)
    place.add(Q.ENGINE, engine)
    for name, value in document.items():
        add_setting(place, engine, str(name), value)
    return True


def _text(value: Any) -> str | None:
    return None if value is None or isinstance(value, dict | list) else str(value)


def _number(value: Any) -> float | None:
    return (
        float(value)
        if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e18
        else None
    )


_READERS: tuple[Callable[[Place, Mapping[str, Any]], bool], ...] = (
    _verdict,
    _server_info,
    _vllm_info,
    _model_config,
    _iteration,
    _bench_result,
    _compose,
    _kubernetes,
    _engine_config,
    _numbers,
)
