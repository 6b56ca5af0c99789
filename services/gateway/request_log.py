"""What the log says of a request: its id beside every record of its call, and at level debug, and there alone, its
prompt.
"""

import logging
from collections.abc import Sequence

from services.domain.generation import GenerateRequest
from services.runtime.logs import log_about

_log = logging.getLogger(__name__)

MOST_SHOWN = 2048
"""Characters or token ids of a prompt."""


def log_opened(requests: Sequence[tuple[str, GenerateRequest]]) -> None:
    """A call has opened these requests, with their ids. What its task logs from now on is about the first."""
    log_about(request_id=requests[0][0])
    if not _log.isEnabledFor(logging.DEBUG):
        return
    for request_id, request in requests:
        prompt = (request.token_ids or ()) if request.text is None else request.text
        what = "characters" if request.text is not None else "token ids"
        ids = {"request_id": request_id}
        _log.debug("opened, %d %s: %r", len(prompt), what, prompt[:MOST_SHOWN], extra=ids)
