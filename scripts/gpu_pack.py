#!/usr/bin/env python3
"""Makes one archive with everything to test and measure tandem on a machine with an NVIDIA GPU that has no network, no
headers and no packages: the programs, the shared libraries that they need, a small model with its golden output, the demo
model, and gpu_day.sh, which runs it all.

    scripts/gpu_pack.py BUILD [-o tandem-gpu.tar.gz] [--data FOLDER] [--most-mb 50]

BUILD needs tandem (the portable one, if it is built), gpu_tests and gpu_limits. The golden data is read from --data, by default $TANDEM_SHARED/data or
../shared/data beside the source tree.
"""

import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile

SOURCE = pathlib.Path(__file__).resolve().parent.parent
PROGRAMS = ("tandem", "gpu_tests", "gpu_limits")
SCRIPTS = ("gpu_steps.py", "test_gpu.py", "bench_gpu.py", "offload_report.py")
GOLDEN = ("stories260K.gguf", "stories260K.golden.json", "stories260K.txt")
DEMO = SOURCE / "models" / "tandem-demo-Q8_0.gguf"
# Every machine with a driver and a toolkit has these, in a version that belongs to it.
OF_THE_MACHINE = re.compile(r"^(ld-linux.*|linux-vdso|lib(c|m|dl|rt|pthread|resolv|stdc\+\+|gcc_s|cuda|cublas|cublasLt|nvidia-.*))\.so")
NAME = "tandem-gpu"


class Failed(Exception):
    pass


def libraries_of(program):
    """The shared libraries that a program needs and that are not part of every machine, as {name: path}."""
    found = {}
    for line in subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout.splitlines():
        name, _, path = line.strip().partition(" => ")
        path = path.split(" (")[0].strip()
        if not path or OF_THE_MACHINE.match(pathlib.Path(name).name):
            continue
        if path == "not found":
            raise Failed(f"{program} needs {name}, which is not on this machine")
        found[name] = path
    return found


def copy(source, target):
    if not source.exists():
        raise Failed(f"{source} not found")
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(source, target)


def fill(folder, build, data):
    libraries = {}
    for name in PROGRAMS:
        program = build / "bin" / "portable" / name
        if not program.exists():
            program = build / "bin" / name
        copy(program, folder / "bin" / name)
        subprocess.run(["strip", folder / "bin" / name], check=True)
        libraries |= libraries_of(program)
    (folder / "lib").mkdir()
    for name, path in libraries.items():
        copy(pathlib.Path(path), folder / "lib" / name)
    for name in SCRIPTS:
        copy(SOURCE / "scripts" / name, folder / "scripts" / name)
    copy(SOURCE / "scripts" / "gpu_day.sh", folder / "gpu_day.sh")
    copy(SOURCE / "LICENSE", folder / "LICENSE")
    for name in GOLDEN:
        copy(data / name, folder / "data" / name)
    copy(DEMO, folder / "models" / DEMO.name)
    version = subprocess.run([folder / "bin" / "tandem", "--version"], capture_output=True, text=True, check=True).stdout
    (folder / "PACK.txt").write_text(version)


def archive(folder, output):
    """Writes the archive under its name only when it is complete."""
    partial = output.with_name(output.name + ".part")
    with tarfile.open(partial, "w:gz", compresslevel=6) as tar:
        tar.add(folder, NAME)
    os.replace(partial, output)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("-o", "--output", type=pathlib.Path)
    parser.add_argument("--data", type=pathlib.Path)
    parser.add_argument("--most-mb", type=float, default=50, help="fail if the archive is larger (default: 50)")
    arguments = parser.parse_args()
    output = arguments.output or arguments.build / f"{NAME}.tar.gz"
    data = arguments.data or pathlib.Path(os.environ.get("TANDEM_SHARED") or SOURCE.parent / "shared") / "data"
    try:
        with tempfile.TemporaryDirectory(dir=arguments.build) as temporary:
            folder = pathlib.Path(temporary) / NAME
            folder.mkdir()
            fill(folder, arguments.build, data)
            archive(folder, output)
            carried = ", ".join(sorted(path.name for path in (folder / "lib").iterdir())) or "none"
    except (Failed, subprocess.CalledProcessError, OSError) as error:
        print(f"gpu_pack.py: {error}", file=sys.stderr)
        return 1
    size = output.stat().st_size / 1e6
    print(f"{output}: {size:.1f} MB; shared libraries in it: {carried}")
    if size > arguments.most_mb:
        print(f"gpu_pack.py: more than {arguments.most_mb:g} MB", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
