"""For all tests: hypothesis judges what is true, never how long it took."""

from hypothesis import settings

settings.register_profile("sluice", deadline=None)
settings.load_profile("sluice")
