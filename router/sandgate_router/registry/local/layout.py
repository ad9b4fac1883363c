"""What the code inside an isolated sandbox sees of this machine.

Read-only: /usr, an /etc made here, the Python that runs the gateway, and the packages that
the runtime needs. They stand at fixed places (/opt/python, /opt/sandgate) wherever they lie
outside, so a virtual environment below /home or /tmp neither collides with the workspace nor
tells its owner's name. Nothing else of the machine is there.
"""

import importlib.util
import os
import shutil
import site
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

USER_ID = 1000
"""The user's number inside; outside it is the gateway's user, or one of `users`."""

HOME = "/home/user"
PACKAGES = "/opt/sandgate"
PYTHON = f"{PACKAGES}/bin/python"
_RELOCATED_PREFIX = "/opt/python"
_USR_LINKS = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")

_ETC = {
    "passwd": f"user:x:{USER_ID}:{USER_ID}:user:{HOME}:/bin/bash\n"
    "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
    "group": f"user:x:{USER_ID}:\nnogroup:x:65534:\n",
    "hosts": "127.0.0.1 localhost sandbox\n::1 localhost\n",
    "hostname": "sandbox\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\nservices: files\n",
}
_ETC_COPIES = ("ld.so.cache", "localtime", "ssl/openssl.cnf", "ssl/certs/ca-certificates.crt")
"""What programs in /usr look for; none holds a secret, each is readable by everyone."""

_ONLINE_ETC_COPIES = ("resolv.conf", "hosts")


@dataclass(frozen=True, slots=True)
class Bind:
    """A folder of the machine, shown read-only at a place inside."""

    source: str
    dest: str


@dataclass(frozen=True, slots=True)
class Layout:
    """All that is shown, and where Python's programs are."""

    binds: tuple[Bind, ...]
    """To be mounted in this order; later ones lie within earlier ones."""
    links: tuple[tuple[str, str], ...]
    """Symbolic links at the root, as (target, place)."""
    search_path: str
    online_binds: tuple[Bind, ...] = ()
    """The same with an /etc that finds names in the machine's network, as it was at the start."""

    @property
    def sources(self) -> list[str]:
        """All folders of the machine that are shown to any sandbox."""
        return list(dict.fromkeys(bind.source for bind in (*self.binds, *self.online_binds)))


def build_layout(skeleton: Path) -> Layout:
    """Write the files that are made, below `skeleton`, and return the whole layout.

    Raises:
        ModuleNotFoundError: sandgate_runtime is not installed beside the gateway.
    """
    prefix, prefix_binds = _python_prefix()
    packages = _package_folders()
    _write_etc(skeleton / "etc")
    _write_online_etc(skeleton / "etc", skeleton / "online-etc")
    package_binds = _write_packages(skeleton / "packages", prefix, packages)
    usr, links = _usr()
    binds = (
        *usr,
        Bind(str(skeleton / "etc"), "/etc"),
        *prefix_binds,
        Bind(str(skeleton / "packages"), PACKAGES),
        *package_binds,
    )
    online = {str(skeleton / "etc"): str(skeleton / "online-etc")}
    online_binds = tuple(Bind(online.get(bind.source, bind.source), bind.dest) for bind in binds)
    search_path = "/usr/local/bin:/usr/bin:/bin"
    if prefix not in {"/usr", "/usr/local"}:
        search_path += f":{prefix}/bin"
    return Layout(binds, links, search_path, online_binds)


def runtime_folder() -> Path:
    """Return the folder of the runtime's package; raise ModuleNotFoundError without one."""
    spec = importlib.util.find_spec("sandgate_runtime")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(
            "sandgate_runtime is not installed; install sandgate[gateway]", name="sandgate_runtime"
        )
    return Path(spec.origin).parent


