"""Runs protoc over the protos of the management surface."""

from pathlib import Path

from google.api import annotations_pb2
from grpc_tools import protoc

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "gateway/management/proto"
_INCLUDED = (annotations_pb2.__file__.partition("/google/api/")[0], Path(protoc.__file__).parent / "_proto")


def compile_protos(*arguments: str) -> None:
    """Run protoc over the protos of the management surface."""
    names = [str(path.relative_to(ROOT)) for path in sorted(FOLDER.glob("*.proto"))]
    if protoc.main(["protoc", f"-I{ROOT}", *(f"-I{each}" for each in _INCLUDED), *arguments, *names]):
        raise RuntimeError("protoc failed")
