"""Names that begin with $: inboxes of clients, and what is below a first level."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from matcher.names import is_valid_topic
from matcher.reserved import INBOX, client_of, inbox_of, is_below

CLIENT_IDS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=40)


@given(CLIENT_IDS)
def test_every_client_id_has_an_inbox_of_its_own(client_id: str) -> None:
    topic = inbox_of(client_id.encode())
    assert client_of(topic) == client_id.encode()
    assert is_valid_topic(topic)


@pytest.mark.parametrize(
    ("client_id", "topic"),
    [
        (b"lamp", b"$inbox/lamp"),
        (b"house/lamp", b"$inbox/house/lamp"),
        (b"a+b#c", b"$inbox/a%2Bb%23c"),
        (b"100%", b"$inbox/100%25"),
        (b"%2B", b"$inbox/%252B"),
    ],
)
def test_inbox_names_are_escaped(client_id: bytes, topic: bytes) -> None:
    assert inbox_of(client_id) == topic
    assert client_of(topic) == client_id


@pytest.mark.parametrize(
    "topic", [b"$inbox", b"$inbox/", b"$inbox/100%", b"$inbox/%2b", b"$inbox/%41", b"inbox/a", b"a"]
)
def test_names_that_are_no_inbox(topic: bytes) -> None:
    assert client_of(topic) is None


def test_names_below_a_level() -> None:
    assert is_below(b"$inbox", INBOX)
    assert is_below(b"$inbox/a", INBOX)
    assert not is_below(b"$inboxes/a", INBOX)
    assert not is_below(b"$inb", INBOX)
