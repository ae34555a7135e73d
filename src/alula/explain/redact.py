"""Takes out of a text what nobody should send to strangers: keys, passwords, addresses, names of hosts and users.

Replaces, never drops a line, so that readers still find their formats. Knows forms of secrets, not where a text is
from.
"""

from __future__ import annotations

import ipaddress
import re

# Every repetition is bounded or starts at a word's begin: an image in base64 is one word of megabytes.
SECRET_NAME = (
    r"(?:api[_\-]?key|secret|token(?!s|iz|_?ids?\b|_?len)|passw(?:or)?d|credential"
    r"|auth(?:orization)?\b|private[_\-]?key)[\w\-]{0,64}"
)
_ASSIGNED = re.compile(
    rf"(?i)({SECRET_NAME})([\"']?\s*[=:]\s*[\"']?)(?!None\b|null\b|True\b|False\b|\d{{1,6}}\b|\["
    rf"|\{{)([^\s\"',;)}}\x00]+)"
)
_FLAG = re.compile(rf"(?i)(--?[\w.\-]{{0,64}}{SECRET_NAME})(\s+)(?!-)([^\s\"']+)")
_KNOWN = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{8,}|sk-[A-Za-z0-9_\-]{8,}|gh[pousr]_[A-Za-z0-9]{8,}|AKIA[A-Z0-9]{12,}|xox[abp]-[\w\-]{8,}"
    r"|nvapi-[\w\-]{8,}|eyJ[\w\-]{10,}\.[\w\-]{10,}\.[\w\-]{5,})"
)
_BEARER = re.compile(r"(?i)\b(bearer|basic)\s+[A-Za-z0-9+/=_.\-]{6,}")
_IN_URL = re.compile(r"([a-z][a-z0-9+.\-]{0,30}://)[^\s/@:]+(?::[^\s/@]+)?@")
_IPV4 = re.compile(
    r"(?<![\w.])(?!127\.|0\.0\.0\.0)(?:(?:25[0-5]|2[0-4]\d|1?\d?\d)\.){3}(?:25[0-5]|2[0-4]\d" r"|1?\d?\d)(?![\w.])"
)
_IPV6 = re.compile(r"(?<![\w:.])[0-9a-fA-F]{0,4}(?::[0-9a-fA-F]{0,4}){2,8}(?![\w:.])")
_MAC = re.compile(r"(?<![\w:])(?:[0-9a-fA-F]{2}:){5}[0-9a-fA-F]{2}(?![\w:])")
_MAIL = re.compile(r"\b[\w.+\-]{1,64}@[\w\-]+(?:\.[\w\-]+)+\b")
_LABEL = r"[A-Za-z0-9][\w\-]{0,62}"  # bounded, as DNS has it, so that no text takes long
_HOST_IN_URL = re.compile(rf"(?<=://)(?:\*\*\*@)?((?=[A-Za-z]){_LABEL}(?:\.{_LABEL}){{0,8}})(?=[:/\s\"',)]|$)")
_HOST_OF_NCCL = re.compile(
    rf"(?m)(?:^|(?<=[\s)]))((?=[A-Za-z]){_LABEL}(?:\.{_LABEL}){{0,8}})(?=:\d+:\d+ \[\d+\] (?:\S{{1,99}} )?NCCL )"
)
_INNER_NAME = re.compile(
    rf"(?<![\w.\-])(?:{_LABEL}\.){{1,8}}(?:internal|intranet|lan|corp|localdomain)(?:\.{_LABEL}){{0,8}}(?![\w\-])"
)
_PUBLIC = ("localhost", "huggingface.co", "hf.co", "github.com", "pypi.org", "pytorch.org", "nvidia.com", "docs.")
_UUID = re.compile(r"\b(?:GPU-|MIG-)?[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}\b")
_SERIAL = re.compile(r"(?im)^(\s*(?:Serial Number|Board Part Number|Chassis Serial Number|GPU PDI)\s*:\s*).+$")
_HOME = re.compile(r"/(home|Users)/[^/\s:\"']+")


class Redactor:
    """Replaces secrets in texts and counts them. `hosts`: names of this machine; those of others are known by place."""

    def __init__(self, hosts: tuple[str, ...] = ()) -> None:
        self.num_replaced = 0
        self._others: dict[str, str] = {}
        known = [re.escape(host) for host in hosts if len(host) > 2 and host != "localhost"]
        self._hosts = re.compile(rf"(?<![\w.\-])(?:{'|'.join(known)})(?![\w\-])") if known else None

    def text(self, text: str) -> str:
        """The text with every secret replaced by a word for its kind."""
        text = self._sub(_BEARER, r"\1 ***", text)
        text = self._sub(_ASSIGNED, r"\1\2***", text)
        text = self._sub(_FLAG, r"\1\2***", text)
        for pattern, word in (
            (_KNOWN, "***"),
            (_IN_URL, r"\1***@"),
            (_IPV4, "ADDRESS"),
            (_MAC, "ADDRESS"),
            (_MAIL, "MAIL"),
            (_UUID, "UUID"),
            (_SERIAL, r"\1***"),
            (_HOME, r"/\1/USER"),
        ):
            text = self._sub(pattern, word, text)
        text = _IPV6.sub(self._address, text)
        text = self._sub(self._hosts, "HOST", text) if self._hosts else text
        for names in (_HOST_IN_URL, _HOST_OF_NCCL, _INNER_NAME):
            text = names.sub(self._named, text)
        return text

    def _sub(self, pattern: re.Pattern[str], word: str, text: str) -> str:
        replaced, count = pattern.subn(word, text)
        self.num_replaced += count
        return replaced

    def _named(self, match: re.Match[str]) -> str:
        """Another machine's name. Each keeps a number, so that a log of several nodes still tells them apart."""
        name = match[match.lastindex or 0]
        placeholder = name in ("ADDRESS", "HOST", "MAIL") or name in self._others.values()
        if placeholder or any(name.lower().endswith(known) or name.lower().startswith(known) for known in _PUBLIC):
            return match[0]
        self.num_replaced += 1
        return match[0].replace(name, self._others.setdefault(name, f"HOST{len(self._others) + 1}"))

    def _address(self, match: re.Match[str]) -> str:
        """Times and PCI addresses (0000:3b:00) have colons too; only what is an IPv6 address goes."""
        found = match[0]
        try:
            address = ipaddress.IPv6Address(found)
        except ValueError:
            return found
        if address.is_unspecified or address.is_loopback:
            return found
        self.num_replaced += 1
        return "ADDRESS"
