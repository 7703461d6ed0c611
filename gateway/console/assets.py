"""The files that pages refer to: scripts, styles and the icon. They are part of the package; `assets.json` says where
those of others come from."""

import hashlib
from importlib.resources import files
from typing import Final

from aiohttp import web

_TYPES: Final = {
    "console.css": "text/css",
    "console.js": "text/javascript",
    "htmx.min.js": "text/javascript",
    "icon.svg": "image/svg+xml",
    "uPlot.iife.min.js": "text/javascript",
    "uPlot.min.css": "text/css",
}


class Assets:
    """All of them, in memory."""

    def __init__(self) -> None:
        folder = files(__package__) / "static"
        self._bodies = {name: (folder / name).read_bytes() for name in _TYPES}
        self._versions = {name: hashlib.sha256(body).hexdigest()[:16] for name, body in self._bodies.items()}

    def url(self, name: str) -> str:
        """The URL of a file. It changes with the file, so that a browser may keep what it has."""
        return f"/console/static/{name}?v={self._versions[name]}"

    async def serve(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        body = self._bodies.get(name)
        if body is None:
            raise web.HTTPNotFound
        headers = {"Cache-Control": "public, max-age=31536000, immutable"}
        return web.Response(body=body, content_type=_TYPES[name], charset="utf-8", headers=headers)
