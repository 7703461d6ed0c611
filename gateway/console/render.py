"""Makes pages of templates. Everything that is not part of a template is escaped."""

import asyncio
from collections.abc import Mapping
from typing import Final, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup

from gateway.console import texts
from gateway.console.assets import Assets


class Section(NamedTuple):
    """An entry of the navigation."""

    name: str  # in URLs
    label: str
    key: str  # the access key

    @property
    def url(self) -> str:
        return texts.link("" if self.name == "overview" else self.name)


SECTIONS: Final = (
    Section("overview", "Overview", "o"),
    Section("topics", "Topics", "t"),
    Section("messages", "Messages", "m"),
    Section("groups", "Groups", "g"),
    Section("rules", "Rules", "r"),
    Section("connectors", "Connectors", "n"),
    Section("schemas", "Schemas", "e"),
    Section("dead-letters", "Dead letters", "d"),
    Section("clients", "Clients", "c"),
    Section("services", "Services", "v"),
    Section("held", "Held", "h"),
    Section("access", "Access", "a"),
    Section("store", "Store", "s"),
    Section("configuration", "Configuration", "f"),
    Section("cluster", "Cluster", "l"),
)


class Templates:
    """The templates of the console. The first use of each reads it in a thread."""

    def __init__(self, assets: Assets) -> None:
        self._environment = environment = Environment(
            loader=PackageLoader("gateway.console"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            auto_reload=False,
        )
        environment.filters |= {
            "name": texts.name,
            "count": texts.count,
            "size": texts.size,
            "seconds": texts.seconds,
            "when": lambda time_ms: Markup("<time>{}</time>").format(texts.when(time_ms)),
            "short": texts.short,
        }
        environment.globals |= {"asset": assets.url, "link": texts.link, "sections": SECTIONS}
        self._read: dict[str, Template] = {}

    async def render(self, name: str, values: Mapping[str, object]) -> str:
        template = self._read.get(name)
        if template is None:
            template = await asyncio.to_thread(self._environment.get_template, name)
            self._read[name] = template
        return template.render(values)
