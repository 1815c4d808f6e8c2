"""Recognizes answers that do not come from an S3 server, such as the login page of a proxy.

Invariant: a request counts as executed only if its answer contains what every S3 server sends. botocore accepts any
answer with a status of success: it regards a page in XHTML as an empty listing, or as the answer to an upload.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

# The elements by operation of which the parsed answer contains at least one.
_ELEMENTS: Mapping[str, tuple[str, ...]] = {
    "ListObjectsV2": ("IsTruncated", "Name"),
    "ListMultipartUploads": ("IsTruncated", "Bucket"),
    "CreateMultipartUpload": ("UploadId",),
    "CopyObject": ("CopyObjectResult",),
    "UploadPartCopy": ("CopyPartResult",),
    **dict.fromkeys(("PutObject", "UploadPart", "CompleteMultipartUpload", "GetObject", "HeadObject"), ("ETag",)),
}


def is_from_s3(operation: str, parsed: Mapping[str, Any], content: Callable[[], bytes]) -> bool:
    """Return whether a successful answer comes from an S3 server.

    `operation` is the name in botocore, `parsed` the answer as botocore returns it, and `content` returns its body.
    """
    if operation == "DeleteObjects":
        return b"DeleteResult" in content()
    if operation == "AbortMultipartUpload":
        return not content()
    elements = _ELEMENTS.get(operation)
    if elements is None:
        return True
    return any(
        "ETag" in parsed[element] if element.endswith("Result") else True for element in elements if element in parsed
    )


def is_page(operation: str, error: Mapping[str, Any]) -> bool:
    """Return whether the answer that botocore has raised as an error is a page in HTML."""
    headers = error.get("ResponseMetadata", {}).get("HTTPHeaders", {})
    code = str(error.get("Error", {}).get("Code", ""))
    is_known = bool(code) and not code.isdecimal()
    # The answer to HEAD has no body; some servers name HTML as its type.
    return "html" in headers.get("content-type", "") and not is_known and not operation.startswith("Head")
