#!/usr/bin/env python3
"""The table of tested versions in tests/README.md: it has every package that the build, the tests and the program need, and on
the system that it names, the versions that are installed.

    versions_test.py SOURCE
"""

import pathlib
import re
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "scripts"))
from bare_root import Checks  # noqa: E402
from bom import distribution, upstream  # noqa: E402

TABLE = r"^\| `([^`]+)` \| ([\d.][^ |]*) \|"
OPTIONAL = {"clang-format"}  # of `make fmt` alone


def packages_of(source):
    """What scripts/install_deps.sh installs, and what scripts/cmake/libraries.cmake links."""
    text = (source / "scripts" / "install_deps.sh").read_text()
    found = set(re.findall(r"need_(?:command|header) ([a-z0-9+.-]+) ", text))
    libraries = (source / "scripts" / "cmake" / "libraries.cmake").read_text()
    found |= set(re.findall(r"\b((?:lib|nlohmann)[a-z0-9+-]+-dev)\b", libraries))
    return found - OPTIONAL


def installed(package):
    found = subprocess.run(["dpkg-query", "-W", "-f", "${db:Status-Abbrev} ${Version}\n", package], capture_output=True, text=True,
                           check=False)
    lines = re.findall(r"^ii\s+(\S+)$", found.stdout, re.M)
    return upstream(lines[0]) if lines else None


def main():
    source = pathlib.Path(sys.argv[1])
    text = (source / "tests" / "README.md").read_text(encoding="utf-8")
    checks = Checks()
    rows = dict(re.findall(TABLE, text, re.M))
    checks.expect(len(rows) > 10, "the table of tested versions in tests/README.md", rows)
    for package in sorted(packages_of(source) - rows.keys()):
        checks.expect(False, f"{package} has no row in the table of tested versions in tests/README.md")
    _, name = distribution()
    if name != "debian-12":
        print(f"the versions are those of Debian 12, this is {name}: not compared")
        checks.exit()
    for package, version in rows.items():
        found = installed(package)
        checks.expect(found in (None, version), f"{package}: version {found} is installed, tests/README.md says {version}")
        print(f"{package} {found or 'is not installed'}")
    checks.exit()


if __name__ == "__main__":
    main()
