"""Builds the images of all services and prints their sizes: `make images`.

Needs a docker daemon. Where none answers but `dockerd` is installed, one is started for the time of the build, on a
socket below build/. A base image that is neither there nor to be pulled is made of Debian's packages by debootstrap.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from deploy.images.wheelhouses import EXTRAS, ROOT, build_own_wheel, fill

BASE = "python:3.11-slim-bookworm"
OWN_BASE = "fastserve/base:bookworm"
"""Stands for BASE where that can't be had: Debian with its Python 3.11, its certificates and nothing else."""
DAEMON_LIMIT_S = 30.0
MOST_MB_OVER_BASE = {"gateway": 110, "scheduler": 180, "kvmanager": 110}


class Docker:
    """The docker command, speaking to one daemon."""

    def __init__(self, socket: Path | None = None) -> None:
        # Debian's own client has a builder in it; others look for one as a plugin.
        command = "/usr/bin/docker" if Path("/usr/bin/docker").exists() else "docker"
        self._argv = [command] if socket is None else [command, "-H", f"unix://{socket}"]

    def run(self, *argv: str, quiet: bool = False) -> str:
        """Standard output. Raises CalledProcessError."""
        done = subprocess.run(
            [*self._argv, *argv],
            check=True,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL if quiet else None,
            cwd=ROOT,
        )
        return done.stdout.strip()

    def answers(self) -> bool:
        """Whether the daemon is there."""
        try:
            self.run("version", "--format", "{{.Server.Version}}", quiet=True)
        except (OSError, subprocess.CalledProcessError):
            return False
        return True

    def has_image(self, tag: str) -> bool:
        """Whether the image is there."""
        try:
            self.run("image", "inspect", tag, quiet=True)
        except subprocess.CalledProcessError:
            return False
        return True

    def size_mb(self, tag: str) -> float:
        """Bytes of all layers, in units of 1,000,000."""
        return int(self.run("image", "inspect", "--format", "{{.Size}}", tag)) / 1e6


@contextmanager
def daemon() -> Iterator[Docker]:
    """The machine's docker, or one of our own for as long as it is needed."""
    if Docker().answers():
        yield Docker()
        return
    if shutil.which("dockerd") is None or os.getuid() != 0:
        raise SystemExit(
            "make images: no docker daemon answers. Start one, or as root: "
            "apt-get install --no-install-recommends docker.io containerd runc debootstrap"
        )
    folder = ROOT / "build" / "docker"
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="fastserve-docker-") as short:
        socket = Path(short) / "docker.sock"
        argv = [
            "dockerd",
            "-H",
            f"unix://{socket}",
            "--data-root",
            str(folder / "data"),
            "--exec-root",
            f"{short}/exec",
        ]
        argv += ["--pidfile", f"{short}/pid", "--bridge", "none", "--iptables=false", "--ip6tables=false"]
        with (folder / "dockerd.log").open("wb") as log:
            process = subprocess.Popen(argv, stdout=log, stderr=log, start_new_session=True)
        try:
            docker = Docker(socket)
            end_s = time.monotonic() + DAEMON_LIMIT_S
            while not docker.answers():
                if process.poll() is not None or time.monotonic() > end_s:
                    raise SystemExit(f"make images: dockerd does not start, see {folder / 'dockerd.log'}")
                time.sleep(0.1)
            yield docker
        finally:
            process.terminate()
            process.wait(DAEMON_LIMIT_S)


def base_image(docker: Docker, wanted: str) -> str:
    """The tag of the base image: the wanted one if it is there or can be pulled, else Debian's own Python."""
    if docker.has_image(wanted):
        return wanted
    try:
        docker.run("pull", "--quiet", wanted, quiet=True)
        return wanted
    except subprocess.CalledProcessError:
        pass
    if not docker.has_image(OWN_BASE):
        if shutil.which("debootstrap") is None:
            raise SystemExit(f"make images: {wanted} can't be pulled, and there is no debootstrap to make a base with")
        print(f"{wanted} can't be pulled: the base is made by debootstrap", flush=True)
        with tempfile.TemporaryDirectory(prefix="fastserve-base-") as folder:
            packages = "--include=python3,python3-venv,ca-certificates"
            argv = ["debootstrap", "--variant=minbase", packages, "bookworm", folder]
            subprocess.run(argv, check=True, stdout=subprocess.DEVNULL)
            shutil.rmtree(Path(folder, "var/cache/apt"), ignore_errors=True)
            shutil.rmtree(Path(folder, "var/lib/apt/lists"), ignore_errors=True)
            archive = subprocess.Popen(["tar", "-C", folder, "-c", "."], stdout=subprocess.PIPE)
            subprocess.run([*docker._argv, "import", "-", OWN_BASE], check=True, stdin=archive.stdout)
            archive.wait()
    return OWN_BASE


def build(docker: Docker, service: str, tag: str, base: str) -> str:
    """Build one image; its tag."""
    name = f"fastserve/{service}:{tag}"
    file = f"docker/{service}.Dockerfile"
    os.environ["DOCKER_BUILDKIT"] = "1"
    docker.run(
        "build", "--quiet", "--network", "none", "--build-arg", f"PYTHON_IMAGE={base}", "-f", file, "-t", name, "."
    )
    return name


def main() -> int:
    """Build the images that are asked for; 1 if one is larger than it may be."""
    parser = argparse.ArgumentParser(prog="make images", description=__doc__)
    parser.add_argument("services", nargs="*", choices=[*EXTRAS, []], help="[all]")
    parser.add_argument("--base", default=BASE, help=f"base image [{BASE}]")
    parser.add_argument("--tag", default="dev", help="tag of the images [dev]")
    parser.add_argument("--torch", choices=("image", "mounted"), default="image", help="where the worker's torch is")
    parser.add_argument("--save", type=Path, help="folder for the images as archives")
    args = parser.parse_args()
    own = build_own_wheel()
    too_large = 0
    with daemon() as docker:
        base = base_image(docker, args.base)
        base_mb = docker.size_mb(base)
        print(f"{'image':<32} {'MB':>7} {'over base':>10}", flush=True)
        print(f"{base:<32} {base_mb:7.0f}", flush=True)
        for service in args.services or EXTRAS:
            fill(service, own, without_torch=args.torch == "mounted" and service == "worker")
            name = build(docker, service, args.tag, base)
            over_mb = docker.size_mb(name) - base_mb
            most_mb = MOST_MB_OVER_BASE.get(service)
            note = "" if most_mb is None or over_mb <= most_mb else f"  too large: at most {most_mb}"
            too_large += bool(note)
            print(f"{name:<32} {base_mb + over_mb:7.0f} {over_mb:10.0f}{note}", flush=True)
            if args.save:
                args.save.mkdir(parents=True, exist_ok=True)
                docker.run("save", "-o", str(args.save / f"{service}.tar"), name)
    return 1 if too_large else 0


if __name__ == "__main__":
    sys.exit(main())
