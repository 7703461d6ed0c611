"""Standard Webhooks: signatures, secrets."""

import pytest

from connect.net.webhook_signature import secret_bytes, signature_headers


def test_the_signature_is_that_of_standard_webhooks() -> None:
    """The example of the specification."""
    secret = secret_bytes("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    headers = signature_headers("msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}', secret)
    assert headers["webhook-signature"] == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
    for wrong in ("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "whsec_c2hvcnQ=", "whsec_!"):
        with pytest.raises(ValueError, match=r"secret|base64"):
            secret_bytes(wrong)
