"""The two runs differ in more than speculation."""

from __future__ import annotations

from alula.explain.case import Case
from alula.explain.facts import RunFacts, same_value
from alula.explain.figures import shown
from alula.explain.finding import Finding, Hypothesis
from alula.explain.hypotheses.support import cited
from alula.profile.evidence import Evidence
from alula.profile.quantities import Quantity

_COMPARED = (
    Quantity.ENGINE,
    Quantity.ENGINE_VERSION,
    Quantity.MODEL,
    Quantity.GPU,
    Quantity.NUM_GPUS,
    Quantity.TP,
    Quantity.DP,
    Quantity.EP,
    Quantity.DTYPE,
    Quantity.QUANTIZATION,
    Quantity.KV_DTYPE,
    Quantity.ATTENTION_BACKEND,
    Quantity.GRAPH_MODE,
    Quantity.GRAPHS_DISABLED,
    Quantity.GRAPH_MAX_REQUESTS,
    Quantity.GRAPH_MAX_TOKENS,
    Quantity.CUSTOM_ALLREDUCE_DISABLED,
    Quantity.MAX_RUNNING,
    Quantity.CONCURRENCY,
    Quantity.DATASET,
    Quantity.TEMPERATURE,
    Quantity.INPUT_TOKENS,
    Quantity.OUTPUT_TOKENS,
    Quantity.NCCL_VERSION,
    Quantity.DRIVER,
)
_OF_GRAPHS = (Quantity.GRAPH_MODE, Quantity.GRAPH_MAX_REQUESTS, Quantity.GRAPH_MAX_TOKENS)
_LOADS = (Quantity.NUM_RUNNING, Quantity.CONCURRENCY, Quantity.BATCH)
_OF_SPECULATION = ("spec", "draft", "port", "host", "served-model-name", "model-path", "tokenizer", "log", "eagle")
# Of a load generator, whose command stands in one file only.
_OF_CLIENT: tuple[str, ...] = (
    *("client", "ignore", "num-prompt", "random", "dataset", "request-rate", "endpoint", "base-url", "sharegpt"),
    *("max-concurrency", "percentile", "seed", "burst", "metric", "save", "result", "api-", "ready"),
)


class NotLikeForLike(Hypothesis):
    id = "not_like_for_like"
    title = "The two runs differ in more than speculation"
    predicts = "other settings, load, engine or machine on the other side"
    refuted_by = "the same settings on both sides"
    needs = ("the settings of both runs",)

    def judge(self, case: Case) -> Finding:
        if not len(case.plain) or not len(case.spec):
            return self.unknown(
                "There is one run.", next_step="give the other run's log or command with --baseline FILE"
            )
        pairs = [
            *_loads(case),
            *_settings(case.plain, case.spec),
            *_variables(case.plain, case.spec),
            *_flags(case),
        ]
        same = sum(1 for quantity in _COMPARED if _both(case, quantity))
        if not pairs:
            if same >= 2:
                return self.refuted(
                    f"{same} settings are known of both runs, and they agree.", confidence=min(0.8, 0.1 * same)
                )
            return self.unknown(
                "Too little is known of both runs' settings.", next_step="give both launch commands"
            )
        told = "; ".join(pair[0] for pair in pairs[:8])
        return self.confirmed(
            f"Besides speculation the runs differ: {told}.",
            confidence=0.75,
            weight=1.4,
            evidence=cited(*(pair[1] for pair in pairs)),
            fix="repeat the plain run with the same settings and load",
        )


_Pair = tuple[str, tuple[Evidence, ...]]


def _loads(case: Case) -> list[_Pair]:
    """Requests at once, where they are so far apart that neither rates nor steps can be compared."""
    if case.sums.loads is None or _both(case, Quantity.CONCURRENCY):  # compared as it was asked for
        return []
    plain, spec = case.sums.loads
    found = cited(*(_load_of(run, batch) for run, batch in ((case.plain, plain), (case.spec, spec))))
    return [(f"requests at once {shown(plain)} against {shown(spec)}", found)]


