r"""Regular expressions: Java's patterns that mean the same to RE2, DuckDB's library, in RE2's syntax.

Both share letters, groups, ``|``, ``* + ? {n,m}`` and their lazy forms, ``^``, and ``\d \w``. RE2 needs another form
for ``.``, ``$``, many escapes, and classes in classes (:mod:`upriver.sql.functions.letter_classes`). Everything else is
refused.
"""

import math
import re
from typing import Self

import pyarrow as pa

from upriver.plan.relation import Scalar
from upriver.plan.source import Place
from upriver.plan.types import array_type
from upriver.sql.functions.letter_classes import SETS, NoClass, class_at, escaped, in_re2
from upriver.sql.functions.nested_values import each, once
from upriver.sql.functions.scalars import Context, intolerant, literal, strict, string_sql
from upriver.sql.functions.signatures import Function, OperandKind, Operands, take

GROUPS_MAX = 9
"""Groups that DuckDB can extract."""

REPEATS_MAX = 1000
"""Repetitions that RE2 allows; nested ones multiply."""

_ENDS = r"\n\r\x{85}\x{2028}\x{2029}"  # what ends a line for Java
_ANY = f"[^{_ENDS}]"
_AT_END_OF_LINE = rf"(?:\r\n|[{_ENDS}])?"
_AT_END = rf"{_AT_END_OF_LINE}\z"
_SPACES = r"\t\n\x0B\f\r "
_ESCAPED = {**{letter: f"\\{letter}" for letter in "dDwWtnrf"}, "s": f"[{_SPACES}]", "S": f"[^{_SPACES}]"}
_IN_CLASS = {**{letter: f"\\{letter}" for letter in "dwtnrf"}, "s": _SPACES}
_REPEAT = re.compile(r"(?:[*+?]|\{\d{1,3}(?:,\d{0,3})?\})\??(?![*+?{])")
_GROUP = re.compile(r"\((?:\?:)?(?!\?)")
_REPEATED_GROUP = re.compile(r"\)[*+{]")
_CLASS = re.compile(r"\[(\^?)((?:\\.|[^\[\]\\^])(?:\\.|[^\[\]\\])*)\]", re.DOTALL)
_GROUP_KIND = re.compile(r"\(\?<?[^)]?")
_ANY_CLASS = re.compile(r"\[(?:\\.|[^\]\\])*\]?", re.DOTALL)
_ANY_REPEAT = re.compile(r"[*+?]{1,2}|\{[^}]*\}[+?]?")
_ANY_ESCAPE = re.compile(r"\\(?:[pPx]\{[^}]*\}|.)", re.DOTALL)
_CLASS_PART = re.compile(r"(\\.|[^\\])(?:-(\\.|[^\\]))?", re.DOTALL)


_FLAGS = re.compile(r"\(\?(?:is?|si?)\)")
"""Begins a pattern in which ASCII letters match in both cases, or in which a dot is any letter."""
_END_SIGN = re.compile(r"(?:\$|\\Z)(?=\Z|[)|])")
"""It means the end, or the place before a line's end there."""
_INSTEAD = (
    (re.compile(r"\(\?[a-zA-Z]+"), "Begin the pattern with (?i), (?s) or (?is), or match lower(s)."),
    (re.compile(r"\(\?<[a-zA-Z]"), "Leave the group's name out: (...)."),
    (re.compile(r"\(\?<?[=!]|\(\?<$"), "Ask by two conditions: s RLIKE '...' AND NOT s RLIKE '...'."),
    (re.compile(r"\(\?"), "Write a plain group: (...) or (?:...)."),
    (re.compile(r"\\[bB]"), "Write what may stand there: (?:^|\\\\W)."),
    (re.compile(r"\\\d"), "Write out what is to come again."),
    (re.compile(r"\\[pP]|\[.*\]", re.DOTALL), "List the letters, or ranges of them: [A-Za-z]."),
    (re.compile(r"\\"), "Write the letter itself, or \\\\d, \\\\w, \\\\s and the like."),
    (
        re.compile(r"[*+?]|\{[\d,]+\}"),
        "Repeat it once, by *, +, ? or {1,3}, then at most a ?; for the letter write \\\\+.",
    ),
    (re.compile(r"\$"), "It may end the pattern, a group or an alternative; for the letter write \\\\$."),
    (re.compile(r""), "Put two backslashes before it if the letter is meant."),
)
"""What to do instead of a part: the first advice whose pattern matches at the part's beginning."""


