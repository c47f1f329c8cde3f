"""Control groups of one attempt, through version 1 and version 2 hierarchies behind one interface.

Limits go through whichever hierarchy holds the controller. Killing goes through version 2
(``cgroup.kill``) wherever that is mounted, even without controllers; else through the version 1
freezer; else by signalling the members until none is left.
"""

from __future__ import annotations

import os
import signal
import time

from trainshed.jobkit import procs

MIB = 1 << 20
CPU_PERIOD_US = 100_000
CONTROLLERS = ("memory", "pids", "cpu")
NOT_ENFORCED = "not enforced"
_LINKS_OF_A_LEAF = 2

TYPE_CHECKING = False
if TYPE_CHECKING:
    from trainshed.jobkit.folder import Json


def _read(path: str) -> str:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        parts = []
        while part := os.read(fd, 1 << 16):
            parts.append(part)
    finally:
        os.close(fd)
    return b"".join(parts).decode()


def _write(path: str, value: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, value.encode())
    finally:
        os.close(fd)


def _tries(path: str, value: str) -> bool:
    try:
        _write(path, value)
    except OSError:
        return False
    return True


def _field(path: str, name: str) -> int:
    """The number behind ``name`` in a file of ``name number`` lines; 0 if it is not there."""
    try:
        lines = _read(path).splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.split()[:1] == [name]), 0)


def _tree(path: str) -> list[str]:
    """``path`` and the groups below it, deepest first; empty if there is no such group."""
    try:
        if os.stat(path).st_nlink == _LINKS_OF_A_LEAF:
            return [path]
    except OSError:
        return []
    return [folder for folder, _, _ in os.walk(path, topdown=False)]


class Layout:
    """Where the groups of one Trainshed instance may be made on this machine."""

    __slots__ = ("v1", "v2", "v2_controllers")

    def __init__(self, v2: str | None, v2_controllers: tuple[str, ...], v1: dict[str, str]) -> None:
        self.v2 = v2
        self.v2_controllers = v2_controllers
        self.v1 = v1

    def to_json(self) -> Json:
        """The form in which the engine hands a layout to the shim."""
        return {"v2": self.v2, "v2_controllers": list(self.v2_controllers), "v1": self.v1}

    @classmethod
    def from_json(cls, value: Json) -> Layout:
        """The inverse of `to_json`."""
        return cls(value["v2"], tuple(value["v2_controllers"]), value["v1"])

    def parents(self) -> list[str]:
        """The directories that hold the attempts' groups, each once."""
        return list(dict.fromkeys(([self.v2] if self.v2 else []) + list(self.v1.values())))

    def source(self, controller: str) -> str:
        """How a controller is reached: ``cgroup-v2``, ``cgroup-v1`` or ``not enforced``."""
        if controller in self.v2_controllers:
            return "cgroup-v2"
        return "cgroup-v1" if controller in self.v1 else NOT_ENFORCED

    def killing(self) -> str:
        """How a whole group is killed."""
        if self.v2:
            return "cgroup-v2"
        if "freezer" in self.v1:
            return "cgroup-v1"
        return "cgroup-v1 members" if self.v1 else "process tree"

    def names(self) -> set[str]:
        """The names of all groups there are now."""
        found: set[str] = set()
        for parent in self.parents():
            try:
                found.update(entry.name for entry in os.scandir(parent) if entry.is_dir())
            except OSError:
                continue
        return found

    def remove_parents(self) -> None:
        """Remove our own empty parent groups; full ones stay."""
        for parent in self.parents():
            for path in (parent, os.path.dirname(parent)):
                try:
                    os.rmdir(path)
                except OSError:
                    break


