"""Reads a running server over HTTP: its information and metrics, of SGLang, vLLM or alula.

Only GET, a few known paths, short waits, bounded answers; talks to the address directly, through no proxy.
"""

from __future__ import annotations

import http.client
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

import msgspec

from alula.core.errors import InvalidOption
from alula.explain.readers.documents import read_document
from alula.explain.readers.fences import decode_json
from alula.explain.readers.found import Place
from alula.explain.readers.inputs import read_lines
from alula.explain.sink import Sink
from alula.explain.stream import Stream
from alula.profile.evidence import Label
from alula.profile.quantities import Quantity

READER = "live server"
# SGLang's name for its information changed; vLLM says only its version.
PATHS = ("/server_info", "/get_server_info", "/version", "/v1/models", "/metrics")
_TIMEOUT_SECONDS = 5.0
_MAX_BYTES = 16 << 20
_ENGINES = ("sglang", "vllm", "alula", "lmdeploy", "tokenspeed")


class Page(msgspec.Struct, frozen=True):
    """One answer of a server."""

    path: str
    body: bytes


def fetch(url: str, note: Callable[[str], None]) -> list[Page]:
    """The pages that the server has. Raises InvalidOption where nothing answers at all."""
    base = url.rstrip("/")
    for path in PATHS:
        base = base.removesuffix(path)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    pages: list[Page] = []
    problem = ""
    for path in PATHS:
        try:
            with opener.open(base + path, timeout=_TIMEOUT_SECONDS) as answer:
                body = answer.read(_MAX_BYTES + 1)
        except urllib.error.HTTPError as error:
            problem = f"answered {error.code} to {path}"
            error.close()
            continue
        except (OSError, http.client.HTTPException, ValueError) as error:
            problem = str(getattr(error, "reason", error))
            if not pages and not problem.startswith("answered"):
                break
            continue
        if len(body) > _MAX_BYTES:
            note(f"{base}{path}: more than {_MAX_BYTES >> 20} MiB; not read")
        else:
            pages.append(Page(path, body))
    if not pages:
        raise InvalidOption(
            f"no information from {base}: {problem}; expected the address of a running SGLang, vLLM or alula server, "
            "such as http://127.0.0.1:30000"
        )
    return pages


def read_url(url: str, label: Label, note: Callable[[str], None]) -> list[Sink]:
    """What a running server says of itself, as one sink."""
    sink = Sink(url, label)
    for page in fetch(url, note):
        text = page.body[:400].decode("utf-8", "replace")
        place = Place(sink, READER, None, f"{page.path}: {text}")
        document = decode_json(page.body)
        if document is None:
            read_lines(Stream(_once(page.body)), sink)
        elif page.path == "/version":
            _version(place, document)
        elif page.path == "/v1/models":
            _models(place, document)
        else:
            read_document(place, document)
    return [sink]


def _version(place: Place, document: Any) -> None:
    if isinstance(document, dict) and isinstance(document.get("version"), str):
        place.add(Quantity.ENGINE_VERSION, document["version"])


def _models(place: Place, document: Any) -> None:
    models = document.get("data") if isinstance(document, dict) else None
    for model in models[:1] if isinstance(models, list) else []:
        if isinstance(model, dict):
            if isinstance(model.get("id"), str):
                place.add(Quantity.MODEL, model["id"])
            if model.get("owned_by") in _ENGINES:
                place.add(Quantity.ENGINE, model["owned_by"])


def _once(body: bytes) -> Callable[[int], bytes]:
    left = [body]

    def read(num_bytes: int) -> bytes:
        taken, left[0] = left[0][:num_bytes], left[0][num_bytes:]
        return taken

    return read
