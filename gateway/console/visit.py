"""A request of a person who has logged in, and what the handlers of pages ask the management surface."""

from collections.abc import Mapping
from typing import Any, Final, TypeVar

from google.protobuf.message import Message

from gateway.console.sessions import ConsoleSession
from gateway.console.texts import time_of
from gateway.management.methods import METHODS
from gateway.management.rights import Manager, require
from gateway.management.surface import Management
from gateway.rpc.status import RequestError, invalid
from store.errors import StoreError

PAGE_ROWS: Final = 100
_INT64: Final = 1 << 63
_METHODS: Final = {method.request: method for method in METHODS}

Fields = Mapping[str, list[str]]
Row = TypeVar("Row")


class Visit:
    """What a page is asked for, by whom."""

    def __init__(self, session: ConsoleSession, manager: Manager, management: Management, fields: Fields) -> None:
        """fields: of the query, or of the form."""
        self.session = session
        self.back = ""  # the page to go to after a form
        self._manager = manager
        self._management = management
        self._fields = fields

    # --- the surface

    async def ask(self, request: Message) -> Any:
        """Carry out the method of this request, with the rights of the person. Raises `RequestError`."""
        return await self._management.call(_METHODS[type(request)], request, self._manager)

    async def try_ask(self, request: Message) -> tuple[Any, str]:
        """The reply and "", or None and why there is none. This is for a part of a page: a right that the person lacks
        is no denial for the logs, since nobody asked for that part."""
        try:
            await require(self._manager, _METHODS[type(request)], request)
            return await self.ask(request), ""
        except (RequestError, StoreError) as error:
            return None, str(error)

    async def lacking(self, **requests: Message) -> dict[str, str]:
        """For each of these requests why the person may not make it; "": he may. Raises `StoreError`."""
        found = {}
        for name, request in requests.items():
            try:
                await require(self._manager, _METHODS[type(request)], request)
                found[name] = ""
            except RequestError as error:
                found[name] = str(error)
        return found

    # --- fields

    def text(self, name: str) -> str:
        """A field; "" if it is not there."""
        return self._fields.get(name, [""])[0]

    def line(self, name: str) -> str:
        """A field without the white space around it, which nobody sees in a form."""
        return self.text(name).strip()

    def optional(self, name: str) -> str | None:
        """A field; None if it is not there. Also an empty name is one to begin after."""
        return self._fields[name][0] if name in self._fields else None

    def flag(self, name: str) -> bool:
        return self.text(name) not in ("", "0")

    def number(self, name: str) -> int | None:
        """A whole number; None if the field is empty. Raises `RequestError`."""
        return whole(self.line(name)) if self.line(name) else None

    def numbers(self, name: str) -> list[int]:
        """All numbers of a field that is there several times. Raises `RequestError`."""
        return [whole(text) for text in self._fields.get(name, [])]

    def time(self, name: str) -> int | None:
        """A time in milliseconds; None if the field is empty. Raises `RequestError`."""
        text = self.line(name)
        if not text:
            return None
        try:
            return time_of(text)
        except (ValueError, OverflowError) as error:
            raise invalid(f"{text[:40]!r} is not a time such as 2025-06-01T11:59") from error

    def key(self, name: str) -> bytes | None:
        """Bytes in hexadecimal digits; None if the field is not there. Raises `RequestError`."""
        text = self.optional(name)
        try:
            return None if text is None else bytes.fromhex(text)
        except ValueError as error:
            raise invalid(f"{text!r} has other than hexadecimal digits") from error


def whole(text: str) -> int:
    """A number of 64 bits. Raises `RequestError`."""
    try:
        number = int(text)
    except ValueError as error:
        raise invalid(f"{text[:40]!r} is not a whole number") from error
    if not -_INT64 <= number < _INT64:
        raise invalid(f"{text[:40]} is too large")
    return number
