"""A real OCI registry on loopback, and images for it that are built from this machine's own files.

Debian's ``docker-registry`` serves; ``buildah`` builds, ``skopeo`` copies and deletes. All of it stays in one
folder: storage, configuration, temporary files. Nothing asks any network but loopback. What stays behind is
the note that these programs keep for root of which registry had which blob, in ``/var/lib/containers/cache``.

    registry.push(registry.image("busybox"), "team/tool", "1")       # -> sha256:...
    registry.push_index([...], "team/many", "1", docker=True)        # a Docker manifest list
    registry.name("team/tool", "1")                                  # 127.0.0.1:PORT/team/tool:1
    registry.environment                                             # for podman, skopeo, buildah
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import platform
import re
import shutil
import socket
import subprocess
import sys
import sysconfig
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.waiting import wait_until

PROGRAMS = ("docker-registry", "buildah", "skopeo", "busybox")
MANIFEST_TYPES = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
ARCHITECTURE = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
"""This machine's, as images name it."""
FOREIGN = "arm64" if ARCHITECTURE != "arm64" else "amd64"
"""An architecture that this machine does not have."""
CREDENTIALS = ("user", "secret-of-a-test")
"""Name and password of a private registry."""
_BCRYPT = "$2b$05$k5jL9a0KmphNms2bI1PnKeA0l3MkklwP9fyq7dg2bhHYhm4STSm9C"
_START_TRIES = 5
_BUSYBOX_LINKS = [
    "sh",
    "ls",
    "cat",
    "echo",
    "sleep",
    "env",
    "true",
    "false",
    "id",
    "mkdir",
    "touch",
    "head",
    "wc",
    "sha256sum",
]
_COREUTILS = [
    "basename",
    "cat",
    "chmod",
    "cp",
    "cut",
    "date",
    "dd",
    "df",
    "dirname",
    "du",
    "echo",
    "env",
    "expr",
    "false",
    "head",
    "id",
    "ln",
    "ls",
    "mkdir",
    "mktemp",
    "mv",
    "nproc",
    "printf",
    "pwd",
    "readlink",
    "realpath",
    "rm",
    "rmdir",
    "sed",
    "grep",
    "seq",
    "sha256sum",
    "sleep",
    "sort",
    "stat",
    "tail",
    "tee",
    "test",
    "timeout",
    "touch",
    "tr",
    "true",
    "uname",
    "wc",
    "yes",
]
_STDLIB_LEFT_OUT = {
    "__pycache__",
    "site-packages",
    "dist-packages",
    "test",
    "tests",
    "idlelib",
    "tkinter",
    "turtledemo",
    "lib2to3",
    "ensurepip",
    "pydoc_data",
    "distutils",
}


def missing_programs() -> list[str]:
    """Which programs `scripts/install-containers` would have to install."""
    return [name for name in PROGRAMS if shutil.which(name) is None]


@dataclass(frozen=True, slots=True)
class Image:
    """An image in the builder's storage; ``digest`` is that of its OCI manifest there."""

    name: str
    architecture: str


