"""Administration queries: JSON in, JSON out."""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from typing import Any


class WrongRequest(Exception):
    """The request is invalid. The message is for the user."""


class AdminQueries(ABC):
    """Queries by name."""

    @property
    @abstractmethod
    def queries(self) -> Mapping[str, Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]]: ...

    async def answer(self, name: str, body: object) -> dict[str, Any]:
        """Answer a query. Raises WrongRequest, and StoreError when the store cannot answer."""
        query = self.queries.get(name)
        if query is None or not isinstance(body, dict):
            raise WrongRequest(f"there is no query {name!r}")
        try:
            return await query(body)
        except (KeyError, TypeError, AttributeError) as error:
            raise WrongRequest(f"{name}: {error} is missing, or has a wrong type") from error
        except ValueError as error:
            raise WrongRequest(str(error)) from error
