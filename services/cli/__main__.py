"""The `fastserve` command. Each subcommand is a module that is imported only when it is called, so that `fastserve
generate` starts at once.
"""

import importlib
import sys

from services.runtime.command_line import CommandError, ExitCode, tell
from services.runtime.early_end import accept_stop_signals, end_on_stop_signals

# command -> (module with main(argv), one line of help)
COMMANDS: dict[str, tuple[str, str]] = {
    "up": ("services.cli.up.up_command", "run every service on this machine, each as its own process"),
    "gateway": ("services.gateway.__main__", "run one gateway"),
    "scheduler": ("services.scheduler.__main__", "run one scheduler"),
    "kvmanager": ("services.kvmanager.__main__", "run one KV manager"),
    "worker": ("services.worker.__main__", "run one worker"),
    "autoscale": ("services.autoscaler.__main__", "scale worker groups on Kubernetes as the scheduler's forecast asks"),
    "generate": ("services.cli.client.generate_command", "stream one completion to stdout"),
    "bench": ("services.cli.bench.bench_command", "run a trace or a generated workload against a server, open loop"),
    "simulate": (
        "services.cli.simulate.simulate_command",
        "simulate the policies on a virtual clock: which one, how many groups, how much memory",
    ),
    "figures": ("evaluation.command", "repeat the papers' evaluation by simulation: pictures, tables, a report"),
    "trace": (
        "services.cli.bench.trace_command",
        "convert a public trace into one that bench and simulate accept",
    ),
    "keys": ("services.cli.keys_command", "make, list and revoke the API keys of a gateway's file"),
    "plan": ("services.cli.plan_command", "show whether a model fits on these GPUs, and how much KV beside it"),
    "profile": ("services.worker.profile_command", "measure the cost model of a model on this machine"),
    "top": ("services.cli.client.top_command", "watch queues, jobs and KV residency live"),
    "replay": (
        "services.cli.simulate.replay_command",
        "decide a recorded run again and compare (see up --record)",
    ),
}


SERVICES = frozenset({"gateway", "scheduler", "kvmanager", "worker", "autoscale"})
"""Their containers begin with this command, and may be told to end at any moment."""


def usage() -> str:
    """What `fastserve --help` prints."""
    lines = ["usage: fastserve [--version] COMMAND [FLAGS]", "", "commands (see fastserve COMMAND --help):"]
    lines += [f"  {name:<10} {text}" for name, (_, text) in COMMANDS.items()]
    return "\n".join(lines)


def version() -> str:
    """The installed version."""
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as installed

    try:
        return installed("fastserve")
    except PackageNotFoundError:
        return "unknown (not installed)"


def run(command: str, argv: list[str]) -> int:
    """Run one command; its expected failures end as one line on stderr and an exit code."""
    try:
        module = importlib.import_module(COMMANDS[command][0])
        return int(module.main(argv))
    except CommandError as error:
        tell(command, str(error))
        return error.exit_code


def main(argv: list[str] | None = None) -> int:
    """Entry point of `fastserve`; returns the exit code."""
    arguments = sys.argv[1:] if argv is None else argv
    if argv is None:
        # Before a command's module is imported, which may take a second.
        (end_on_stop_signals if SERVICES.intersection(arguments[:1]) else accept_stop_signals)()
    try:
        return _main(arguments)
    except KeyboardInterrupt:
        # Also while a command's module is imported, which may take a second.
        return ExitCode.INTERRUPTED


def _main(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(usage())
        return ExitCode.OK if arguments else ExitCode.REFUSED
    if arguments[0] in ("-V", "--version"):
        print(f"fastserve {version()}")
        return ExitCode.OK
    if arguments[0] not in COMMANDS:
        print(f"fastserve: no command '{arguments[0]}' (see fastserve --help)", file=sys.stderr)
        return ExitCode.REFUSED
    return run(arguments[0], arguments[1:])


if __name__ == "__main__":
    sys.exit(main())
