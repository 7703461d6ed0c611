"""A collector for tests: takes spans by OTLP over HTTP, as protobuf, and keeps them."""

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"
SAMPLED = f"00-{TRACE}-{PARENT}-01"
NOT_SAMPLED = f"00-{TRACE}-{PARENT}-00"


@dataclass
class Span:
    """A span as the collector got it."""

    name: str
    trace: str
    id: str
    parent: str
    began_ns: int
    ended_ns: int
    kind: int
    error: str
    attributes: dict[str, str | int]
    process: str


@dataclass
class Collector:
    """`status`: what requests are answered with."""

    url: str
    status: int = 200
    spans: list[Span] = field(default_factory=list)
    requests: int = 0
    headers: dict[str, str] = field(default_factory=dict)

    def named(self, operation: str) -> list[Span]:
        return [each for each in self.spans if each.name.split(" ")[0] == operation]

    def take(self, body: bytes) -> None:
        request = ExportTraceServiceRequest.FromString(body)
        for resource in request.resource_spans:
            about = {each.key: each.value.string_value for each in resource.resource.attributes}
            for scope in resource.scope_spans:
                for each in scope.spans:
                    values = {
                        one.key: one.value.string_value if one.value.HasField("string_value") else one.value.int_value
                        for one in each.attributes
                    }
                    self.spans.append(
                        Span(
                            each.name,
                            each.trace_id.hex(),
                            each.span_id.hex(),
                            each.parent_span_id.hex(),
                            each.start_time_unix_nano,
                            each.end_time_unix_nano,
                            each.kind,
                            each.status.message if each.status.code == 2 else "",
                            values,
                            f"{about['service.name']} {about['service.instance.id']}",
                        )
                    )


@contextmanager
def collecting() -> Iterator[Collector]:
    """A collector on a free port."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            found.requests += 1
            found.headers = dict(self.headers)
            if found.status == 200:
                assert self.path == "/v1/traces"
                assert self.headers["Content-Type"] == "application/x-protobuf"
                found.take(body)
            self.send_response(found.status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found = Collector(f"http://127.0.0.1:{server.server_address[1]}")
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
