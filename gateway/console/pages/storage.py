"""The log and its views, and the configuration."""

from gateway.console.texts import link
from gateway.console.visit import Visit
from gateway.management.proto import management_pb2 as pb

_SEGMENTS = 200  # that are listed, the newest


async def store(visit: Visit) -> dict[str, object]:
    about = await visit.ask(pb.GetStoreRequest())
    figures = await visit.ask(pb.GetFiguresRequest())
    return {
        "store": about,
        "segments": list(reversed(about.segments))[:_SEGMENTS],
        "tier": figures.tier if figures.HasField("tier") else None,
    }


async def configuration(visit: Visit) -> dict[str, object]:
    about = await visit.ask(pb.GetConfigurationRequest())
    changed = visit.flag("changed")
    rows = [row for row in about.settings if not changed or row.source != "default"]
    lacking = await visit.lacking(reload=pb.ReloadConfigurationRequest())
    return {"rows": rows, "changed": changed, "lacking": lacking}


async def reload(visit: Visit) -> str:
    visit.back = link("configuration")
    reply = await visit.ask(pb.ReloadConfigurationRequest())
    parts = ["The configuration and the certificates are read again."]
    if reply.changed:
        parts.append(f"Changed: {', '.join(reply.changed)}.")
    if reply.needs_restart:
        parts.append(f"With the next restart: {', '.join(reply.needs_restart)}.")
    return " ".join(parts)
