"""Rewrites argv so that an option which takes several files takes them up to the next option.

`--prompts a b --json c` becomes `--prompts a --prompts b --json c`. Knows option names, not what they mean.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

# command -> its options that take one or more values
MANY_VALUES: Mapping[str, frozenset[str]] = {
    "bench": frozenset({"--prompts"}),
    "collect": frozenset({"--pid", "--log"}),
    "explain": frozenset({"--from", "--baseline", "--compare", "--prompts"}),
}


def spread_values(argv: Sequence[str], many_values: Mapping[str, frozenset[str]] = MANY_VALUES) -> list[str]:
    """argv with such options repeated for each value.

    The values end at the next word that begins with "-" ("-" alone is a value). `--option=value` takes just that
    value. Behind `--` nothing is an option.
    """
    names = many_values.get(argv[0], frozenset()) if argv else frozenset()
    spread: list[str] = []
    option: str | None = None  # the option whose values are being read
    values_read = 0
    for position, word in enumerate(argv):
        if word == "--":
            return [*spread, *argv[position:]]
        if word in names:
            option, values_read = word, 0
            spread.append(word)
        elif word.startswith("-") and word != "-":
            option = None
            spread.append(word)
        elif option is not None and values_read:
            spread += [option, word]
        else:
            values_read = 1
            spread.append(word)
    return spread
