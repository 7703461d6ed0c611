"""amqtt's broker with two open listeners and no plugins.

`python -m benchmarks.comparison.amqtt_broker PORT TLS-PORT CERTIFICATE KEY`
"""

import asyncio
import logging
import signal
import sys

from amqtt.broker import Broker


async def serve(port: int, tls_port: int, certificate: str, key: str) -> None:
    logging.disable(logging.CRITICAL)
    listener = {"type": "tcp", "bind": f"127.0.0.1:{port}", "max_connections": 20_000}
    tls = {"bind": f"127.0.0.1:{tls_port}", "ssl": True, "certfile": certificate, "keyfile": key}
    config = {
        "listeners": {"default": listener, "tls": listener | tls},
        "plugins": {"amqtt.plugins.authentication.AnonymousAuthPlugin": {"allow_anonymous": True}},
    }
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    broker = Broker(config)
    await broker.start()
    await stopped.wait()
    await broker.shutdown()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]))