class Unlike(Exception):
    """A part of a regular expression that means something else to RE2, or nothing; the message says which part.

    instead: what to write.
    """

    def __init__(self, what: str, instead: str) -> None:
        super().__init__(what)
        self.instead = instead

    @classmethod
    def at(cls, fault: str) -> Self:
        instead = next(advice for begins, advice in _INSTEAD if begins.match(fault))
        return cls(f"{fault!r} in a regular expression", instead)


def to_re2(pattern: str) -> str:
    """The pattern in RE2's syntax, for a search. Raises Unlike if it may mean something else to RE2, or nothing."""
    return _read(pattern)[0]


def _read(pattern: str) -> tuple[str, str]:
    """The pattern in RE2's syntax; and in Python's, with a letter in place of each class and escape. Raises Unlike."""
    flags = _FLAGS.match(pattern)
    folds, is_dot_all = (flags is not None and flag in flags[0] for flag in "is")
    parts: list[str] = []
    shape: list[str] = []
    repeatable, at = False, 0 if flags is None else flags.end()
    while at < len(pattern):
        letter = pattern[at]
        repeat = _REPEAT.match(pattern, at) if repeatable else None
        group = _GROUP.match(pattern, at)
        end_sign = _END_SIGN.match(pattern, at)
        form = None
        if repeat is not None:
            text, repeatable, end = repeat[0], False, repeat.end()
        elif group is not None:
            text, repeatable, end = group[0], False, group.end()
        elif letter in ")|^":
            text, repeatable, end = letter, letter == ")", at + 1
        elif pattern.startswith("\\A", at):
            text, repeatable, end = "\\A", False, at + 2
        elif end_sign is not None:
            text, form, repeatable, end = _AT_END, "$", False, end_sign.end()
        elif pattern.startswith("\\z", at):
            text, form, repeatable, end = "\\z", "\\Z", False, at + 2
        else:
            form, repeatable = "x", True
            text, end = _letters_at(pattern, at, folds)
            if letter == "." and is_dot_all:
                text = r"[\x{0}-\x{10ffff}]"
        if not text:
            raise Unlike.at(_at_fault(pattern, at))
        parts.append(text)
        shape.append(text if form is None else form)
        at = end
    if not _is_whole("".join(shape)):
        what = "a regular expression with a part that does not end or does not begin"
        raise Unlike(what, "Close each group and class; for a parenthesis as a letter write \\\\(.")
    if _repeats(pattern) > REPEATS_MAX:
        what = f"a regular expression with more than {REPEATS_MAX} repetitions"
        raise Unlike(what, "Ask for fewer, and for length(s) beside them.")
    return "".join(parts), "".join(shape)


def _letters_at(pattern: str, at: int, folds: bool) -> tuple[str, int]:
    """What stands for one letter at a place, and where it ends; an empty text if it is special."""
    letter = pattern[at]
    if letter == "[":
        found = _CLASS.match(pattern, at)
        if found is not None and (text := _class(found[1], found[2], folds)):
            return text, found.end()
    elif text := _one(pattern[at : at + 2]):
        text = f"[{letter.upper()}{letter.lower()}]" if folds and _is_letter(letter) else text
        return text, at + 1 + (letter == "\\")
    if pattern.startswith("\\R", at):
        return rf"(?:\r\n|{in_re2(SETS['v'])})", at + 2
    if letter not in "[\\" or folds:
        return "", at
    try:
        letters, end = (class_at if letter == "[" else escaped)(pattern, at)
    except NoClass:
        return "", at
    return in_re2(letters), end


def _is_letter(letter: str) -> bool:
    return letter.isascii() and letter.isalpha()


def _at_fault(pattern: str, at: int) -> str:
    """The part that cannot be translated, for a message."""
    for part in (_GROUP_KIND, _ANY_CLASS, _ANY_REPEAT, _ANY_ESCAPE):
        found = part.match(pattern, at)
        if found is not None:
            return found[0]
    return pattern[at]


def _one(text: str) -> str:
    """One letter, or one behind a backslash; empty if it is special."""
    letter = text[:1]
    if letter == "\\":
        return _ESCAPED.get(text[1:], _letter(text[1:]) if not text[1:].isalnum() else "")
    return {".": _ANY}.get(letter, "" if letter in "*+?{}()[]$\0" else _letter(letter))


def _letter(letter: str) -> str:
    return f"\\{letter}" if letter.isascii() and not letter.isalnum() and letter not in " _" else letter


