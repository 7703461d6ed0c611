"""What is wrong with a schema or with a payload."""


class SchemaError(Exception):
    """The base class of these errors."""


class InvalidSchema(SchemaError):
    """A schema cannot be used. The message says why."""


class InvalidPayload(SchemaError):
    """A payload does not match a schema. The message says why, in at most `MAX_FAULT` characters."""


MAX_FAULT = 200


def shortened(text: str) -> str:
    """A text in one line of at most `MAX_FAULT` characters that can be printed."""
    line = "".join(each if each.isprintable() else " " for each in text[: MAX_FAULT + 1])
    return line if len(line) <= MAX_FAULT else line[: MAX_FAULT - 1] + "…"
