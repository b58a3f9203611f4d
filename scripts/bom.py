#!/usr/bin/env python3
"""Prints the list of what a package's program is made of (CycloneDX 1.5, JSON).

    bom.py --version 0.1.0 --commit HASH --epoch SECONDS [--cuda VERSION] DEBIAN_PACKAGE...

The packages are those of scripts/cmake/libraries.cmake; their versions are those installed on the machine that builds.
The same commit and the same packages give the same bytes.
"""

import argparse
import datetime
import json
import pathlib
import re
import subprocess
import sys
import urllib.parse

# What each library is called elsewhere, and the licences of the parts that a program contains (SPDX). The full texts are in
# the package's file `copyright`.
LIBRARIES = {
    "libcli11-dev": ("CLI11", "BSD-3-Clause"),
    "libbsd-dev": ("libbsd", "BSD-3-Clause AND BSD-2-Clause AND ISC AND MIT"),
    "libedit-dev": ("libedit", "BSD-3-Clause"),
    "libfmt-dev": ("fmt", "MIT"),
    "libmd-dev": ("libmd", "BSD-3-Clause AND BSD-2-Clause AND ISC AND Beerware"),
    "libmd4c-dev": ("md4c", "MIT"),
    "libncurses-dev": ("ncurses", "X11-distribute-modifications-variant"),
    "libpcre2-dev": ("pcre2", "BSD-3-Clause"),
    "libstdc++-dev": ("libstdc++", "GPL-3.0-or-later WITH GCC-exception-3.1"),
    "liburing-dev": ("liburing", "MIT"),
    "libutf8proc-dev": ("utf8proc", "MIT AND Unicode-DFS-2015"),
    "libxxhash-dev": ("xxHash", "BSD-2-Clause"),
    "nlohmann-json3-dev": ("nlohmann-json", "MIT"),
}


def query(package):
    """Version and architecture of an installed package."""
    found = subprocess.run(["dpkg-query", "-W", "-f", "${Version} ${Architecture}", package], capture_output=True, text=True,
                           check=False)
    if found.returncode:
        sys.exit(f"bom.py: {package}: not installed")
    return found.stdout.split()


def upstream(version):
    """The library's own version: 1:6.4+20221231-4 -> 6.4."""
    return re.sub(r"[+~].*", "", re.sub(r"-[^-]*$", "", version.split(":")[-1]))


def distribution():
    release = pathlib.Path("/etc/os-release").read_text(encoding="utf-8") if pathlib.Path("/etc/os-release").exists() else ""
    fields = dict(re.findall(r'^(ID|VERSION_ID)="?([^"\n]*)', release, re.M))
    return fields.get("ID", "debian"), "-".join(v for v in (fields.get("ID"), fields.get("VERSION_ID")) if v)


def component(package):
    key = "libstdc++-dev" if re.fullmatch(r"libstdc\+\+-\d+-dev", package) else package
    if key not in LIBRARIES:
        sys.exit(f"bom.py: {package}: its name and licence are not in the table of scripts/bom.py")
    name, licence = LIBRARIES[key]
    version, architecture = query(package)
    vendor, distro = distribution()
    purl = (f"pkg:deb/{vendor}/{urllib.parse.quote(package, safe='')}@{urllib.parse.quote(version, safe='')}"
            f"?arch={architecture}" + (f"&distro={distro}" if distro else ""))
    return {"type": "library", "bom-ref": purl, "name": name, "version": upstream(version), "licenses": [{"expression": licence}],
            "purl": purl}


def standard_library():
    """The newest libstdc++ that is installed, which is what GCC and clang take."""
    listed = subprocess.run(["dpkg-query", "-W", "-f", "${db:Status-Abbrev} ${Package}\n", "libstdc++-*-dev"],
                            capture_output=True, text=True, check=False).stdout
    found = [(int(major), name) for name, major in re.findall(r"^ii\s+(libstdc\+\+-(\d+)-dev)$", listed, re.M)]
    if not found:
        sys.exit("bom.py: libstdc++-*-dev: not installed")
    return max(found)[1]


def bill(options):
    components = [component(package) for package in sorted({*options.packages, standard_library()})]
    if options.cuda:
        components.append({"type": "library", "bom-ref": f"cudart@{options.cuda}", "name": "NVIDIA CUDA runtime",
                           "version": options.cuda, "licenses": [{"license": {"name": "NVIDIA CUDA Toolkit EULA"}}]})
    time = datetime.datetime.fromtimestamp(options.epoch, datetime.timezone.utc)
    this = f"pkg:generic/tandem@{options.version}?commit={options.commit}"
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "timestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "component": {"type": "application", "bom-ref": this, "name": "tandem", "version": options.version, "purl": this,
                          "licenses": [{"license": {"id": options.license}}]},
        },
        "components": components,
        "dependencies": [{"ref": this, "dependsOn": [c["bom-ref"] for c in components]}],
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--version", required=True)
    parser.add_argument("--commit", required=True)
    parser.add_argument("--epoch", type=int, required=True, help="time of the commit")
    parser.add_argument("--license", default="MIT")
    parser.add_argument("--cuda", default="", help="version of the CUDA runtime")
    parser.add_argument("packages", nargs="+")
    json.dump(bill(parser.parse_args()), sys.stdout, indent=2)
    print()


if __name__ == "__main__":
    main()
