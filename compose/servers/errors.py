"""What can go wrong when servers are set up. Each message is one line and ends with the remedy."""


class ServerError(Exception):
    """The base of both."""


class Missing(ServerError):  # noqa: N818 - the message says the rest
    """A server cannot be had on this machine; the message says what to do."""


class NotReady(ServerError):  # noqa: N818 - the message says the rest
    """A server was started and did not answer in time; the message names its log."""
