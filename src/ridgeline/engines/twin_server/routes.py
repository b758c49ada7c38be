"""The paths that are served, and by which method."""

from ridgeline.engines.twin_server.connection import HttpRequest
from ridgeline.engines.twin_server.protocol import ApiError

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
METHODS = {
    CHAT: "POST",
    COMPLETIONS: "POST",
    "/tokenize": "POST",
    "/v1/models": "GET",
    "/metrics": "GET",
    "/health": "GET",
    "/version": "GET",
    "/ping": "GET",
}
# As in vLLM, these are not counted in http_requests_total.
_NOT_COUNTED = {"/metrics", "/health", "/version", "/ping"}


def check_route(request: HttpRequest) -> None:
    """Raise ApiError for a request that the transport refused, an unknown path, a wrong method."""
    if request.refused is not None:
        raise ApiError(request.refused, "the request is not HTTP that this server takes")
    method = METHODS.get(request.path)
    if method is None:
        raise ApiError(404, f"no such path: {request.path}")
    if request.method != method and not (method == "GET" and request.method == "HEAD"):
        raise ApiError(405, f"{request.path} takes {method}")


def counted_as(path: str) -> str | None:
    """The handler's name in http_requests_total, None for paths that are not counted.

    Paths that are not served share one name: theirs could be endless.
    """
    if path in _NOT_COUNTED:
        return None
    return path if path in METHODS else "none"
