"""amqtt's broker with nothing but an open listener: `python -m benchmarks.amqtt_broker PORT`."""

import asyncio
import logging
import signal
import sys

from amqtt.broker import Broker


async def serve(port: int) -> None:
    logging.disable(logging.CRITICAL)
    config = {
        "listeners": {"default": {"type": "tcp", "bind": f"127.0.0.1:{port}", "max_connections": 20_000}},
        "plugins": {"amqtt.plugins.authentication.AnonymousAuthPlugin": {"allow_anonymous": True}},
    }
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    broker = Broker(config)
    await broker.start()
    await stopped.wait()
    await broker.shutdown()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1])))
