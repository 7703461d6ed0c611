"""What follows from an alert: an event rule calls a webhook, and a connector inserts a row into a database."""

import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Final

import orjson
from aiohttp import web

from sluice.demo.process import run_command

RULE: Final = "page-the-operator"
CONNECTOR: Final = "alerts-table"
_DATABASE: Final = "alerts.sqlite"
_TABLE: Final = "alerts"
# The worker's entries of the bucket, and all else: without rules, nobody may read or write entries.
_ACCESS: Final = ("allow both $kv/connect/#",)


class WebhookReceiver:
    """An HTTP server on loopback that counts the alerts it is sent. Each has an id, by which repeats are told."""

    def __init__(self) -> None:
        self.ids: set[str] = set()
        self.received = 0
        self.port = 0
        app = web.Application()
        app.router.add_post("/alerts", self._receive)
        self._runner = web.AppRunner(app, access_log=None)

    async def start(self) -> None:
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        await self._runner.cleanup()

    async def _receive(self, request: web.Request) -> web.Response:
        orjson.loads(await request.read())
        self.received += 1
        self.ids.add(request.headers["ce-id"])
        return web.Response(status=204)


class Integration:
    """An event rule and a connector over the alerts of a node, which has a worker of its own."""

    def __init__(self, data_dir: Path, folder: Path, parent: str) -> None:
        """folder: of the database. parent: the parent topic of the alerts."""
        self.webhook = WebhookReceiver()
        self._data_dir = data_dir
        self._folder = folder
        self._filter = f"{parent}/#"

    @property
    def database(self) -> Path:
        return self._folder / _DATABASE

    @property
    def environment(self) -> Mapping[str, str]:
        """The settings of the node: a worker that may write the database, and webhooks to this machine."""
        return {
            "SLUICE_CONNECT_WORKERS": "1",
            "SLUICE_CONNECT_ALLOWED_FOLDERS": orjson.dumps([str(self._folder)]).decode(),
            "SLUICE_EVENTS_WEBHOOK_NETWORKS": '["127.0.0.0/8"]',
        }

    async def set_up(self) -> None:
        """Start the webhook, and set the rule and the connector, as a user would. Raises `DemoError`."""
        await self.webhook.start()
        node = f"--data-dir={self._data_dir}"
        await run_command("acl", "set", "--everybody", *_ACCESS, node)
        url = f"http://127.0.0.1:{self.webhook.port}/alerts"
        await run_command("rule", "set", RULE, "--topics", self._filter, "--to-url", url, node)
        settings = [
            "connector.class=sqlite-sink",
            f"topics={self._filter}",
            f"connection.path={self.database}",
            f"table.name.format={_TABLE}",
        ]
        await run_command("connector", "set", CONNECTOR, *settings, node)

    def rows(self) -> tuple[int, int]:
        """How many alerts are in the table, and how many of them are distinct."""
        if not self.database.exists():
            return 0, 0
        try:
            with closing(sqlite3.connect(f"file:{self.database}?mode=ro", uri=True)) as database:
                query = f"SELECT count(*), count(DISTINCT position) FROM {_TABLE}"  # noqa: S608 (a constant)
                found: tuple[int, int] = database.execute(query).fetchone()
                return found
        except sqlite3.OperationalError:  # the table is not there yet
            return 0, 0
