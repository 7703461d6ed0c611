"""Writes `gateway/management/openapi.json` from `management.proto`, and checks that it is up to date."""