def _class(negated: str, inside: str, folds: bool) -> str:
    """A class in brackets; empty if a part of it is special. folds: whether it has letters in both cases."""
    parts = [f"[{negated}"]
    if any(pair in inside for pair in ("&&", "--", "||", "~~")):  # Python may one day read them as Java reads &&
        return ""
    for match in _CLASS_PART.finditer(inside):
        ends = [_in_class(end) for end in match.groups() if end is not None]
        if "" in ends or (len(ends) == 2 and any(len(end) > 2 or end in _IN_CLASS.values() for end in ends)):
            return ""
        parts.append("-".join(ends))
        if folds and any(map(_is_letter, ends)):
            if not all(map(_is_letter, ends)) or len({end.islower() for end in ends}) > 1:
                return ""
            parts.append("-".join(end.swapcase() for end in ends))
    return "".join([*parts, "]"])


def _in_class(text: str) -> str:
    if text.startswith("\\"):
        return _IN_CLASS.get(text[1:], _letter(text[1:]) if not text[1:].isalnum() else "")
    return "" if text == "\0" else _letter(text)


def _repeats(pattern: str) -> int:
    """How often a part of the pattern may repeat, at most."""
    return math.prod(max(int(number), 1) for number in re.findall(r"\{(?:\d+,)?(\d+),?\}", pattern))


def _is_whole(pattern: str) -> bool:
    """Whether its parentheses and ranges are valid: Python is as strict as Java there."""
    try:
        re.compile(pattern)
    except (re.error, OverflowError):
        return False
    return True


# Functions


def matches(context: Context, place: Place, operands: Operands) -> Scalar:
    """``s RLIKE pattern``: whether it is found anywhere."""
    text, pattern = take(context, place, OperandKind.STRING, operands[0]), _pattern(context, place, operands[1])
    return strict(f"regexp_matches({text.sql}, {string_sql(pattern)})", pa.bool_(), (text, operands[1]))


def _pattern(context: Context, place: Place, value: Scalar) -> str:
    """The pattern as RE2 has it."""
    if not isinstance(value.constant, str):
        raise context.unsupported(place, "a regular expression that is computed", "Write one in quotes.")
    try:
        return to_re2(value.constant)
    except Unlike as error:
        raise context.unsupported(place, str(error), error.instead) from error


def _found(context: Context, place: Place, value: Scalar) -> tuple[str, bool]:
    """A pattern that must match the same text, not only match at all; and whether it ends in ``$``, which is left out.

    RE2 then searches for the end of the text. It would also match the line break before which Java's ``$`` may match.
    Elsewhere than at the end, ``$`` is refused.
    """
    pattern = _pattern(context, place, value)
    written = str(value.constant)
    ends = written.endswith(("$", "\\Z")) and pattern.endswith(_AT_END) and not _has_alternatives(written)
    rest = pattern.removesuffix(_AT_END) if ends else pattern
    if _AT_END in rest:
        instead = "Let it end with $, or ask for the end by itself: s RLIKE '...$'."
        raise context.unsupported(place, "'$' elsewhere than at the end of this regular expression", instead)
    return rest, ends


def _has_alternatives(pattern: str) -> bool:
    """Whether it has a | outside of groups."""
    plain = re.sub(r"\\.|\[(?:\\.|[^\]\\])*\]", "", pattern, flags=re.DOTALL)
    while "(" in plain:
        plain, groups = re.subn(r"\([^()]*\)", "", plain)
        if not groups:
            break
    return "|" in plain


def _finds_nothing(pattern: Scalar) -> bool:
    """Whether it matches the empty text."""
    return isinstance(pattern.constant, str) and re.search(_read(pattern.constant)[1], "") is not None


def _extracted(context: Context, place: Place, operands: Operands) -> Scalar:
    """``regexp_extract(s, pattern[, group])``: '' without a match."""
    text, (pattern, ends) = take(context, place, OperandKind.STRING, operands[0]), _found(context, place, operands[1])
    group = _group(context, place, operands, pattern)
    if ends and group == 0:
        pattern, group = f"({pattern})", 1
    searched = pattern + _AT_END if ends else pattern
    return strict(f"regexp_extract({text.sql}, {string_sql(searched)}, {group})", pa.string(), (text, operands[1]))


