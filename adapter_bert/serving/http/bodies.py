"""Reads the bodies of requests, and writes those of responses."""

import asyncio
import gzip
import re
import zlib
from typing import Any, AsyncGenerator, Awaitable, Callable, Mapping, Optional

from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from adapter_bert.serving.http import messages
from adapter_bert.shell.errors import UserError

_MIN_GZIP_BYTES = 1000  # A shorter answer is sent without compression.
_GZIP_FORMAT = 16 + zlib.MAX_WBITS  # For `zlib.decompressobj`.
_GZIP_LEVEL = 1  # Higher ones take several times as long, and save little.
_ACCEPTS_GZIP = re.compile(r"\bgzip\b(?!\s*;\s*q=0(\.0*)?\s*(,|$))")


class Body:
    """A request's body, which is not read yet; raises `messages.Refused` if it is too large.

    Args:
      request: `Request`.
      max_bytes: of the body, also when it is decompressed.

    Attributes:
      length: its declared length, or else 0.
    """

    def __init__(self, request: Request, max_bytes: int):
        self._request, self._max_bytes = request, max_bytes
        declared = request.headers.get("content-length", "")
        self.length = int(declared) if declared.isdigit() else 0
        self._check_size(self.length)

    async def read(
        self, seconds: float, on_growth: Callable[[int], None] = lambda size: None
    ) -> bytes:
        """Returns the body; calls a function of the size that has arrived, after each part."""

        async def read() -> bytes:
            body = bytearray()
            async for chunk in self.chunks():
                body += chunk
                on_growth(len(body))
            return bytes(body)

        return await in_time(read(), seconds)

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """Yields the parts of the body; raises UserError if it is damaged gzip."""
        size = 0
        is_gzip = self._request.headers.get("content-encoding", "").lower() == "gzip"
        stream = zlib.decompressobj(_GZIP_FORMAT) if is_gzip else None
        try:
            async for chunk in self._request.stream():
                if stream:  # What it would return beyond the limit is lost.
                    chunk = stream.decompress(chunk, self._max_bytes - size + 1)
                size += len(chunk)
                self._check_size(size)
                yield chunk
        except ClientDisconnect:
            raise messages.disconnected() from None
        except zlib.error as error:
            raise UserError(f"the body is not valid gzip ({error})") from None
        if stream and (not stream.eof or stream.unused_data):
            raise UserError("the body is not valid gzip (expected one complete stream)")

    def _check_size(self, size: int) -> None:
        if size > self._max_bytes:
            raise messages.Refused(413, f"the body is over {self._max_bytes:,} bytes")


async def in_time(reading: Awaitable, seconds: float) -> Any:
    """Awaits the reading of a body, with a timeout."""
    try:
        return await asyncio.wait_for(reading, seconds)
    except asyncio.TimeoutError:
        sentence = f"the body did not arrive within {seconds:g} seconds"
        raise messages.Refused(408, sentence, closes_connection=True) from None


async def compressed(
    request: Request,
    content: bytes,
    media_type: str = "application/json",
    headers: Optional[Mapping[str, str]] = None,
) -> Response:
    """Returns a response, compressed if the client accepts that and it is long."""
    headers = {**(headers or {}), "vary": "accept-encoding", "content-type": media_type}
    accepted = request.headers.get("accept-encoding", "").lower()
    if len(content) >= _MIN_GZIP_BYTES and _ACCEPTS_GZIP.search(accepted):
        content = await run_in_threadpool(gzip.compress, content, _GZIP_LEVEL)
        headers["content-encoding"] = "gzip"
    return Response(content, headers=headers)


def json_response(
    value: Any, status: int = 200, headers: Optional[Mapping[str, str]] = None
) -> Response:
    """Returns a response with a JSON value."""
    return Response(messages.dump_json(value), status, headers, media_type="application/json")


def error_response(
    status: int, sentence: str, headers: Optional[Mapping[str, str]] = None
) -> Response:
    """Returns the response of an error."""
    return json_response({"error": sentence}, status, headers)
