"""What a node says about itself at one moment: by its management surface, and by `/metrics` where that can be read."""

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Final

from prometheus_client.parser import text_string_to_metric_families

from gateway.console import alarms
from gateway.management.proto import management_pb2 as pb
from sluice.node.http_link import HttpLink, ManagementError
from sluice.node.management import ManagementLink

_GROUPS: Final = 1000
_TIMES: Final = {
    "append to commit": "sluice_store_append_seconds",
    "flush": "sluice_store_flush_seconds",
    "commit to delivery": "sluice_mqtt_delivery_seconds",
    "handling in groups": "sluice_handling_seconds",
}

Buckets = dict[float, float]  # how many were at most so many seconds


@dataclass(slots=True)
class Sample:
    """The figures of one moment."""

    figures: pb.Figures
    store: pb.Store
    groups: list[pb.GroupSummary]
    cluster: pb.ClusterStatus | None
    alarms: list[alarms.Alarm]
    topics: dict[str, float] = field(default_factory=dict)  # messages since the node started, of those shown
    acknowledged: dict[str, float] = field(default_factory=dict)  # by groups that are shown
    times: dict[str, Buckets] = field(default_factory=dict)
    missing: str = ""  # why the last three are empty


class Sampler:
    """Asks one node again and again."""

    def __init__(self, link: ManagementLink) -> None:
        """Raises `CommandError`."""
        self._link = link
        self._metrics: HttpLink | None = None
        self._missing = ""
        try:
            self._metrics = self._open_metrics()
        except ManagementError as error:
            self._missing = str(error)

    def take(self) -> Sample:
        """Raises `CommandError`."""
        link = self._link
        figures = link.call("GetFigures", pb.GetFiguresRequest(), pb.Figures)
        store = link.call("GetStore", pb.GetStoreRequest(), pb.Store)
        groups = list(link.call("ListGroups", pb.ListGroupsRequest(limit=_GROUPS), pb.ListGroupsReply).groups)
        try:
            cluster = link.call("GetCluster", pb.GetClusterRequest(), pb.ClusterStatus)
        except ManagementError:  # it is in none
            cluster = None
        found = alarms.of_store(store) + alarms.of_figures(figures, {}, 0) + alarms.of_groups(groups)
        if cluster is not None:
            found += alarms.of_cluster(cluster)
        sample = Sample(figures, store, groups, cluster, found, missing=self._missing)
        if self._metrics is not None:
            try:
                _read(sample, self._metrics.get("/metrics").decode())
            except ManagementError as error:
                sample.missing = f"/metrics cannot be read: {error}"
        return sample

    def close(self) -> None:
        if self._metrics is not None and self._metrics is not self._link:
            self._metrics.close()

    def _open_metrics(self) -> HttpLink:
        """A connection for /metrics. Raises `ManagementError`."""
        if not isinstance(self._link, HttpLink):
            raise ManagementError("no node runs")
        if not self._link.is_local:
            return self._link
        rows = self._link.call("GetConfiguration", pb.GetConfigurationRequest(), pb.Configuration).settings
        settings = {each.name: each.value.strip('"') for each in rows}
        port, host = settings["http.port"], settings["http.host"] or settings["host"]
        if port == "0" or settings["http.certificate"]:
            raise ManagementError("the HTTP port is not known here, or has TLS: give --host")
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104  no address to listen on
        return HttpLink.open(f"http://{f'[{host}]' if ':' in host else host}:{port}", None, None)


def _read(sample: Sample, text: str) -> None:
    """Take what the screen shows from the text of /metrics."""
    names = {name: shown for shown, name in _TIMES.items()}
    for family in text_string_to_metric_families(text):
        if family.name in ("sluice_topic_messages", "sluice_group_acknowledged"):
            of = sample.topics if family.name == "sluice_topic_messages" else sample.acknowledged
            for each in family.samples:
                if each.name.endswith("_total"):
                    of[each.labels["topic" if of is sample.topics else "group"]] = each.value
        elif family.name in names:
            buckets: Buckets = defaultdict(float)
            for each in family.samples:
                if each.name.endswith("_bucket"):  # those of several gateways are added up
                    buckets[float(each.labels["le"])] += each.value
            sample.times[names[family.name]] = dict(buckets)
