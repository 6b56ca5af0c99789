"""Checks rules and dashboard with Prometheus' own programs: `make monitoring`.

promtool checks the rules and runs their tests; then a real Prometheus watches a server (live_check.py), which takes
three minutes, and a picture of the dashboard is drawn if `--picture` names a file. Without promtool or prometheus, and
without Go to build them, a line says what was left out, and the exit status is 3.
"""

import argparse
import asyncio
import subprocess
import sys
import tempfile
from pathlib import Path

from deploy.grafana.prometheus_tools import ToolMissingError, tool
from services.runtime.command_line import CommandError

FOLDER = Path(__file__).resolve().parent
LEFT_OUT = 3


def promtool_faults() -> list[str]:
    """What promtool has to say against the rules, their tests and the example's configuration."""
    program = tool("promtool")
    faults = []
    for words in (
        ("check", "rules", "rules.yml"),
        ("test", "rules", "rules_test.yml"),
        ("check", "config", "--syntax-only", "prometheus.yml"),
    ):
        done = subprocess.run([program, *words], cwd=FOLDER, capture_output=True, text=True)
        print(f"promtool {' '.join(words)}: {'right' if done.returncode == 0 else 'WRONG'}", flush=True)
        if done.returncode != 0:
            faults.append(f"{done.stdout}{done.stderr}".strip())
    return faults


def live_faults(picture: Path | None) -> list[str]:
    """What is wrong in a live run."""
    from deploy.grafana.live_check import check_live
    from deploy.grafana.picture import draw_dashboard
    from deploy.grafana.prometheus_process import RunningPrometheus

    def draw(prometheus: RunningPrometheus, from_s: float, to_s: float) -> None:
        if picture is not None:
            draw_dashboard(prometheus, from_s, to_s, picture)
            print(f"drew {picture}", flush=True)

    tool("prometheus")
    with tempfile.TemporaryDirectory(prefix="fastserve-monitoring-") as folder:
        return asyncio.run(check_live(Path(folder), lambda line: print(line, flush=True), draw))


def main() -> int:
    """0: all is right; 1: something is wrong; 3: something was left out."""
    parser = argparse.ArgumentParser(prog="python -m deploy.grafana.check", description=__doc__)
    parser.add_argument("--picture", type=Path, metavar="FILE", help="draw the dashboard of the live run into this PNG")
    parser.add_argument("--rules-only", action="store_true", help="promtool alone: seconds, once it is there")
    arguments = parser.parse_args()
    try:
        faults = promtool_faults()
        if not arguments.rules_only:
            faults += live_faults(arguments.picture)
    except ToolMissingError as error:
        print(f"left out: {error}", file=sys.stderr)
        return LEFT_OUT
    except (CommandError, TimeoutError) as error:
        faults = [str(error)]
    for fault in faults:
        print(f"wrong: {fault}", file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