class Registry:
    """A running registry and a builder of images beside it; ``stop`` ends and removes all of it.

    A ``private`` one wants `CREDENTIALS` (HTTP Basic). It dies with this process (parent-death signal).
    """

    def __init__(self, *, private: bool = False) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="trainshed-registry-"))
        self.private = private
        self._images: dict[str, Image] = {}
        self._recipes: dict[str, Callable[[Path], None]] = {
            "busybox": busybox_tree,
            "python": python_tree,
        }
        try:
            self._server = self._start()
            self.environment = self._configure()
        except BaseException:
            shutil.rmtree(self.folder, ignore_errors=True)
            raise

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        return f"http://{self.host}"

    def name(self, repository: str, tag: str | None = None, digest: str | None = None) -> str:
        """An image's full name: with a tag, a digest, both or neither."""
        return f"{self.host}/{repository}" + (f":{tag}" if tag else "") + (f"@{digest}" if digest else "")

    def image(self, kind: str = "busybox", *, architecture: str | None = None, marker: str = "") -> Image:
        """An image, built at its first use. Equal arguments give equal digests.

        ``busybox`` has a shell and neither Bash nor Python; ``python`` has Bash, coreutils and this Python;
        ``empty`` has nothing. A ``marker`` is a text that one more layer puts into ``/marker``: images then
        differ. Another ``architecture`` changes only what the image says of itself.
        """
        said = architecture or ARCHITECTURE
        mark = hashlib.sha256(marker.encode()).hexdigest()[:12] if marker else "plain"
        key = f"{kind}-{said}-{mark}"
        if key not in self._images:
            base = self.image(kind, architecture=architecture) if marker else None
            with tempfile.TemporaryDirectory(dir=self.folder, prefix="tree-") as tree:
                root = Path(tree)
                root.chmod(0o755)
                if base is None:
                    self._recipes.get(kind, lambda _root: None)(root)
                else:
                    (root / "marker").write_text(marker)
                self._images[key] = self.build(key, root, base, architecture=said)
        return self._images[key]

    def build(
        self,
        name: str,
        root: Path,
        base: Image | None = None,
        *,
        architecture: str = ARCHITECTURE,
        system: str = "linux",
        **config: str,
    ) -> Image:
        """An image of one layer with everything below ``root``, above the layers of ``base``.

        ``config``: options of ``buildah config``.
        """
        container = self.run("buildah", "from", "scratch" if base is None else base.name).strip()
        settings = [f"--{key.replace('_', '-')}={value}" for key, value in config.items()]
        self.run("buildah", "copy", "--quiet", container, str(root), "/")
        self.run("buildah", "config", f"--arch={architecture}", f"--os={system}", *settings, container)
        self.run("buildah", "commit", "--quiet", "--rm", "--timestamp=0", container, f"localhost/{name}")
        return Image(f"localhost/{name}", architecture)

    def push(self, image: Image, repository: str, tag: str = "latest", *, docker: bool = False) -> str:
        """Push one image as an OCI manifest, or as Docker's version 2; answers its digest."""
        kind = "v2s2" if docker else "oci"
        target = f"docker://{self.name(repository, tag)}"
        self.run("buildah", "push", "--quiet", f"--format={kind}", *self._credentials, image.name, target)
        return self.digest(repository, tag)

    def push_index(
        self, images: Iterable[Image], repository: str, tag: str = "latest", *, docker: bool = False
    ) -> str:
        """Push several images as one OCI index, or as Docker's manifest list; answers the index's digest."""
        made = f"localhost/index-{hashlib.sha256(self.name(repository, tag).encode()).hexdigest()[:12]}"
        with contextlib.suppress(AssertionError):
            self.run("buildah", "manifest", "rm", made)
        self.run("buildah", "manifest", "create", made)
        for image in images:
            self.run("buildah", "manifest", "add", made, f"containers-storage:{image.name}")
        kind, target = "v2s2" if docker else "oci", f"docker://{self.name(repository, tag)}"
        options = ["--all", "--tls-verify=false", f"--format={kind}", *self._credentials]
        self.run("buildah", "manifest", "push", *options, made, target)
        self.run("buildah", "manifest", "rm", made)
        return self.digest(repository, tag)

    def retag(self, repository: str, old: str, new: str) -> str:
        """Make tag ``new`` name what ``old`` (a tag or a digest) names now."""
        kind, body = self._manifest(repository, old)
        self._call("PUT", f"/v2/{repository}/manifests/{new}", body, {"Content-Type": kind})
        return self.digest(repository, new)

    def delete(self, repository: str, reference: str) -> None:
        """Delete a manifest, with every tag that names it."""
        digest = reference if reference.startswith("sha256:") else self.digest(repository, reference)
        self._call("DELETE", f"/v2/{repository}/manifests/{digest}")

    def digest(self, repository: str, reference: str) -> str:
        """What ``reference`` names now, by its bytes."""
        return f"sha256:{hashlib.sha256(self._manifest(repository, reference)[1]).hexdigest()}"

    def manifest(self, repository: str, reference: str) -> Any:
        return json.loads(self._manifest(repository, reference)[1])

    def blob(self, digest: str) -> Path:
        """Where the registry keeps a blob or manifest, for tests that damage it."""
        value = digest.removeprefix("sha256:")
        place = "docker/registry/v2/blobs/sha256"
        return self.folder / "data" / place / value[:2] / value / "data"

    def requests(self) -> list[str]:
        """``METHOD /path`` of every request so far, those of the methods above included."""
        found = re.findall(r'"((?:GET|HEAD|PUT|POST|PATCH|DELETE) \S+) HTTP/', self._log.read_text())
        return [line for line in found if line != "GET /v2/"]

    def run(self, *command: str) -> str:
        """Run one of the programs with this registry's own configuration; answers its standard output."""
        done = subprocess.run(
            command, capture_output=True, text=True, env=self.environment, cwd=self.folder, check=False
        )
        if done.returncode != 0:
            raise AssertionError(f"{' '.join(command)}: exit code {done.returncode}\n{done.stderr}")
        return done.stdout

    def stop(self) -> None:
        self._server.terminate()
        try:
            self._server.wait(timeout=30)
        finally:
            self._server.kill()
            self._server.wait()
            _unmount_below(self.folder)
            shutil.rmtree(self.folder)

    def _start(self) -> subprocess.Popen[bytes]:
        for _ in range(_START_TRIES):
            server = self._try_to_start()
            if server is not None:
                return server
        raise AssertionError(f"the registry does not start: {self._log.read_text(errors='replace')}")

    def _try_to_start(self) -> subprocess.Popen[bytes] | None:
        """Start on a port that is free now; ``None`` if another program was faster."""
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        settings: dict[str, Any] = {
            "version": 0.1,
            "log": {"level": "warn", "accesslog": {"disabled": False}},
            "storage": {
                "filesystem": {"rootdirectory": str(self.folder / "data")},
                "delete": {"enabled": True},
                "maintenance": {"uploadpurging": {"enabled": False}},
            },
            "http": {"addr": self.host, "secret": "of a test"},
        }
        if self.private:
            path = self.folder / "htpasswd"
            path.write_text(f"{CREDENTIALS[0]}:{_BCRYPT}\n")
            settings["auth"] = {"htpasswd": {"realm": "test", "path": str(path)}}
        (self.folder / "registry.yml").write_text(json.dumps(settings))  # JSON is YAML
        prefix = ["setpriv", "--pdeathsig=TERM"] if shutil.which("setpriv") else []
        with self._log.open("wb") as log:
            server = subprocess.Popen(
                [*prefix, "docker-registry", "serve", str(self.folder / "registry.yml")],
                stdout=log,
                stderr=log,
                cwd=self.folder,
                env={"PATH": os.environ["PATH"], "HOME": str(self.folder), "OTEL_TRACES_EXPORTER": "none"},
            )

        def answers() -> bool:
            if server.poll() is not None:
                return True
            with contextlib.suppress(urllib.error.HTTPError):
                try:
                    urllib.request.urlopen(f"{self.url}/v2/", timeout=5).close()
                except urllib.error.URLError as error:
                    if isinstance(error, urllib.error.HTTPError):
                        raise
                    return False
            return True

        try:
            wait_until(answers, 30, "the registry to answer")
        except BaseException:
            server.kill()
            server.wait()
            raise
        return server if server.poll() is None else None

    def _configure(self) -> Mapping[str, str]:
        """Configuration of the container programs that touches nothing outside of this folder."""
        folder = self.folder
        (folder / "tmp").mkdir()
        files = {
            "storage.conf": f'[storage]\ndriver = "{_storage_driver()}"\ngraphroot = "{folder}/store"\n'
            f'runroot = "{folder}/run"\n',
            "registries.conf": "unqualified-search-registries = []\n"
            f'[[registry]]\nlocation = "{self.host}"\ninsecure = true\n',
            "containers.conf": '[containers]\ndefault_ulimits = ["nofile=20000:20000", "nproc=4096:4096"]\n'
            f'[engine]\ncgroup_manager = "cgroupfs"\nevents_logger = "file"\nruntime = "runc"\n'
            f'tmp_dir = "{folder}/run/libpod"\n',
            "policy.json": '{"default": [{"type": "insecureAcceptAnything"}]}',
        }
        for name, text in files.items():
            (folder / name).write_text(text)
        return {
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "TMPDIR": str(folder / "tmp"),
            "XDG_RUNTIME_DIR": str(folder / "run"),
            "CONTAINERS_STORAGE_CONF": str(folder / "storage.conf"),
            "CONTAINERS_REGISTRIES_CONF": str(folder / "registries.conf"),
            "CONTAINERS_CONF": str(folder / "containers.conf"),
            "BUILDAH_ISOLATION": "chroot",
        }

    def _manifest(self, repository: str, reference: str) -> tuple[str, bytes]:
        accept = {"Accept": ", ".join(MANIFEST_TYPES)}
        return self._call("GET", f"/v2/{repository}/manifests/{reference}", None, accept)

    def _call(
        self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> tuple[str, bytes]:
        request = urllib.request.Request(f"{self.url}{path}", body, dict(headers or {}), method=method)
        if self.private:
            token = ":".join(CREDENTIALS).encode()
            request.add_header("Authorization", f"Basic {base64.b64encode(token).decode()}")
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.headers.get("Content-Type", ""), answer.read()

    @property
    def _credentials(self) -> Sequence[str]:
        return [f"--creds={':'.join(CREDENTIALS)}"] if self.private else []

    @property
    def _log(self) -> Path:
        return self.folder / "log"


@contextlib.contextmanager
def running_registry(*, private: bool = False) -> Iterator[Registry]:
    registry = Registry(private=private)
    try:
        yield registry
    finally:
        registry.stop()


def busybox_tree(root: Path) -> None:
    """A shell and some programs in one static file; neither Bash nor Python."""
    program = shutil.which("busybox")
    assert program, "run scripts/install-containers"
    _standard_folders(root)
    shutil.copyfile(program, root / "bin" / "busybox")
    (root / "bin" / "busybox").chmod(0o755)
    for name in _BUSYBOX_LINKS:
        (root / "bin" / name).symlink_to("busybox")


def bash_tree(root: Path) -> None:
    """Bash, the libraries that it loads, and nothing else."""
    _standard_folders(root)
    program = Path(shutil.which("bash", path="/usr/bin:/bin") or "")
    for source in [program, *_libraries([program])]:
        target = root / ("bin/bash" if source == program else str(source).lstrip("/"))
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source.resolve(), target)
        target.chmod(0o755)


