r"""Classes of letters in regular expressions as Java reads them, such as ``[a-z&&[^aeiou]]``, as sets of code points.

A class inside another one adds its letters, ``&&`` keeps those that both sides have. A class that begins with ``^`` and
has one of these in it is refused: what the ``^`` then excludes differs between versions of Java.
"""

import re

LAST = 0x10FFFF

Letters = tuple[tuple[int, int], ...]
"""Ranges of code points, both ends in them, ascending and apart."""


class NoClass(Exception):
    """What is no class, or one that cannot be told."""


def united(*parts: Letters) -> Letters:
    found: list[tuple[int, int]] = []
    for first, last in sorted(one for part in parts for one in part):
        if found and first <= found[-1][1] + 1:
            found[-1] = found[-1][0], max(last, found[-1][1])
        else:
            found.append((first, last))
    return tuple(found)


def without(letters: Letters) -> Letters:
    """All other letters."""
    starts = [0, *(last + 1 for _, last in letters)]
    ends = [*(first - 1 for first, _ in letters), LAST]
    return tuple((start, end) for start, end in zip(starts, ends, strict=True) if start <= end)


def in_both(left: Letters, right: Letters) -> Letters:
    return without(united(without(left), without(right)))


def in_re2(letters: Letters) -> str:
    """The class in RE2's syntax."""
    return "".join(["[", *(rf"\x{{{first:x}}}-\x{{{last:x}}}" for first, last in letters or ((LAST, LAST),)), "]"])


def _of(text: str) -> Letters:
    return united(*(((ord(letter), ord(letter)),) for letter in text))


_DIGITS: Letters = ((0x30, 0x39),)
_UPPER: Letters = ((0x41, 0x5A),)
_LOWER: Letters = ((0x61, 0x7A),)
_PUNCTUATION: Letters = ((0x21, 0x2F), (0x3A, 0x40), (0x5B, 0x60), (0x7B, 0x7E))
SETS = {
    "d": _DIGITS,
    "w": united(_DIGITS, _UPPER, _LOWER, _of("_")),
    "s": _of("\t\n\x0b\f\r "),
    "h": united(_of(" \t\xa0\u1680\u180e\u202f\u205f\u3000"), ((0x2000, 0x200A),)),
    "v": _of("\n\x0b\f\r\x85\u2028\u2029"),
}
"""By the letter behind the backslash; as a capital it means all others."""
_NAMED = {
    "Lower": _LOWER,
    "Upper": _UPPER,
    "ASCII": ((0, 0x7F),),
    "Alpha": united(_UPPER, _LOWER),
    "Digit": _DIGITS,
    "Alnum": united(_UPPER, _LOWER, _DIGITS),
    "Punct": _PUNCTUATION,
    "Graph": ((0x21, 0x7E),),
    "Print": ((0x20, 0x7E),),
    "Blank": _of(" \t"),
    "Cntrl": ((0, 0x1F), (0x7F, 0x7F)),
    "XDigit": united(_DIGITS, ((0x41, 0x46), (0x61, 0x66))),
    "Space": SETS["s"],
}
"""Java's names of sets of ASCII. Those of Unicode differ between its versions."""
_CONTROL = {"t": "\t", "n": "\n", "r": "\r", "f": "\f", "a": "\x07", "e": "\x1b"}
_BY_NUMBER = re.compile(r"\\(?:x([0-9a-fA-F]{2})|x\{([0-9a-fA-F]{1,6})\}|u([0-9a-fA-F]{4}))")
_BY_NAME = re.compile(r"\\([pP])\{(\w+)\}")


def escaped(pattern: str, at: int) -> tuple[Letters, int]:
    """The letters that the escape at a place means, and where it ends. Raises NoClass."""
    number, name = _BY_NUMBER.match(pattern, at), _BY_NAME.match(pattern, at)
    if number is not None:
        code = int(next(filter(None, number.groups())), 16)
        if not 0 < code <= LAST or 0xD800 <= code < 0xE000:
            raise NoClass
        return ((code, code),), number.end()
    if name is not None and name[2] in _NAMED:
        return (_NAMED[name[2]] if name[1] == "p" else without(_NAMED[name[2]])), name.end()
    letter = pattern[at + 1 : at + 2]
    if letter.lower() in SETS:
        return (SETS[letter] if letter.islower() else without(SETS[letter.lower()])), at + 2
    if letter in _CONTROL or (letter and not letter.isalnum()):
        return _of(_CONTROL.get(letter, letter)), at + 2
    raise NoClass


def class_at(pattern: str, at: int) -> tuple[Letters, int]:
    """The letters of the class that begins at a place, and where it ends. Raises NoClass."""
    begin = at + 1 + pattern.startswith("^", at + 1)
    at, parts, sides, is_plain = begin, list[Letters](), list[Letters](), True
    while pattern[at : at + 1] != "]" or at == begin:
        if pattern.startswith("&&", at):
            is_plain, at = False, at + 2
            sides.append(_side(parts))
            parts = []
        elif pattern[at : at + 1] == "[":
            is_plain = False
            inside, at = class_at(pattern, at)
            parts.append(inside)
        else:
            first, at = _letters(pattern, at)
            if pattern[at : at + 1] == "-" and pattern[at + 1 : at + 2] not in ("]", "[", ""):
                last, at = _letters(pattern, at + 1)
                first = _range(first, last)
            parts.append(first)
    found = _side(parts)
    for side in sides:
        found = in_both(side, found)
    if pattern[begin - 1] == "^":
        if not is_plain:
            raise NoClass
        found = without(found)
    return found, at + 1


def _side(parts: list[Letters]) -> Letters:
    if not parts:
        raise NoClass
    return united(*parts)


def _letters(pattern: str, at: int) -> tuple[Letters, int]:
    if pattern[at : at + 1] == "\\":
        return escaped(pattern, at)
    if pattern[at : at + 1] in ("", "\0"):
        raise NoClass
    return _of(pattern[at]), at + 1


def _range(first: Letters, last: Letters) -> Letters:
    ends = [*first, *last]
    if len(ends) != 2 or any(start != end for start, end in ends) or first > last:
        raise NoClass
    return ((first[0][0], last[0][0]),)
