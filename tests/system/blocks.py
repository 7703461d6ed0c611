"""The code blocks of the guides, and how they run against a node of a test.

A block is run by its language: `sh` as it is, `console` by its lines that begin with `$ `, whose output is compared,
`python` with the SDK's names, `toml` as a configuration, `json` as JSON. An HTML comment before the block changes that:
`<!-- not run: why -->`, or `<!-- run: why its output is not compared -->`, or `<!-- run in the background -->` for a
block that waits for a later one. The site and GitHub show none of these comments.
"""

import os
import re
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_BLOCK: Final = re.compile(r"^(?:<!-- (.*?) -->\n)?```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
TIMEOUT_S: Final = 250.0

# Programs of a block's PATH: each is the real one, with the ports of the node.
_SLUICE: Final = """#!/bin/bash
command=$1; shift
case $command in
    pub|sub) exec {python} -m sluice $command "$@" --port {mqtt} ;;
    connect) exec {python} -m sluice connect "$@" --host 127.0.0.1:{grpc} ;;
    topics|find|sql) exec {python} -m sluice $command "$@" --port {grpc} ;;
    history) [ "$1" != export ] || set -- "$@" --port {grpc}; exec {python} -m sluice history "$@" ;;
    *) exec {python} -m sluice $command "$@" ;;
esac
"""
# A subscriber that would wait for ever ends after two seconds, which is no failure.
_MOSQUITTO_SUB: Final = """#!/bin/bash
{sub} -W 2 "$@" -p {mqtt} || [ $? = 27 ]
"""
_MOSQUITTO_PUB: Final = """#!/bin/bash
exec {pub} "$@" -p {mqtt}
"""


@dataclass(slots=True, frozen=True)
class Block:
    page: str
    line: int
    comment: str  # "" where there is none
    language: str
    text: str

    @property
    def is_run(self) -> bool:
        return not self.comment.startswith("not run: ")

    @property
    def is_compared(self) -> bool:
        return not self.comment.startswith("run: ")

    @property
    def is_background(self) -> bool:
        return self.comment == "run in the background"

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"

    def commands(self) -> Iterator[tuple[str, str]]:
        """(command, output) of a console block."""
        for piece in re.split(r"^\$ ", self.text, flags=re.MULTILINE)[1:]:
            command, _, output = piece.partition("\n")
            yield command, output


def blocks(page: Path, root: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    return [
        Block(
            page.relative_to(root).as_posix(),
            text.count("\n", 0, match.start(2)) + 1,
            match[1] or "",
            match[2],
            match[3],
        )
        for match in _BLOCK.finditer(text)
    ]


def shape(output: str) -> str:
    """An output without what differs from run to run: numbers, random names and the width of columns."""
    named = re.sub(r"\b[0-9a-f]{12}\b", "ID", output)
    return re.sub(r"\s+", " ", re.sub(r"\d+(\.\d+)?", "0", named)).strip()


class Shell:
    """Runs commands in a folder of its own, in which `data` is the node's."""

    def __init__(self, folder: Path, ports: Mapping[str, int], programs: Mapping[str, str]) -> None:
        self._folder = folder
        bin_folder = folder / "bin"
        bin_folder.mkdir()
        values = {"python": sys.executable, **ports, **programs}
        for name, text in (("sluice", _SLUICE), ("mosquitto_sub", _MOSQUITTO_SUB), ("mosquitto_pub", _MOSQUITTO_PUB)):
            path = bin_folder / name
            path.write_text(text.format_map(values), encoding="utf-8")
            path.chmod(path.stat().st_mode | stat.S_IXUSR)
        (folder / "mnt/backups").mkdir(parents=True)
        root = str(Path(__file__).parents[2])
        self._environment = {**os.environ, "PATH": f"{bin_folder}:{os.environ['PATH']}", "PYTHONPATH": root}
        self._background: list[tuple[Block, subprocess.Popen[str]]] = []
        self._started: list[subprocess.Popen[str]] = []

    def run(self, block: Block) -> None:
        """Run a `sh` or `console` block. Raises `AssertionError`."""
        if block.is_background:
            (command, _output) = next(block.commands())
            self._background.append((block, self.start(command)))
        elif block.language == "sh":
            self._finish(block, self.start(f"{block.text}\nwait"), "")
        else:
            for command, output in block.commands():
                self._finish(block, self.start(command), output if block.is_compared else "")

    def finish_background(self) -> None:
        for block, process in self._background:
            self._finish(block, process, next(block.commands())[1])

    def start(self, command: str) -> subprocess.Popen[str]:
        here = command.replace("/var/lib/sluice", f"{self._folder}/data").replace("/mnt/", f"{self._folder}/mnt/")
        process = subprocess.Popen(
            ["bash", "-euo", "pipefail", "-c", here.replace(".venv/bin/sluice", "sluice")],
            cwd=self._folder,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._started.append(process)
        return process

    def close(self) -> None:
        """Kill what was started and has not ended, with all that it started."""
        for process in self._started:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.communicate()

    def _finish(self, block: Block, process: subprocess.Popen[str], wanted: str) -> None:
        output, errors = process.communicate(timeout=TIMEOUT_S)
        assert process.returncode == 0, f"{block.place}: {errors}"
        if wanted:
            assert shape(output) == shape(wanted), f"{block.place}: {output}\n{errors}"
