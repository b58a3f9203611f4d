#!/usr/bin/env python3
"""The packages of `make package`: the program in them needs only the C library, none newer than that of Ubuntu 22.04, and
runs where there is nothing else; licences and a list (CycloneDX) of all that is linked into it are in the package; checksums
lie beside it; packing twice gives the same bytes.

    package_test.py BUILD MODELS
"""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile

from bare_root import BareRoot, Checks, need_unshare, skip

OLDEST_LIBC = (2, 35)  # Ubuntu 22.04; Debian 12 has 2.36
CARRIED = {"libmd4c.so.0"}  # in lib/tandem of the package
OF_LIBC = {"libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1", "ld-linux-x86-64.so.2"}
LINKED = ("pcre2", "utf8proc", "liburing", "libedit", "ncurses", "libbsd", "libmd", "xxhash", "md4c", "fmt", "CLI11", "nlohmann-json",
          "libstdc++")
LISTED = {"pcre2", "utf8proc", "liburing", "libedit", "ncurses", "libbsd", "libmd", "xxHash", "md4c", "fmt", "CLI11", "nlohmann-json",
          "libstdc++"}
STORY = ("run", "-m", "/models/tandem-demo-Q8_0.gguf", "-p", "'Once upon a time'", "-n", "20", "--temp", "0", "-t", "2")


def output_of(*command):
    return subprocess.run([str(part) for part in command], capture_output=True, text=True, check=True).stdout


def check_program(checks, program, name):
    needed = set(re.findall(r"NEEDED\s+(\S+)", output_of("objdump", "-p", program)))
    checks.expect(needed <= OF_LIBC | CARRIED, f"{name}: needs {needed - OF_LIBC - CARRIED}")
    versions = {tuple(map(int, v.split("."))) for v in re.findall(r"GLIBC_([\d.]+)", output_of("objdump", "-T", program))}
    checks.expect(max(versions) <= OLDEST_LIBC, f"{name}: needs C library {max(versions)}, expected {OLDEST_LIBC} at most")
    checks.expect(".debug_info" not in output_of("objdump", "-h", program), f"{name}: is stripped")


def check_bill(checks, text, name):
    """The list of components: complete, and each has a version, a licence and a place to find it."""
    bill = json.loads(text)
    checks.expect(bill["bomFormat"] == "CycloneDX" and bill["metadata"]["component"]["name"] == "tandem", f"{name}: is CycloneDX")
    components = {c["name"]: c for c in bill["components"]}
    checks.expect(LISTED <= components.keys(), f"{name}: components {sorted(LISTED - components.keys())} are missing")
    for component in components.values():
        complete = re.match(r"\d", component["version"]) and component["licenses"]
        checks.expect(complete, f"{name}: version and licence of a component", component)
        checks.expect(component["name"].startswith("NVIDIA") or component.get("purl", "").startswith("pkg:deb/"),
                      f"{name}: where a component is from", component)
    depends, = bill["dependencies"]
    checks.expect(set(depends["dependsOn"]) == {c["bom-ref"] for c in bill["components"]}, f"{name}: dependencies")


def pack(checks, build, folder):
    folder.mkdir()
    made = subprocess.run(["cpack", "--config", build / "CPackConfig.cmake", "-B", folder], cwd=build, capture_output=True,
                          text=True, check=False)
    checks.expect(made.returncode == 0, "cpack", made.stdout + made.stderr)
    sums = "".join(sorted(p.read_text() for p in folder.glob("*.sha256")))
    checks.expect(len(sums.split()) == 4, "a checksum beside each package", sums)
    compared = subprocess.run(["sha256sum", "-c", "-"], input=sums, cwd=folder, capture_output=True, text=True, check=False)
    checks.expect(compared.returncode == 0, "the checksums are right", compared.stdout + compared.stderr)
    return sums


def check_in_bare_root(checks, usr, models, name):
    """The program with the C library and a shell, and nothing else."""
    with tempfile.TemporaryDirectory() as temporary:
        root = BareRoot(pathlib.Path(temporary) / "root")
        root.add_program("sh")
        root.add_libraries(*OF_LIBC)
        shutil.copytree(usr, root.path("usr"), dirs_exist_ok=True)
        shutil.copytree(models, root.path("models"))
        version = root.run("/usr/bin/tandem --version")
        checks.expect(version.returncode == 0 and version.stdout.startswith("tandem "), f"{name}: --version",
                      version.stdout + version.stderr)
        story = root.run("/usr/bin/tandem " + " ".join(STORY))
        checks.expect(story.returncode == 0 and len(story.stdout) > 40, f"{name}: tells a story", story.stdout + story.stderr)
        chat = root.run("echo 'Tell me a story.' | /usr/bin/tandem chat -m /models/tandem-demo-Q8_0.gguf -n 10")
        checks.expect(chat.returncode == 0, f"{name}: chats", chat.stdout + chat.stderr)


def main():
    build, models = (pathlib.Path(argument).resolve() for argument in sys.argv[1:])
    for tool in ("cpack", "dpkg-deb", "objdump"):
        if not shutil.which(tool):
            skip(f"{tool} is not on this machine")
    checks = Checks()
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        sums = pack(checks, build, folder / "packed")
        # Memory lists the files of a folder in another order than a disk.
        again = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        with tempfile.TemporaryDirectory(dir=again) as elsewhere:
            checks.expect(pack(checks, build, pathlib.Path(elsewhere) / "packed") == sums, "packing twice gives the same bytes")
        folder /= "packed"
        deb, = folder.glob("*.deb")
        archive, = folder.glob("*.tar.gz")
        for package in (deb, archive):
            print(f"{package.name}: {package.stat().st_size / 1e6:.1f} MB")
        output_of("dpkg-deb", "-x", deb, folder / "deb")
        with tarfile.open(archive) as tar:
            tar.extractall(folder / "tar")
        unpacked, = (folder / "tar").iterdir()
        trees = {"the .deb": folder / "deb" / "usr", "the tarball": unpacked / "usr" if (unpacked / "usr").exists() else unpacked}
        depends = output_of("dpkg-deb", "-f", deb, "Depends").strip()
        checks.expect(depends == f"libc6 (>= {'.'.join(map(str, OLDEST_LIBC))})", f"the .deb depends on: {depends}")
        for name, tree in trees.items():
            check_program(checks, tree / "bin" / "tandem", name)
            for file in ("man/man1/tandem.1", "bash-completion/completions/tandem", "zsh/site-functions/_tandem"):
                found = tree / "share" / file
                checks.expect(found.exists() and found.stat().st_size > 0, f"{name}: share/{file} is missing")
            licences = (tree / "share" / "doc" / "tandem" / "copyright").read_text()
            for library in LINKED:
                checks.expect(library in licences, f"{name}: the licence of {library} is missing")
            check_bill(checks, next((tree / "share" / "doc" / "tandem").glob("*.cdx.json")).read_text(), name)
        if not checks.failures:
            need_unshare()
        for name, tree in trees.items():
            check_in_bare_root(checks, tree, models, name)
    checks.exit()


if __name__ == "__main__":
    main()
