"""What clients of one address may ask of the API, together with their WebSockets."""

import math

from starlette.requests import Request

from gameserver.addresses import Proxies
from gameserver.households import UNLIMITED, Household, Households
from gameserver.http.openai.errors import ApiError


class Rates:
    """Knows the token buckets of whoever asks.

    Args:
        households: those of all addresses; None: nobody is counted.
        proxies: who is believed about addresses.
    """

    def __init__(
        self, households: Households | None = None, proxies: Proxies | None = None
    ) -> None:
        self._households = households
        self._proxies = proxies or Proxies(())

    def of(self, request: Request) -> Household:
        """Whom a request counts for."""
        if self._households is None:
            return UNLIMITED
        peer = request.client.host if request.client else ""
        forwarded = request.headers.getlist("x-forwarded-for")
        return self._households.of(self._proxies.client(peer, forwarded))


def check(wait_s: float, what: str) -> None:
    """Raise `ApiError` (429) if something makes sense after `wait_s` seconds only."""
    if wait_s:
        message = f"too many {what} from one address"
        raise ApiError(429, message, code="rate_limit_exceeded", retry_s=math.ceil(wait_s))
