"""The Python of Spark's worker processes on this machine.

Spark puts its own archives in front of their path. Archives have no compiled modules, so each process would compile
half of PySpark: 0.6 s of CPU time, in four or more processes of a query. A script in the user's cache folder takes the
archives from the path, and the workers import the PySpark that the driver has imported.
"""

import hashlib
import os
import re
import shlex
import sys
from pathlib import Path
from typing import Final

import pyspark

from streaming.cache import cache_folder, write_script

_SCRIPT: Final = """#!/bin/sh
set -f
IFS=:
path=
for each in $PYTHONPATH; do
  case $each in {home}/python/lib/*.zip | {home}/jars/*.jar) ;; *) path=$path:$each ;; esac
done
PYTHONPATH=${{path#:}} exec {python} "$@"
"""


def worker_python() -> str:
    """Return the executable: the script, or this Python where a script cannot be used."""
    home = str(Path(pyspark.__file__).resolve().parent)  # as Spark finds it
    text = _SCRIPT.format(home=shlex.quote(home), python=shlex.quote(sys.executable))
    script = cache_folder() / f"python-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    try:
        write_script(script, text)
    except OSError:
        return sys.executable
    # A file system may execute nothing, and Spark's own scripts do not quote the name.
    return str(script) if os.access(script, os.X_OK) and not re.search(r"\s", str(script)) else sys.executable