def _group(context: Context, place: Place, operands: Operands, pattern: str) -> int:
    """The group to extract: the third operand, or the first group."""
    group = operands[2].constant if len(operands) > 2 else 1
    there = _groups(pattern)
    if group != 0 and _REPEATED_GROUP.search(pattern):
        raise context.unsupported(place, "a group that may come several times", "Take group 0, or write it out.")
    if not isinstance(group, int) or not 0 <= group <= min(there, GROUPS_MAX):
        raise context.unsupported(
            place, "this group of a regular expression", f"It has {there}; 0 is all that is found."
        )
    return group


def _groups(pattern: str) -> int:
    """How many capturing groups the pattern has."""
    return len(re.findall(r"\((?!\?)", re.sub(r"\\.|\[(?:\\.|[^\]\\])*\]", "", pattern)))


def _replaced(context: Context, place: Place, operands: Operands) -> Scalar:
    """``regexp_replace(s, pattern, by)``: replaces all matches."""
    text, (pattern, ends) = take(context, place, OperandKind.STRING, operands[0]), _found(context, place, operands[1])
    by = operands[2].constant
    if not isinstance(by, str):
        raise context.unsupported(place, "a replacement that is computed", "Write it in quotes.")
    by = _replacement(context, place, by, pattern)
    if _finds_nothing(operands[1]):
        what = "replacing what a regular expression finds in nothing"
        raise context.unsupported(place, what, "Let it find one letter at least.")
    if ends:
        last = _groups(pattern) + 1
        if last > GROUPS_MAX:
            raise context.unsupported(place, f"'$' behind {GROUPS_MAX} groups", "Let groups not count: (?:...).")
        pattern, by = f"{pattern}({_AT_END_OF_LINE})\\z", f"{by}\\{last}"
    sql = f"regexp_replace({text.sql}, {string_sql(pattern)}, {string_sql(by)}, 'g')"
    return strict(sql, pa.string(), (text, operands[1]))


def _replacement(context: Context, place: Place, by: str, pattern: str) -> str:
    """The replacement in RE2's syntax: ``$1`` is ``\\1``. As for Java, $12 is $1 and a 2 if there are fewer groups."""
    there = _groups(pattern)
    if "$" in by and _REPEATED_GROUP.search(pattern):
        raise context.unsupported(place, "a group that may come several times", "Take group 0, or write it out.")
    parts: list[str] = []
    at = 0
    while at < len(by):
        group = re.match(r"\$(\d)", by[at:], re.ASCII)
        if group is not None and int(group[1]) <= min(there, GROUPS_MAX):
            if there > GROUPS_MAX:
                what = f"'$' of more than {GROUPS_MAX} groups"
                raise context.unsupported(place, what, "Let groups not count: (?:...).")
            parts.append(f"\\{group[1]}")
            at += 2
        elif by[at] == "\\" and at + 1 < len(by):
            parts.append("\\\\" if by[at + 1] == "\\" else by[at + 1])
            at += 2
        elif by[at] in "$\\":
            instead = f"There are {there}; for the letter write \\\\$."
            raise context.unsupported(place, f"{by[at : at + 2]!r} in a replacement, which is no group,", instead)
        else:
            parts.append(by[at])
            at += 1
    return "".join(parts)


def _counted(context: Context, place: Place, operands: Operands) -> Scalar:
    """``regexp_count(s, pattern)``."""
    text, pattern = take(context, place, OperandKind.STRING, operands[0]), _finding(context, place, operands[1])
    sql = f"CAST(len(regexp_extract_all({text.sql}, {string_sql(pattern)})) AS INTEGER)"
    return strict(sql, pa.int32(), (text, operands[1]))


def _first(context: Context, place: Place, operands: Operands) -> Scalar:
    """``regexp_substr(s, pattern)``: NULL without a match."""
    found = _extracted(context, place, (*operands, literal(0, pa.int32())))
    return intolerant(Scalar(f"nullif({found.sql}, '')", pa.string(), found.fails), (found,))


def _placed(context: Context, place: Place, operands: Operands) -> Scalar:
    """``regexp_instr(s, pattern)``: the place of the first match, or 0."""
    text, pattern = take(context, place, OperandKind.STRING, operands[0]), _pattern(context, place, operands[1])

    def made(one: str) -> str:
        found = f"regexp_extract({one}, {string_sql(f'(?s)^(.*?)(?:{pattern})')}, 1)"
        there = f"regexp_matches({one}, {string_sql(pattern)})"
        return f"CASE WHEN {one} IS NOT NULL THEN CASE WHEN {there} THEN length({found}) + 1 ELSE 0 END END"

    return strict(f"CAST({once(text.sql, made)} AS INTEGER)", pa.int32(), (text, operands[1]))


