"""`sluice completion`: print a script by which a shell completes the commands and options of `sluice`.

The script is written from the parser of the command line, so it knows all commands, and asks no program at run time.
"""

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from sluice.console.command import Arguments, Subparsers, declare

EXAMPLE: Final = "sluice completion bash"


@dataclass(slots=True)
class _Command:
    """A command with what may follow it."""

    path: str  # "config check"; "": `sluice` itself
    commands: dict[str, str]  # what each does, by name
    options: dict[str, str]
    choices: dict[str, list[str]]  # values, by option


def add(subparsers: Subparsers) -> None:
    about = "print a script for the completion of commands in bash, zsh or fish"
    parser = declare(subparsers, "completion", about, EXAMPLE, run)
    parser.description = f"{parser.description} To use it in this shell: source <(sluice completion bash)."
    parser.add_argument("shell", choices=("bash", "zsh", "fish"), help="the shell that reads the script")


def run(arguments: Arguments) -> int:
    commands = list(_commands(arguments.root, ""))
    write = {"bash": _bash, "zsh": _zsh, "fish": _fish}[arguments.shell]
    sys.stdout.write("\n".join(write(commands)) + "\n")
    return 0


def _commands(parser: argparse.ArgumentParser, path: str) -> Iterator[_Command]:
    """Yield a command and all below it."""
    found = _Command(path, {}, {}, {})
    below: list[tuple[str, argparse.ArgumentParser]] = []
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            abouts = {each.dest: each.help or "" for each in action._choices_actions}
            found.commands = {name: abouts.get(name, "") for name in action.choices}
            below = list(action.choices.items())
        for option in action.option_strings if action.help != argparse.SUPPRESS else ():
            found.options[option] = action.help or ""
            if action.choices is not None:
                found.choices[option] = [str(each) for each in action.choices]
        if not action.option_strings and action.choices is not None and not below:
            found.commands = {str(each): "" for each in action.choices}
    yield found
    for name, each in below:
        yield from _commands(each, f"{path} {name}".strip())


def _bash(commands: list[_Command]) -> Iterator[str]:
    yield "# Completion of sluice for bash: source <(sluice completion bash)"
    yield "_sluice() {"
    yield '    local current="${COMP_WORDS[COMP_CWORD]}" before="${COMP_WORDS[COMP_CWORD-1]}" path="" words="" word'
    yield '    for word in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do'
    yield '        case "$path $word" in'
    for each in commands:
        if each.path:
            *above, name = each.path.split(" ")
            yield f'            "{" ".join(above)} {name}") path="{each.path}" ;;'
    yield "        esac"
    yield "    done"
    yield '    case "$path" in'
    for each in commands:
        yield f'        "{each.path}") words="{" ".join([*each.commands, *each.options])}" ;;'
    yield "    esac"
    yield '    case "$path $before" in'
    for each in commands:
        for option, values in each.choices.items():
            yield f'        "{each.path} {option}") words="{" ".join(values)}" ;;'
    yield "    esac"
    yield '    COMPREPLY=($(compgen -W "$words" -- "$current"))'
    yield "}"
    yield "complete -o default -o bashdefault -F _sluice sluice"


def _zsh(commands: list[_Command]) -> Iterator[str]:
    yield "# Completion of sluice for zsh: source <(sluice completion zsh)"
    yield "autoload -U +X compinit && compinit -u"
    yield "autoload -U +X bashcompinit && bashcompinit"
    yield from _bash(commands)


def _fish(commands: list[_Command]) -> Iterator[str]:
    yield "# Completion of sluice for fish: sluice completion fish | source"
    yield "function __sluice_path"
    yield "    set -l path"
    yield "    for word in (commandline -opc)[2..]"
    yield '        switch "$path $word"'
    for each in commands:
        if each.path:
            *above, name = each.path.split(" ")
            yield f'            case "{" ".join(above)} {name}"'
            yield f'                set path "{each.path}"'
    yield "        end"
    yield "    end"
    yield '    echo "$path"'
    yield "end"
    for each in commands:
        here = f"complete -c sluice -n 'test (__sluice_path) = \"{each.path}\"'"
        if each.commands:
            here_only = f"{here} -f"
            for name, about in each.commands.items():
                yield f"{here_only} -a {name}{_fish_about(about)}"
        for option, about in each.options.items():
            values = f" -x -a '{' '.join(each.choices[option])}'" if option in each.choices else ""
            name = f"-l {option[2:]}" if option.startswith("--") else f"-s {option[1:]}"
            yield f"{here} {name}{values}{_fish_about(about)}"


def _fish_about(about: str) -> str:
    text = about.replace("%%", "%").replace("\\", "\\\\").replace("'", "\\'")
    return f" -d '{text}'" if text else ""
