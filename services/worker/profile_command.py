"""`fastserve profile`: measures the cost model of a model on this machine and writes it to a file."""

import datetime
import os
import sys
from collections.abc import Sequence

from services.domain.errors import FastServeError
from services.runtime.settings import load
from services.worker.environment import set_compute_environment
from services.worker.profile_file import write_profile
from services.worker.settings import ProfileSettings


def main(argv: Sequence[str] | None = None) -> int:
    """Measures anew, whatever was kept of earlier runs. The exit status: 0, or 1 with the reason in one line on
    stderr.
    """
    try:
        settings = load(ProfileSettings, "profile", sys.argv[1:] if argv is None else argv, os.environ)
        set_compute_environment()
        from services.worker.build import build

        built = build(settings, keep_profile=False)
        built.engine.close()
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        write_profile(settings.out, built.facts.profile, {**built.source, "measured_at": now})
    except FastServeError as error:
        print(f"fastserve profile: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
