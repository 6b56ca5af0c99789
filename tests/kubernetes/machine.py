"""A cluster on this machine, in a network namespace of its own: the API server, containerd, and the stand-ins."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from tests.builders.repository_paths import ROOT
from tests.kubernetes.programs import IMAGED, IMAGES, PAUSE_IMAGE, PLUGINS, PROGRAMS, STUBS, WORK

GATEWAY = "10.244.0.1"
SERVICE_NET = "10.96.0.0/24"
PREFIX = "fastserve-test-"
"""Of the names of namespaces; the process id follows."""
NAMESPACES = Path("/run/netns")
GROUPS = Path("/sys/fs/cgroup")
NODES = ("node-a", "node-b")
START_LIMIT_S = 60.0
STOP_LIMIT_S = 20.0
RUN = WORK / "run"
STORE = WORK / "containerd"
PLUGIN_CONFIG = """{"cniVersion": "0.4.0", "name": "pods", "plugins": [
 {"type": "bridge", "bridge": "pods", "isGateway": true, "hairpinMode": true, "ipam": {"type": "host-local",
  "dataDir": "%s", "ranges": [[{"subnet": "10.244.0.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}},
 {"type": "portmap", "capabilities": {"portMappings": true}}]}
"""
RUNTIME_CONFIG = """version = 2
root = "{store}/root"
state = "{run}/containerd"
[grpc]
  address = "{socket}"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{pause}"
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{plugins}"
    conf_dir = "{run}/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        SystemdCgroup = false
"""


def _ip(*argv: str) -> None:
    subprocess.run(["ip", *argv], check=True, capture_output=True)


def wait_for(condition: Callable[[], object], what: str, limit_s: float, every_s: float = 0.02) -> float:
    """Seconds until it held, asked `every_s` seconds. Raises TimeoutError, naming `what`."""
    began_s = time.monotonic()
    while not condition():
        if time.monotonic() - began_s > limit_s:
            raise TimeoutError(f"{what}: not within {limit_s:g} s")
        time.sleep(every_s)
    return time.monotonic() - began_s


@contextmanager
def network() -> Iterator[str]:
    """A network namespace for this process's run; its name. Those of runs that are over are removed first."""
    for path in NAMESPACES.glob(f"{PREFIX}*") if NAMESPACES.exists() else ():
        if not Path("/proc", path.name.removeprefix(PREFIX)).exists():
            remove_network(path.name)
    name = f"{PREFIX}{os.getpid()}"
    before = set(NAMESPACES.glob("cni-*"))
    _ip("netns", "add", name)
    try:
        for words in (
            "link set lo up",
            "link add pods type bridge",
            f"addr add {GATEWAY}/24 dev pods",
            "link set pods up",
            f"route add {SERVICE_NET} dev pods",
        ):
            _ip("-n", name, *words.split())
        yield name
    finally:
        remove_network(name)
        # Where the pods' own ones were, for those whose mounts have ended with containerd.
        for path in set(NAMESPACES.glob("cni-*")) - before:
            path.unlink()


def remove_network(name: str) -> None:
    """End what runs in a namespace, and remove it with all that its pods left."""

    def killed() -> bool:
        told = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True).stdout.split()
        # Pods have networks of their own.
        for group in _groups(name):
            told += [pid for procs in group.rglob("cgroup.procs") for pid in procs.read_text().split()]
        for pid in set(told):
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        return not told

    wait_for(killed, f"the end of what runs in {name}", STOP_LIMIT_S)
    _ip("netns", "del", name)
    wait_for(lambda: all(_removed(group) for group in _groups(name)), f"the end of {name}", STOP_LIMIT_S)


def _groups(name: str) -> list[Path]:
    """The control groups of a run's pods: one of version 2, one for each controller of version 1."""
    return [*GROUPS.glob(name), *GROUPS.glob(f"*/{name}")]


def _removed(group: Path) -> bool:
    """Whether a control group could be removed, with those in it: its processes may just be ending."""
    folders = [group, *(path for path in group.rglob("*") if path.is_dir())]
    try:
        for folder in sorted(folders, reverse=True):
            folder.rmdir()
    except OSError:
        return False
    return True


def inside(name: str, argv: list[str]) -> list[str]:
    """The command that runs `argv` in a namespace. (`ip netns exec` would hide control groups.)"""
    return ["nsenter", f"--net={NAMESPACES / name}", *argv]


class Machine:
    """What runs. Made and used inside the namespace; `close` ends all of it."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._stack = ExitStack()
        self.api_server: subprocess.Popen[bytes] | None = None
        self._standin: subprocess.Popen[bytes] | None = None
        self.socket = RUN / "containerd.sock"
        self.claims = RUN / "claims"

    def start(self) -> None:
        """Everything, with the images in it. Raises TimeoutError, CalledProcessError."""
        shutil.rmtree(RUN, ignore_errors=True)
        for folder in ("api", "claims", "cni", "pods"):
            (RUN / folder).mkdir(parents=True)
        Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
        (RUN / "cni" / "10-bridge.conflist").write_text(PLUGIN_CONFIG % (RUN / "addresses"))
        config = RUNTIME_CONFIG.format(run=RUN, store=STORE, socket=self.socket, pause=PAUSE_IMAGE, plugins=PLUGINS)
        (RUN / "containerd.toml").write_text(config)
        # Its mounts are its own, so that nothing of them is left on the machine.
        own_mounts = ["unshare", "-m", "--propagation", "private"]
        self._spawn("containerd", [*own_mounts, "containerd", "-c", str(RUN / "containerd.toml")])
        self.api_server = self._spawn(
            "apiserver", [str(PROGRAMS / "apiserver"), "-dir", str(RUN / "api"), "-bind", GATEWAY]
        )
        wait_for(lambda: self._answers("version"), "containerd", START_LIMIT_S)
        self._remove_containers()  # of a run that was cut off
        self._import_images()
        wait_for(self._api_answers, "the API server", START_LIMIT_S)
        standin = [
            sys.executable,
            "-m",
            "tests.kubernetes.standin.standin_process",
            "--folder",
            str(RUN),
            "--gateway",
            GATEWAY,
        ]
        standin += ["--runtime", str(self.socket), "--cgroup", self._name, "--nodes", ",".join(NODES)]
        self._standin = self._spawn("standin", standin, PYTHONPATH=f"{STUBS}:{ROOT}:{ROOT / 'protos'}")
        wait_for(lambda: "ready" in (RUN / "standin.log").read_text(), "the stand-ins", START_LIMIT_S)

    def close(self) -> None:
        """End the stand-ins, then all containers, then what ran them."""
        if self._standin is not None:
            end(self._standin)
        self._remove_containers()
        self._stack.close()

    def _remove_containers(self) -> None:
        for kind, *flags in (("tasks", "--force"), ("containers",)):
            if found := self.ctr(kind, "ls", "-q").split():
                self.ctr(kind, "delete", *flags, *found)

    def ctr(self, *argv: str) -> str:
        """containerd's own command; its output, whether it succeeded or not."""
        return self._ctr(*argv).stdout

    def ctr_status(self, *argv: str) -> int:
        """The same, its exit status: that of the container for `tasks delete`."""
        return self._ctr(*argv).returncode

    def _ctr(self, *argv: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            ["ctr", "-a", str(self.socket), "-n", "k8s.io", *argv], capture_output=True, text=True, timeout=120
        )

    def pid_of(self, container_id: str) -> int:
        """Of a container's first process, on this machine."""
        for line in self.ctr("tasks", "ls").splitlines():
            words = line.split()
            if words[0] == container_id:
                return int(words[1])
        raise LookupError(f"no container {container_id} runs")

    def _answers(self, *argv: str) -> bool:
        return bool(self.ctr(*argv))

    def _api_answers(self) -> bool:
        kubeconfig = RUN / "api" / "kubeconfig"
        done = subprocess.run(
            ["kubectl", f"--kubeconfig={kubeconfig}", "get", "--raw", "/readyz"], capture_output=True, text=True
        )
        return kubeconfig.exists() and done.stdout == "ok"

    def _import_images(self) -> None:
        """Those that are not in the store in this version."""
        mark = STORE / "imported.digest"
        wanted = "".join((WORK / f"{name}.digest").read_text() for name in ("images", "pause"))
        if mark.exists() and mark.read_text() == wanted:
            return
        for name in (*IMAGED, "pause"):
            archive = str(IMAGES / f"{name}.tar")
            subprocess.run(
                ["ctr", "-a", str(self.socket), "-n", "k8s.io", "images", "import", archive],
                check=True,
                capture_output=True,
            )
        mark.write_text(wanted)

    def _spawn(self, name: str, argv: list[str], **environ: str) -> "subprocess.Popen[bytes]":
        log = self._stack.enter_context((RUN / f"{name}.log").open("wb"))
        process = subprocess.Popen(
            argv, stdout=log, stderr=log, cwd=ROOT, env={**os.environ, **environ}, start_new_session=True
        )
        self._stack.callback(end, process)
        return process


def end(process: "subprocess.Popen[bytes]") -> None:
    """It, however busy it is."""
    # One that a case of the test has stopped hears nothing else.
    process.send_signal(signal.SIGCONT)
    process.terminate()
    try:
        process.wait(STOP_LIMIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