def _load_of(run: RunFacts, batch: float) -> Evidence | None:
    """What tells of this load."""
    told = (one for quantity in _LOADS for one in run.all(quantity) if one.number == batch)
    return next(told, next((one for one in run if one.scope.batch == batch), None))


def _settings(plain: RunFacts, spec: RunFacts) -> list[_Pair]:
    found: list[_Pair] = []
    switched_off = _graphs_off(plain) or _graphs_off(spec)
    for quantity in _COMPARED:
        left, right = plain.all(quantity), spec.all(quantity)
        if (
            quantity in _OF_GRAPHS and switched_off
        ):  # their switch is compared; what follows from it is not told too
            continue
        if quantity is Quantity.GRAPH_MODE:  # what was asked for; a downgrade is a finding of its own
            left, right = (tuple(one for one in side if one.scope.phase != "verify") for side in (left, right))
        same = any(same_value(one.value, two.value) for one in left for two in right)
        if left and right and not same:
            name = quantity.value.replace("_", " ")
            found.append((f"{name} {left[0].value} against {right[0].value}", (left[0], right[0])))
        one_sided = quantity in (Quantity.GRAPH_MODE, Quantity.GRAPHS_DISABLED, Quantity.CUSTOM_ALLREDUCE_DISABLED)
        if one_sided and _commands(plain, spec) and bool(left) != bool(right):
            side, where = (left, "the plain run") if left else (right, "the speculative run")
            if side[0].value not in (False, "none"):
                found.append(
                    (f"{quantity.value.replace('_', ' ')} {side[0].value} is set for {where} alone", (side[0],))
                )
    return found


def _graphs_off(run: RunFacts) -> bool:
    return any(one.value is True for one in run.all(Quantity.GRAPHS_DISABLED))


def _commands(plain: RunFacts, spec: RunFacts) -> bool:
    """Whether both launch commands are known, so that an option that one lacks was not given."""
    return bool(plain.all(Quantity.COMMAND)) and bool(spec.all(Quantity.COMMAND))


def _variables(plain: RunFacts, spec: RunFacts) -> list[_Pair]:
    sides = [_by_name(run) for run in (plain, spec)]
    if not (sides[0] and sides[1]):
        return []
    found: list[_Pair] = []
    for name in sorted(set(sides[0]) | set(sides[1])):
        left, right = sides[0].get(name), sides[1].get(name)
        if not name.startswith(("NCCL_", "VLLM_", "SGLANG_", "CUDA_DEVICE_MAX")):
            continue
        if left is None or right is None or str(left.value).strip() != str(right.value).strip():
            shown = [str(one.value) if one else "unset" for one in (left, right)]
            found.append((f"{name} {shown[0]} against {shown[1]}", cited(left, right)))
    return found


def _by_name(run: RunFacts) -> dict[str, Evidence]:
    found = (*run.all(Quantity.VARIABLE_PLANNED), *run.all(Quantity.VARIABLE_SEEN))
    return {one.scope.name: one for one in found if one.scope.name}


def _flags(case: Case) -> list[_Pair]:
    if not _commands(case.plain, case.spec):
        return []
    sides = [
        {one.scope.name: one for one in run.all(Quantity.FLAG) if one.scope.name} for run in (case.plain, case.spec)
    ]
    found: list[_Pair] = []
    for name in sorted(set(sides[0]) | set(sides[1])):
        left, right = sides[0].get(name), sides[1].get(name)
        plain_name = name.lower().replace("_", "-")
        if plain_name == "backend" or any(word in plain_name for word in (*_OF_SPECULATION, *_OF_CLIENT)):
            continue
        if left is None or right is None or str(left.value) != str(right.value):
            shown = [str(one.value) if one else "not given" for one in (left, right)]
            found.append((f"--{name} {shown[0]} against {shown[1]}", cited(left, right)))
    return found


def _both(case: Case, quantity: Quantity) -> bool:
    return bool(case.plain.all(quantity)) and bool(case.spec.all(quantity))