def _all_extracted(context: Context, place: Place, operands: Operands) -> Scalar:
    """``regexp_extract_all(s, pattern[, group])``."""
    text, pattern = take(context, place, OperandKind.STRING, operands[0]), _finding(context, place, operands[1])
    group = _group(context, place, operands, pattern)
    found = f"regexp_extract_all({text.sql}, {string_sql(pattern)}, {group})"
    sql = each(found, lambda one: f"coalesce({one}, '')") if group else found
    return strict(sql, array_type(pa.string()), (text, operands[1]))


def _finding(context: Context, place: Place, value: Scalar) -> str:
    """A pattern that does not match the empty text, in RE2's syntax."""
    pattern, ends = _found(context, place, value)
    if ends or _finds_nothing(value):
        what = "counting what a regular expression finds in nothing"
        raise context.unsupported(place, what, "Let it find one letter at least, and not end with $.")
    return pattern


_MEANING = re.compile(r"[\\^$.|?*+()\[\]{}]")
"""Letters with a meaning in a regular expression."""


def plain_text(pattern: object) -> str | None:
    """The text that a regular expression finds, if that is the pattern itself or a letter behind a backslash."""
    if not isinstance(pattern, str):
        return None
    if re.fullmatch(r"\\[^a-zA-Z0-9]", pattern):
        return pattern[1:]
    return None if _MEANING.search(pattern) else pattern


def splitting(context: Context, place: Place, value: Scalar) -> str:
    """The pattern at whose matches a text is split, in RE2's syntax."""
    return _finding(context, place, value)


_TEXT, _PATTERN, _NUMBER = OperandKind.STRING, OperandKind.WRITTEN, OperandKind.INT

PATTERNS: tuple[Function, ...] = (
    Function(
        "rlike regexp regexp_like",
        (_TEXT, _PATTERN),
        matches,
        "BOOLEAN",
        samples=r"regexp_like(s, '\\d'); rlike(s, '^a'); rlike(s, '(?i)^[a-f]?[^K]S'); rlike(s, '(?i)K'); "
        r"regexp(s, 'a'); rlike(k, 'b$'); regexp(k, '^a')",
    ),
    Function(
        "regexp_extract",
        (_TEXT, _PATTERN, _NUMBER),
        _extracted,
        "STRING",
        2,
        samples="regexp_extract(s, '([a-z]+)', 1); regexp_extract(k, '.', 0)",
    ),
    Function(
        "regexp_extract_all",
        (_TEXT, _PATTERN, _NUMBER),
        _all_extracted,
        "ARRAY<STRING>",
        2,
        samples="regexp_extract_all(s, '([a-z])(b)?', 2); regexp_extract_all(s || u, '([a-z]+)'); "
        "regexp_extract_all(k, '.', 0); regexp_extract_all('a/?b/' || s, '([a-z])/|([?])', 2)",
    ),
    Function(
        "regexp_instr",
        (_TEXT, _PATTERN),
        _placed,
        "INT; 0 without a match. Each letter counts once, as in Spark 4.3",
        samples="regexp_instr(s, 'b+'); regexp_instr(s, '^b|a$'); regexp_instr(s, '[ %]'); regexp_instr(s, 'x*$'); "
        "regexp_instr(k, 'a'); regexp_instr('a\U0001f600b' || u, 'b|%'); regexp_instr(s, '(b|c)+')",
    ),
    Function(
        "regexp_replace",
        (_TEXT, _PATTERN, _PATTERN),
        _replaced,
        "STRING",
        samples=r"regexp_replace(s, '[a-c]', 'x'); regexp_replace(k, 'a', 'b'); "
        r"regexp_replace(s, '(.)(b)?', '$2-$1\\$$10'); regexp_replace(s, '(?i)[a-c]|X', '<$0>')",
    ),
    Function(
        "regexp_count",
        (_TEXT, _PATTERN),
        _counted,
        "INT",
        samples=r"regexp_count(s, 'a'); regexp_count(s, '[a-z]+'); regexp_count(s, '.'); regexp_count(k, '\\s')",
    ),
    Function(
        "regexp_substr",
        (_TEXT, _PATTERN),
        _first,
        "STRING",
        nulls="also without a match",
        samples="regexp_substr(s, '[a-z]+'); regexp_substr(k, 'b$'); regexp_substr(s, 'x*')",
    ),
)
"""Of texts, by regular expressions in quotes."""
