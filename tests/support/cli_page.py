"""The page of the command line in the documents, made from its parsers. Run as a program, it writes the page."""

import argparse
from pathlib import Path

from upriver.cli import parser_of

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "cli.md"
_HEAD = """# Command line

`upriver COMMAND --help` says the same. Commands that ask a running app take its address from `UPRIVER_ADDRESS`, and its
token from `UPRIVER_TOKEN` or the file `UPRIVER_TOKEN_FILE`, unless they are given. `--tls` and `UPRIVER_TLS` name
what to trust of an app with a [certificate](../guide/security.md#tls).

With `--json`, the last line of the output is one JSON object; rows are [as in HTTP](../guide/http.md#values-in-json).
With `status --watch` each line is one. Errors go to the standard error, in one line that says what, where and what to
do.

| exit status | |
|---:|---|
| 0 | done |
| 1 | failed, or a check found a difference, or a rescale ended differently than requested |
| 2 | wrong arguments |
| 130 | interrupted |
| 141 | the reader of the output has gone, as after `upriver views \\| head -1` |
"""


def page() -> str:
    """The whole page."""
    commands = _subparsers(parser_of([]))
    parts = [_HEAD]
    for name in commands:
        command = _subparsers(parser_of([name]))[name]
        parts.append(f"\n## upriver {name}\n\n{_sentence(command.description or '')}\n\n| argument | |\n|---|---|")
        parts += [_row(action) for action in command._actions if not isinstance(action, argparse._HelpAction)]
    return "\n".join(parts) + "\n"


def _subparsers(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    (found,) = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    return dict(found.choices)


def _row(action: argparse.Action) -> str:
    value = "" if action.nargs == 0 else f" {action.metavar or action.dest.upper()}"
    named = ", ".join(f"`{option}{value}`" for option in action.option_strings)
    place = f"`{action.metavar or ('|'.join(action.choices) if action.choices else action.dest.upper())}`"
    return f"| {named or place} | {(action.help or '').replace('|', chr(92) + '|')} |"


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


if __name__ == "__main__":
    PAGE.write_text(page())
