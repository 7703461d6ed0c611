"""A REST catalog that is asked directly."""

from pyiceberg.catalog.rest import RestCatalog
from requests import Session


class DirectRestCatalog(RestCatalog):
    """Does not follow redirections, which could lead to hosts that nobody has checked."""

    def _create_session(self) -> Session:
        session = super()._create_session()
        session.max_redirects = 0
        return session