def python_tree(root: Path) -> None:
    """Bash, coreutils and the Python that runs the tests, with the shared libraries that they load."""
    _standard_folders(root)
    home = sysconfig.get_path("stdlib", vars={"base": sys.base_prefix, "installed_base": sys.base_prefix})
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    stdlib = root / "usr/local/lib" / version
    shutil.copytree(home, stdlib, ignore=_without_what_no_test_needs, symlinks=True)
    programs = {Path(sys.executable).resolve(): root / "usr/local/bin" / version}
    for name in ("bash", *_COREUTILS):
        if found := shutil.which(name, path="/usr/bin:/bin"):
            programs[Path(found)] = root / "bin" / name
    for source, target in programs.items():
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source.resolve(), target)
        target.chmod(0o755)
    (root / "bin/sh").symlink_to("bash")
    (root / "usr/local/bin/python3").symlink_to(version)
    libraries = _libraries([*programs, *Path(home, "lib-dynload").glob("*.so")])
    system = next(path.parent for path in libraries if path.name.startswith("libc.so"))
    for library in libraries:
        standard = any(library.is_relative_to(place) for place in ("/lib", "/usr/lib", "/lib64"))
        target = root / str(library if standard else system / library.name).lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(library.resolve(), target)
        target.chmod(0o755)