def detect(
    instance: str, *, mountinfo: str = "/proc/self/mountinfo", own: str = "/proc/self/cgroup"
) -> Layout:
    """Find the hierarchies in which ``trainshed/<instance>/`` can be made, and make it.

    Groups at the top of a hierarchy are preferred, so that attempts outlive the service that
    started them; where only our own group is ours to divide (delegation), they go below it.
    """
    own_paths = _own_paths(own)
    v2: str | None = None
    v2_controllers: tuple[str, ...] = ()
    v1: dict[str, str] = {}
    mounts = _mounts(mountinfo)
    for mount, kind, _ in mounts:
        if kind == "cgroup2" and v2 is None:
            v2 = _make_parent(mount, own_paths.get("", "/"), instance)
            v2_controllers = _delegate(v2) if v2 else ()
    # With version 2 killing goes through it, and no freezer is needed.
    wanted = set(CONTROLLERS) - set(v2_controllers) | (set() if v2 else {"freezer"})
    for mount, kind, options in mounts:
        for controller in sorted(wanted & set(options.split(","))) if kind == "cgroup" else ():
            parent = _make_parent(mount, own_paths.get(controller, "/"), instance)
            if parent:
                v1[controller] = parent
    return Layout(v2, v2_controllers, v1)


def hierarchies(mountinfo: str = "/proc/self/mountinfo") -> list[str]:
    """Where hierarchies of either version are mounted."""
    return [mount for mount, _, _ in _mounts(mountinfo)]


def versions(mountinfo: str = "/proc/self/mountinfo") -> set[str]:
    """Which versions are mounted: ``cgroup``, ``cgroup2`` or both ("hybrid")."""
    return {kind for _, kind, _ in _mounts(mountinfo)}


def remove_tree(path: str) -> bool:
    """Remove a group and those below it; whether nothing is left of it."""
    for folder in _tree(path):
        try:
            os.rmdir(folder)
        except OSError:
            continue
    return not os.path.isdir(path)


def _own_paths(path: str) -> dict[str, str]:
    """Our own group by controller; the version 2 one under the empty name."""
    found: dict[str, str] = {}
    try:
        lines = _read(path).splitlines()
    except OSError:
        return found
    for line in lines:
        _, controllers, group = line.split(":", 2)
        for controller in controllers.split(","):
            found[controller] = group
    return found


def _mounts(path: str) -> list[tuple[str, str, str]]:
    """Mounted hierarchies as ``(mount point, type, super options)``."""
    found = []
    try:
        lines = _read(path).splitlines()
    except OSError:
        return []
    for line in lines:
        left, _, right = line.partition(" - ")
        kind, _, options = right.split(" ", 2)
        if kind in {"cgroup", "cgroup2"}:
            found.append((left.split(" ")[4], kind, options))
    return found


def _make_parent(mount: str, own: str, instance: str) -> str | None:
    for base in dict.fromkeys((mount, os.path.normpath(mount + "/" + own))):
        parent = os.path.join(base, "trainshed", instance)
        try:
            os.makedirs(parent, exist_ok=True)
        except OSError:
            continue
        if os.access(os.path.join(parent, "cgroup.procs"), os.W_OK):
            return parent
    return None


def _delegate(parent: str) -> tuple[str, ...]:
    """Switch the controllers on from the group above ``trainshed`` downwards; say which are on."""
    middle = os.path.dirname(parent)
    for path in (os.path.dirname(middle), middle, parent):
        switch = os.path.join(path, "cgroup.subtree_control")
        if not _tries(switch, " ".join("+" + controller for controller in CONTROLLERS)):
            for controller in CONTROLLERS:
                _tries(switch, "+" + controller)
    try:
        on = _read(os.path.join(parent, "cgroup.subtree_control")).replace("+", "").split()
    except OSError:
        return ()
    return tuple(name for name in CONTROLLERS if name in on)


