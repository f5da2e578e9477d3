"""Who may use the API."""

from gameserver.http.openai.errors import ApiError
from gameserver.keys import Key, Keys

#: The caller where no keys are asked for.
ANYONE = Key("anyone")


def caller(keys: Keys, authorization: str | None) -> Key:
    """Who sends this `Authorization` header.

    Raises:
        ApiError: 401, there is no key in it, or one that we do not know; 403, one that is not for
            the API.
    """
    if not keys:
        return ANYONE
    scheme, _, key = (authorization or "").partition(" ")
    if scheme.lower() != "bearer" or not key.strip():
        raise ApiError(
            401, "send your API key as 'Authorization: Bearer KEY'", code="missing_api_key"
        )
    known = keys.find(key.strip())
    if known is None:
        raise ApiError(401, "this API key is not known here", code="invalid_api_key")
    if "api" not in known.scopes:
        raise ApiError(403, "this key is not for the API", code="wrong_scope")
    return known
