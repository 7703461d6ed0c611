"""The kinds of schemas, the levels of compatibility, and what every compiled schema can do."""

from typing import Final, Literal, Protocol, get_args

Kind = Literal["AVRO", "JSON", "PROTOBUF"]
Level = Literal["NONE", "BACKWARD", "BACKWARD_TRANSITIVE", "FORWARD", "FORWARD_TRANSITIVE", "FULL", "FULL_TRANSITIVE"]

KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
LEVELS: Final[tuple[Level, ...]] = get_args(Level)
DEFAULT_LEVEL: Final[Level] = "BACKWARD"


class Schema(Protocol):
    """A compiled schema."""

    @property
    def kind(self) -> Kind: ...

    @property
    def text(self) -> str:
        """As it was registered."""

    @property
    def canonical(self) -> bytes:
        """Equal for schemas that differ in nothing that counts."""

    def check(self, payload: bytes) -> None:
        """Raises `gateway.schemas.errors.InvalidPayload`."""

    def check_framed(self, payload: bytes) -> None:
        """Check what follows a schema id in Confluent's wire format. Raises `InvalidPayload`."""