class Group:
    """The groups of one attempt, one in each hierarchy of the layout, seen as one."""

    __slots__ = ("_layout", "_paths", "name")

    def __init__(self, layout: Layout, name: str) -> None:
        self.name = name
        self._layout = layout
        self._paths = [os.path.join(parent, name) for parent in layout.parents()]

    def _file(self, controller: str, v1_name: str, v2_name: str) -> str | None:
        layout = self._layout
        if controller in layout.v2_controllers and layout.v2:
            return os.path.join(layout.v2, self.name, v2_name)
        if controller in layout.v1:
            return os.path.join(layout.v1[controller], self.name, v1_name)
        return None

    def create(self, *, memory_mb: int, pids: int, cpus: int) -> dict[str, str]:
        """Make the groups and set their limits; say how each limit is enforced."""
        for path in self._paths:
            os.makedirs(path, exist_ok=True)
        quota = cpus * CPU_PERIOD_US
        done = {"memory": False, "pids": False, "cpus": False}
        limit = str(memory_mb * MIB)
        memory = self._file("memory", "memory.limit_in_bytes", "memory.max")
        if memory:
            done["memory"] = _tries(memory, limit)
            # Swap would let a program outgrow its limit; kernels without swap accounting lack the file.
            if memory.endswith(".max"):
                _tries(memory.replace("memory.max", "memory.swap.max"), "0")
            else:
                _tries(memory.replace("memory.limit", "memory.memsw.limit"), limit)
        members = self._file("pids", "pids.max", "pids.max")
        if members:
            done["pids"] = _tries(members, str(pids))
        cpu = self._file("cpu", "cpu.cfs_quota_us", "cpu.max")
        if cpu:
            done["cpus"] = _tries(cpu, f"{quota} {CPU_PERIOD_US}" if cpu.endswith(".max") else str(quota))
        source = {name: self._layout.source("cpu" if name == "cpus" else name) for name in done}
        return {name: source[name] if set_ else NOT_ENFORCED for name, set_ in done.items()}

    def enter(self) -> None:
        """Move this process, which has one thread, into the groups that it was not born in.

        Version 1 lets a thread move itself (``tasks``) without the grace period that moving a whole
        process (``cgroup.procs``) waits for.
        """
        for path in self._paths:
            tasks = os.path.join(path, "tasks")
            if os.path.exists(tasks):
                _write(tasks, "0")
            elif not _own_paths("/proc/self/cgroup").get("", "").endswith("/" + self.name):
                _write(os.path.join(path, "cgroup.procs"), "0")

    def adopt(self, pids: list[int]) -> None:
        """Move other processes into the groups; whoever is gone needs no moving."""
        for path in self._paths:
            for pid in pids:
                try:
                    _write(os.path.join(path, "cgroup.procs"), str(pid))
                except ProcessLookupError:
                    continue

    def exists(self) -> bool:
        """Whether any of the groups is there."""
        return any(os.path.isdir(path) for path in self._paths)

    def pids(self) -> set[int]:
        """The members, those of groups below included."""
        found: set[int] = set()
        for path in self._paths:
            for folder in _tree(path):
                try:
                    found.update(map(int, _read(os.path.join(folder, "cgroup.procs")).split()))
                except OSError:
                    continue
        return found

    def kill(self) -> int:
        """SIGKILL every member once; returns how many there were."""
        members = self.pids()
        if not members:
            return 0
        freezer = self._layout.v1.get("freezer")
        state = os.path.join(freezer, self.name, "freezer.state") if freezer else None
        if self._layout.v2:
            _tries(os.path.join(self._layout.v2, self.name, "cgroup.kill"), "1")
        elif state:
            _tries(state, "FROZEN")
        # Also whoever was moved out of the group that has the switch, or all where there is none.
        for pid in self.pids():
            procs.send(pid, signal.SIGKILL)
        if state:
            _tries(state, "THAWED")
        return len(members)

    def kill_until_empty(self, seconds: float) -> tuple[int, bool]:
        """Kill until no member is left or the time is up: ``(killed, empty)``."""
        killed: set[int] = set()
        deadline = time.monotonic() + seconds
        pause = 0.0005
        while members := self.pids():
            killed |= members
            self.kill()
            if time.monotonic() >= deadline:
                return len(killed), False
            time.sleep(pause)
            pause = min(pause * 2, 0.05)
        return len(killed), True

    def out_of_memory_kills(self) -> int:
        """How many processes the kernel killed at the memory limit."""
        path = self._file("memory", "memory.oom_control", "memory.events")
        return _field(path, "oom_kill") if path else 0

    def max_memory_bytes(self) -> int | None:
        """The most memory held at any time, page cache included."""
        path = self._file("memory", "memory.max_usage_in_bytes", "memory.peak")
        try:
            return int(_read(path)) if path else None
        except OSError:
            return None

    def remove(self, seconds: float = 0.0) -> bool:
        """Remove the groups, and those made below them; tries for up to ``seconds``."""
        deadline = time.monotonic() + seconds
        while True:
            left = [path for path in self._paths if not remove_tree(path)]
            if not left:
                return True
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.002)
