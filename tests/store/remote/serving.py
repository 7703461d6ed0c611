"""A process that serves the store in a folder at a Unix socket, until it is killed: `python -m … FOLDER SOCKET`."""

import asyncio
import sys
from pathlib import Path

from notify.hub import Hub
from store.config import StoreConfig
from store.engine import Engine
from store.remote import RemoteConfig, StoreServer


async def _serve(folder: str, socket: str) -> None:
    engine = await Engine.open(Path(folder), StoreConfig(segment_size=1 << 20))
    await StoreServer(engine, Hub(engine), RemoteConfig(grace_s=30)).start(f"unix:{socket}")
    print("ready", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    Path(sys.argv[2]).unlink(missing_ok=True)
    asyncio.run(_serve(sys.argv[1], sys.argv[2]))
