"""Transforms of headers: MQTT 5 user properties."""

from connect.api import Record, Setting, Settings, SettingType, Transform
from connect.transforms.values import fields_of, text_of

_LIST = SettingType.LIST


class InsertHeader(Transform):
    """Adds a header with a fixed value."""

    name = "InsertHeader"
    settings = (
        Setting("header", "The name of the header.", required=True),
        Setting("value.literal", "Its value.", required=True),
    )

    def __init__(self, settings: Settings) -> None:
        self._header = (settings["header"], settings["value.literal"])

    def apply(self, record: Record) -> Record:
        record.headers = [*record.headers, self._header]
        return record


class DropHeaders(Transform):
    """Drops headers."""

    name = "DropHeaders"
    settings = (Setting("headers", "The names of the headers.", _LIST, required=True),)

    def __init__(self, settings: Settings) -> None:
        self._names = frozenset(settings["headers"])

    def apply(self, record: Record) -> Record:
        record.headers = [each for each in record.headers if each[0] not in self._names]
        return record


class HeaderFrom(Transform):
    """Copies or moves fields of the value into headers."""

    name = "HeaderFrom"
    settings = (
        Setting("fields", "The fields.", _LIST, required=True),
        Setting("headers", "The header of each field, in the same order.", _LIST, required=True),
        Setting("operation", "Whether fields stay (`copy`) or go (`move`).", required=True, choices=("copy", "move")),
    )

    def __init__(self, settings: Settings) -> None:
        fields, headers = settings["fields"], settings["headers"]
        if len(fields) != len(headers):
            raise ValueError(f"there are {len(fields)} fields and {len(headers)} headers")
        self._headers = dict(zip(fields, headers, strict=True))
        self._moves = settings["operation"] == "move"

    def apply(self, record: Record) -> Record:
        fields = fields_of(record, self.name)
        added = [
            (header, text_of(fields[name])) for name, header in self._headers.items() if fields.get(name) is not None
        ]
        record.headers = [*record.headers, *added]
        if self._moves:
            record.value = {name: value for name, value in fields.items() if name not in self._headers}
        return record
