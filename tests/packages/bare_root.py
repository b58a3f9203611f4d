"""A folder that a program sees as the whole machine, without network: for tests of packages, which must bring all that they
need. It holds only the programs that the test names, with the shared libraries of those."""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile

SYSTEM_PATH = "/usr/bin:/bin:/usr/sbin:/sbin"
SKIPPED = 77  # exit code of a test that cannot run here


def skip(why):
    print(f"skipped: {why}")
    sys.exit(SKIPPED)


def libraries_of(program):
    """The shared libraries of a program, the dynamic linker included."""
    listed = subprocess.run(["ldd", program], capture_output=True, text=True, check=False).stdout
    return re.findall(r"(/\S+) \(0x", listed)


class BareRoot:
    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        for name in ("tmp", "dev", "proc", "etc", "home", "bin", "usr/bin"):
            (self.folder / name).mkdir(parents=True)

    def path(self, inside):
        return self.folder / str(inside).lstrip("/")

    def add_file(self, path):
        """The file of this machine, at the same place; a link as what it points to, too."""
        target = self.path(path)
        if target.exists():
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)

    def add_program(self, name):
        path = shutil.which(name, path=SYSTEM_PATH)
        if not path:
            skip(f"{name} is not on this machine")
        self.add_file(path)
        for library in libraries_of(path):
            self.add_file(library)
        for folder in ("bin", "usr/bin"):
            if not self.path(f"{folder}/{name}").exists():
                shutil.copy(path, self.path(f"{folder}/{name}"))

    def add_libraries(self, *names):
        """Libraries that the machine's programs may not use but that every machine has."""
        cache = subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True, check=False).stdout
        for name in names:
            found = re.search(rf"{re.escape(name)} .*x86-64.* => (\S+)", cache)
            if found:
                self.add_file(found[1])

    def add_python(self):
        """This interpreter with the standard library, as python3."""
        program = pathlib.Path(sys.executable).resolve()
        prefix = pathlib.Path(sys.base_prefix).resolve()
        real = pathlib.Path(os.path.realpath(prefix / "bin" / f"python{sysconfig.get_python_version()}"))
        program = real if real.exists() else program
        self.add_file(program)
        for library in libraries_of(program):
            self.add_file(library)
        library = pathlib.Path(sysconfig.get_path("stdlib"))
        left_out = shutil.ignore_patterns("test", "tests", "__pycache__", "site-packages", "dist-packages", "config-*", "idlelib",
                                          "tkinter", "ensurepip", "lib2to3", "pydoc_data", "*.a", "turtledemo")
        shutil.copytree(library, self.path(library), ignore=left_out, dirs_exist_ok=True)
        self.path("usr/bin/python3").symlink_to(program)

    def run(self, command, directory="/home", environment=None, timeout=300):
        """Runs a shell command in the folder; needs `sh` there."""
        variables = {"PATH": "/usr/bin:/bin", "HOME": "/home", **(environment or {})}
        inside = [shutil.which("chroot", path=SYSTEM_PATH), self.folder, "/bin/sh", "-c", f"cd {directory} && {command}"]
        mounts = f"mount --rbind /dev '{self.folder}/dev' && mount --rbind /proc '{self.folder}/proc' && exec \"$@\""
        return subprocess.run([*unshare(), "sh", "-c", mounts, "sh", "env", "-i", *(f"{k}={v}" for k, v in variables.items()), *inside],
                              capture_output=True, text=True, errors="replace", check=False, timeout=timeout)


def unshare():
    """Own network (none), own mounts, and root's rights in them."""
    user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    return ["unshare", *user, "--net", "--mount", "--propagation", "private"]


def need_unshare():
    for program in ("unshare", "chroot"):
        if not shutil.which(program, path=SYSTEM_PATH):
            skip(f"{program} is not on this machine")
    with tempfile.TemporaryDirectory() as folder:
        for name in ("dev", "proc"):
            (pathlib.Path(folder) / name).mkdir()
        tried = subprocess.run([*unshare(), "sh", "-c", f"mount --rbind /dev {folder}/dev && mount --rbind /proc {folder}/proc"],
                               capture_output=True, text=True, check=False)
    if tried.returncode:
        skip(f"namespaces are not allowed here: {tried.stderr.strip()}")


class Checks:
    """Counts what is wrong."""

    def __init__(self):
        self.failures = 0

    def expect(self, good, what, context=""):
        if not good:
            self.failures += 1
            print(f"FAILED: {what}\n{context}")

    def exit(self):
        sys.exit(1 if self.failures else 0)