def _usr() -> tuple[list[Bind], tuple[tuple[str, str], ...]]:
    binds, links = [Bind("/usr", "/usr")], []
    for name in _USR_LINKS:
        place = Path("/", name)
        if place.is_symlink():
            links.append((str(place.readlink()).lstrip("/"), str(place)))
        elif place.is_dir():  # a system from before the merge of / and /usr
            binds.append(Bind(str(place), str(place)))
    return binds, tuple(links)


def _python_prefix() -> tuple[str, list[Bind]]:
    prefix = os.path.realpath(sys.base_prefix)
    if _in_usr(prefix):
        return prefix, []
    # A shared libpython is often found by an absolute path in the program (RUNPATH).
    shared = bool(sysconfig.get_config_var("Py_ENABLE_SHARED"))
    inside = prefix if shared else _RELOCATED_PREFIX
    # Only these: a prefix may be someone's whole home folder.
    parts = [part for part in ("bin", "lib", "lib64") if Path(prefix, part).is_dir()]
    return inside, [Bind(f"{prefix}/{part}", f"{inside}/{part}") for part in parts]


def _package_folders() -> list[str]:
    schemes = (sysconfig.get_path("purelib"), sysconfig.get_path("platlib"))
    folders = dict.fromkeys(map(os.path.realpath, (*schemes, *site.getsitepackages())))
    return [folder for folder in folders if Path(folder).is_dir()]


def _write_packages(root: Path, prefix: str, folders: list[str]) -> list[Bind]:
    """Write a virtual environment whose path file names the folders, and return their binds.

    Folders that a path file names are not searched for more path files, so nothing of the
    gateway's own environment (editable installs, start-up hooks) runs inside.
    """
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    runtime = "runtime/sandgate_runtime"
    binds, lines = [Bind(str(runtime_folder()), f"{PACKAGES}/{runtime}")], [f"{PACKAGES}/runtime"]
    for number, folder in enumerate(folders):
        if _in_usr(folder):
            lines.append(folder)
            continue
        (root / "site" / str(number)).mkdir(parents=True)
        binds.append(Bind(folder, f"{PACKAGES}/site/{number}"))
        lines.append(f"{PACKAGES}/site/{number}")
    (root / runtime).mkdir(parents=True)
    (root / "bin").mkdir()
    (root / "bin" / "python").symlink_to(f"{prefix}/bin/{version}")
    # Left out, the second line would mean `true`, and what the Python itself has installed run.
    (root / "pyvenv.cfg").write_text(f"home = {prefix}/bin\ninclude-system-site-packages = false\n")
    installed = root / "lib" / version / "site-packages"
    installed.mkdir(parents=True)
    (installed / "sandgate.pth").write_text("".join(f"{line}\n" for line in lines))
    _make_readable(root)
    return binds


def _write_etc(root: Path) -> None:
    root.mkdir(parents=True)
    for name, content in _ETC.items():
        (root / name).write_text(content)
    for name in _ETC_COPIES:
        source = Path("/etc", name)
        if source.is_file():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, root / name)
    if Path("/etc/alternatives").is_dir():
        shutil.copytree("/etc/alternatives", root / "alternatives", symlinks=True)
    (root / "mtab").symlink_to("../proc/self/mounts")
    (root / "os-release").symlink_to("../usr/lib/os-release")
    _make_readable(root)


def _write_online_etc(offline: Path, root: Path) -> None:
    shutil.copytree(offline, root, symlinks=True)
    for name in _ONLINE_ETC_COPIES:
        source = Path("/etc", name)
        if source.is_file():
            shutil.copyfile(source, root / name)
    names = _ETC["nsswitch.conf"].replace("hosts: files", "hosts: files dns")
    (root / "nsswitch.conf").write_text(names)
    _make_readable(root)


def _make_readable(root: Path) -> None:
    # The gateway may run under any umask, the sandbox runs as another user.
    for folder, _, files in os.walk(root):
        Path(folder).chmod(0o755)
        for name in files:
            path = Path(folder, name)
            if not path.is_symlink():
                path.chmod(0o644)


def _in_usr(path: str) -> bool:
    return path == "/usr" or path.startswith("/usr/")
