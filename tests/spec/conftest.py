"""Puts benchmarks/ where these tests can import the toy from: `make acceptance` runs it with larger numbers."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
