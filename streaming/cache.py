"""Sluice's folder in the user's cache, with what is made once for the programs on this machine."""

import os
import tempfile
from pathlib import Path


def cache_folder() -> Path:
    """Return the folder, which may not exist yet."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sluice"


def write_script(path: Path, text: str) -> None:
    """Write an executable file unless it is there. It is renamed into place, so two processes may write it at once.
    Raises `OSError`."""
    if path.is_file() and path.read_text() == text:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=f"{path.name}-", delete=False) as out:
        out.write(text)
    written = Path(out.name)
    written.chmod(0o755)
    written.replace(path)
