"""Connectors: which there are, what their tasks do, and which kinds this node knows."""

import json

from gateway.console.texts import link
from gateway.console.visit import PAGE_ROWS, Visit
from gateway.management.proto import management_pb2 as pb
from gateway.rpc.status import invalid

_EXAMPLE = {"connector.class": "file-sink", "topics": "sensors/#", "tasks.max": "1"}


async def connectors(visit: Visit) -> dict[str, object]:
    reply = await visit.ask(pb.ListConnectorsRequest(after=visit.optional("after"), limit=PAGE_ROWS))
    plugins = await visit.ask(pb.ListConnectorPluginsRequest())
    workers = await visit.ask(pb.ListConnectWorkersRequest())
    return {
        "rows": reply.connectors,
        "after": reply.after if reply.HasField("after") else None,
        "plugins": plugins.plugins,
        "workers": workers.workers,
        "lacking": await visit.lacking(set=pb.SetConnectorRequest()),
        "config": _pretty(_EXAMPLE),
    }


async def connector(visit: Visit) -> dict[str, object]:
    found = await visit.ask(pb.GetConnectorRequest(name=visit.text("name")))
    offsets, _ = await visit.try_ask(pb.GetConnectorOffsetsRequest(name=found.name))
    return {
        "connector": found,
        "group": f"connect-{found.name}" if found.type == "sink" else "",
        "offsets": offsets.offsets if offsets is not None else (),
        "config": _pretty(dict(sorted(found.config.items()))),
        "lacking": await visit.lacking(set=pb.SetConnectorRequest(), delete=pb.DeleteConnectorRequest()),
    }


async def change(visit: Visit) -> str:
    name = visit.line("name")
    visit.back = link("connector", name=name) if visit.flag("is_there") else link("connectors")
    try:
        config = json.loads(visit.text("config"))
    except (ValueError, RecursionError) as error:
        raise invalid(f"the settings cannot be read: {error}") from error
    if not isinstance(config, dict) or any(isinstance(value, dict | list) for value in config.values()):
        raise invalid("settings are a JSON object of texts")
    texts = {key: json.dumps(value) if isinstance(value, bool) else str(value) for key, value in config.items()}
    await visit.ask(pb.SetConnectorRequest(name=name, config=texts, create=not visit.flag("is_there")))
    visit.back = link("connector", name=name)
    return f"The connector {name} is set."


async def pause(visit: Visit) -> str:
    name = _named(visit)
    await visit.ask(pb.PauseConnectorRequest(name=name))
    return f"The connector {name} is paused."


async def stop(visit: Visit) -> str:
    name = _named(visit)
    await visit.ask(pb.StopConnectorRequest(name=name))
    return f"The connector {name} is stopped."


async def resume(visit: Visit) -> str:
    name = _named(visit)
    await visit.ask(pb.ResumeConnectorRequest(name=name))
    return f"The connector {name} goes on."


async def restart(visit: Visit) -> str:
    name = _named(visit)
    await visit.ask(pb.RestartConnectorRequest(name=name, only_failed=visit.flag("only_failed")))
    return f"The tasks of the connector {name} start again."


async def delete(visit: Visit) -> str:
    name = _named(visit)
    await visit.ask(pb.DeleteConnectorRequest(name=name))
    visit.back = link("connectors")
    return f"The connector {name} is deleted. Its offsets and its group stay."


def _named(visit: Visit) -> str:
    """The name of the connector whose page the form is on, which the answer goes back to."""
    name = visit.text("name")
    visit.back = link("connector", name=name)
    return name


def _pretty(value: object) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)
