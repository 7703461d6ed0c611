"""SCRAM-SHA-256 without sockets: the vector of RFC 7677, and messages of clients that are wrong or hostile."""

import hashlib
import hmac
from base64 import b64decode, b64encode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.auth.credentials.saslprep import prepared
from gateway.auth.credentials.scram import ScramError, ServerExchange, WrongProof, mock_user, new_user, proves, salted
from store.api import User
from tests.gateway.scram_client import ScramClient

NONCE = b64decode("hvYDpWUa2RaTCAfuxFIlj" + "w==")  # 18 bytes become 24 characters without padding
CLIENT_NONCE = b"rOprNGfwEbeRWgbNEkqO"
SALT = b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
USER = new_user(b"user", b"pencil", SALT, 4096)
FIRST = b"n,,n=user,r=" + CLIENT_NONCE


def test_the_vector_of_rfc_7677(monkeypatch: pytest.MonkeyPatch) -> None:
    exchange = ServerExchange(b"")
    exchange.begin(FIRST)
    # The server's part of the vector's nonce is no base64, as ours would be.
    monkeypatch.setattr(exchange, "_nonce", CLIENT_NONCE + b"%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0")
    assert exchange.user_name == b"user"
    assert exchange.challenge(USER) == (
        b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    )
    final = exchange.finish(
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    assert final == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def test_stored_keys_are_those_of_rfc_5802() -> None:
    secret = hashlib.pbkdf2_hmac("sha256", b"pencil", SALT, 4096)
    client_key = hmac.digest(secret, b"Client Key", "sha256")
    assert (
        User(b"user", SALT, 4096, hashlib.sha256(client_key).digest(), hmac.digest(secret, b"Server Key", "sha256"))
        == USER
    )
    assert proves(salted(b"pencil", SALT, 4096), USER)
    assert not proves(salted(b"Pencil", SALT, 4096), USER)


def talk(client: ScramClient, user: User) -> bool:
    """Whether the client believes the server at the end."""
    exchange = ServerExchange(b"x" * 18)
    exchange.begin(client.first())
    return client.believes(exchange.finish(client.final(exchange.challenge(user))))


@given(st.binary(min_size=1, max_size=40), st.binary(max_size=40), st.binary(min_size=8, max_size=20))
def test_only_the_right_password_is_accepted(password: bytes, other: bytes, salt: bytes) -> None:
    user = new_user("al,ice=ü".encode(), password, salt, 2)
    assert talk(ScramClient(user.name, password), user)
    if prepared(other).rstrip(b"\0") != prepared(password).rstrip(b"\0"):  # HMAC fills its key up with zeros
        with pytest.raises(WrongProof):
            talk(ScramClient(user.name, other), user)


def test_a_name_with_commas_and_equals_signs() -> None:
    exchange = ServerExchange(b"x" * 18)
    exchange.begin(b"y,,n=a=2Cb=3D=3Dc,r=abc,ext=1")
    assert exchange.user_name == b"a,b==c"


@pytest.mark.parametrize(
    "message",
    [
        *(b"", b"n", b"n,,", b"n,,n=user", b"n,,r=x,n=user", b"n,,n=user,r=", b"n,,n=,r=x", b"n,,m=1,n=user,r=x"),
        *(b"p=tls-unique,,n=user,r=x", b"x,,n=user,r=x", b"n,a=other,n=user,r=x", b"n,,n=us=er,r=x"),
        *(b"n,,n=us=2cer,r=x", b"n,,n=\xff,r=x", b"n,,n=a\0b,r=x", b"n,,n=user,r=\x7f", b"n,,n=user,r=a b"),
        b"n,,n=user,r=" + b"x" * 70_000,
    ],
)
def test_a_malformed_first_message(message: bytes) -> None:
    with pytest.raises(ScramError):
        ServerExchange(b"x" * 18).begin(message)


def test_acting_for_oneself_is_no_acting_for_another() -> None:
    exchange = ServerExchange(b"x" * 18)
    exchange.begin(b"n,a=user,n=user,r=abc")
    assert exchange.user_name == b"user"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"c=biws", b"c=eSws"),  # as if it had said y: somebody in the middle changed the first message
        (b"c=biws", b"d=biws"),
        (b"r=abc", b"r=abd"),
        (b",p=", b",q="),
        (b",p=", b",p=="),
        (b",p=", b",p=AA"),
        (b",p=", b",x=1,p="),  # what was signed did not have it
    ],
)
def test_a_last_message_that_was_tampered_with(old: bytes, new: bytes) -> None:
    client = ScramClient(b"user", b"pencil", b"abc")
    exchange = ServerExchange(b"x" * 18)
    exchange.begin(client.first())
    final = client.final(exchange.challenge(USER))
    assert old in final
    with pytest.raises(ScramError):
        exchange.finish(final.replace(old, new, 1))


@given(st.binary(max_size=60), st.binary(max_size=80))
def test_any_bytes_are_answered_with_an_error_at_most(first: bytes, last: bytes) -> None:
    exchange = ServerExchange(b"x" * 18)
    try:
        exchange.begin(b"n,,n=user,r=" + first)
        exchange.challenge(USER)
        exchange.finish(b"c=biws,r=" + last)
    except ScramError:
        return
    raise AssertionError("nobody knew the password")


def test_an_unknown_user_always_has_the_same_salt() -> None:
    secret = User(b"", b"s" * 32, 4096, bytes(32), bytes(32))
    mock = mock_user(b"nobody", secret)
    assert mock == mock_user(b"nobody", secret)
    assert mock.salt != mock_user(b"other", secret).salt
    assert mock.salt != mock_user(b"nobody", User(b"", b"t" * 32, 4096, bytes(32), bytes(32))).salt
    assert (len(mock.salt), mock.iterations) == (16, 4096)
    with pytest.raises(WrongProof):
        talk(ScramClient(b"nobody", b""), mock)


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        # RFC 4013, section 3
        ("I\u00adX", "IX"),
        ("user", "user"),
        ("USER", "USER"),
        ("\u00aa", "a"),
        ("\u2168", "IX"),
        ("a\u00a0b", "a b"),
        # What should not be is taken as it is.
        ("ü\u0007", "ü\u0007"),
        ("\u06271", "\u06271"),
        ("\u00ad", "\u00ad"),
        ("ü" * 600, "ü" * 600),
    ],
)
def test_passwords_are_normalised(written: str, meant: str) -> None:
    assert prepared(written.encode()) == meant.encode()


def test_a_password_that_is_no_text() -> None:
    assert prepared(b"\xff\xfe") == b"\xff\xfe"


def test_the_nonce_is_that_of_both() -> None:
    exchange = ServerExchange(NONCE)
    exchange.begin(b"n,,n=user,r=abc")
    assert exchange.challenge(USER).startswith(b"r=abc" + b64encode(NONCE) + b",s=")