def _standard_folders(root: Path) -> None:
    for name in ("bin", "etc", "proc", "sys", "dev", "usr/bin", "root"):
        (root / name).mkdir(parents=True, exist_ok=True)
    (root / "tmp").mkdir()
    (root / "tmp").chmod(0o1777)
    (root / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534::/:/bin/false\n")
    (root / "etc/group").write_text("root:x:0:\nnogroup:x:65534:\n")


def _without_what_no_test_needs(folder: str, names: list[str]) -> set[str]:
    return {name for name in names if name in _STDLIB_LEFT_OUT or name.startswith("config-")}


def _libraries(programs: Iterable[Path]) -> set[Path]:
    """The shared libraries that ``ldd`` finds for any of these files, the loader included."""
    done = subprocess.run(["ldd", *map(str, programs)], capture_output=True, text=True, check=False)
    return {Path(found) for found in re.findall(r"(/\S+\.so\S*) \(0x", done.stdout)}


def _storage_driver() -> str:
    """Overlay mounts need root here; the plain driver copies and works for everybody."""
    return "overlay" if os.geteuid() == 0 else "vfs"


def _unmount_below(folder: Path) -> None:
    """A builder that was killed leaves its overlay mounted."""
    mounts = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
    for place in sorted((m for m in mounts if Path(m).is_relative_to(folder)), reverse=True):
        subprocess.run(["umount", "-l", place], check=False, capture_output=True)
