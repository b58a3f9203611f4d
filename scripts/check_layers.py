#!/usr/bin/env python3
"""Checks the source layout: each folder includes only the folders that the table below allows, includes are written
from the folder's name up ("gguf/dtype.h"), there are no include cycles, no string of the library names a command-line
flag, and no source file is longer than 600 lines.

    scripts/check_layers.py [ROOT]     check the tree; prints file:line of each violation, exit code 1 if any
    scripts/check_layers.py --self-test
"""

import pathlib
import re
import sys
import tempfile

# The folders ("rooms") that each folder may include directly; it may also include what those may include.
# src/README.md describes each folder.
ROOMS = {
    "base": [],
    "sandbox": ["base"],
    "ranks": ["base"],
    "gguf": ["base"],
    "graph": ["gguf", "base"],
    "device": ["graph"],
    "cpu": ["device"],
    "ggml-cuda": ["device"],
    "collectives": ["device"],
    "exec": ["device", "collectives"],
    "kv": ["device"],
    "model": ["graph", "kv"],
    "jinja": ["base"],
    "text": ["jinja", "gguf", "base"],
    "sample/grammar": ["base"],
    "sample/json_schema": ["sample/grammar"],
    "sample": ["sample/json_schema"],
    "plan": ["model", "exec"],
    "speculate": ["base"],
    "engine": ["plan", "model", "exec", "kv", "text", "sample", "speculate"],
    "pipeline": ["engine", "ranks"],
    "setup": ["engine", "cpu", "sandbox"],
    "capi": ["setup"],
    "tools": ["setup", "sandbox", "pipeline"],
}
# Additional folders for single files: only the list of backends names them all.
ALSO = {"src/setup/backends.cpp": ["ggml-cuda"]}
TOP_LEVEL_ROOMS = ("gguf", "ggml-cuda", "tools")  # the others are in src/
MAX_LINES = 600
SOURCE_SUFFIXES = {".h", ".c", ".cpp", ".inc", ".cu", ".cuh"}
COUNTED_SUFFIXES = SOURCE_SUFFIXES | {".py", ".sh"}
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
LIBRARY = ("src", "gguf", "ggml-cuda")  # other programs than tools/ may be built on it: it names settings, not flags
STRING = re.compile(r"""//.*|"((?:\\.|[^"\\])*)"|'(?:\\.|[^'\\])'""")
FLAG = re.compile(r"(?:^|[\s(\[{'\"/=])(--[A-Za-z%][\w%-]*|-[A-Za-z][\w-]*)")
NO_TEXT = re.compile(r"\s*#\s*(include|pragma)\b")
# Text that only looks like a flag: another program's option, a number, suffixes of grammar rules.
NOT_FLAGS = re.compile(r"ulimit -[lv]|-[Ii]nf(inity)?\b|^-(item|more|key|other)$")


def below(room):
    """Every room that `room` may include, including itself."""
    seen, todo = set(), [room]
    while todo:
        name = todo.pop()
        if name not in seen:
            seen.add(name)
            todo += ROOMS[name]
    return seen


def room_folder(root, room):
    return root / room if room in TOP_LEVEL_ROOMS else root / "src" / room


def room_of(name):
    """The innermost room of an include such as "sample/grammar/states.h"; None if it is in no room."""
    folders = name.split("/")[:-1]
    while folders and "/".join(folders) not in ROOMS:
        folders.pop()
    return "/".join(folders) or None


def find_cycle(edges):
    """A cycle of a graph {node: iterable of nodes}, as a list that ends where it starts; None if there is none."""
    done, path = set(), []

    def visit(node):
        if node in path:
            return path[path.index(node):] + [node]
        if node in done:
            return None
        path.append(node)
        for other in sorted(edges.get(node, ())):
            cycle = visit(other)
            if cycle:
                return cycle
        path.pop()
        done.add(node)
        return None

    for node in sorted(edges):
        cycle = visit(node)
        if cycle:
            return cycle
    return None


def check_includes(root):
    """Forbidden includes, includes written in another way, and cycles, as lines of text."""
    problems, file_edges, room_edges = [], {}, {}
    for room in ROOMS:
        allowed = below(room)
        folder = room_folder(root, room)
        for path in sorted(folder.rglob("*")):
            if path.suffix not in SOURCE_SUFFIXES or room_of(f"{room}/{path.relative_to(folder).as_posix()}") != room:
                continue
            name = path.relative_to(root).as_posix()
            also = set().union(*map(below, ALSO.get(name, [])))
            for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
                match = INCLUDE.match(line)
                if not match:
                    continue
                quoted, target = match[1] == '"', match[2]
                other = room_of(target)
                if other is None:
                    if quoted:
                        problems.append(f'{name}:{number}: "{target}" does not start with a room')
                    continue
                if other not in allowed | also:
                    problems.append(f"{name}:{number}: {room} may not include {other} ({target})")
                if other != room:
                    room_edges.setdefault(room, set()).add(other)
                top = root if other in TOP_LEVEL_ROOMS else root / "src"
                target_path = top / target
                file_edges.setdefault(name, set()).add(target_path.relative_to(root).as_posix())
    for what, edges in (("rooms", room_edges), ("files", file_edges)):
        cycle = find_cycle(edges)
        if cycle:
            problems.append(f"{what} form an include cycle: {' -> '.join(cycle)}")
    return problems


def check_rooms_known(root):
    known = {name for name in ROOMS if name not in TOP_LEVEL_ROOMS}
    folders = (p for p in sorted((root / "src").glob("*")) if p.is_dir())
    return [f"src/{p.name}: not a room in the table of scripts/check_layers.py" for p in folders if p.name not in known]


def check_lengths(root):
    problems = []
    for top in ("src", "tests", "scripts", *TOP_LEVEL_ROOMS):
        for path in sorted((root / top).rglob("*")):
            if path.suffix in COUNTED_SUFFIXES:
                lines = path.read_bytes().count(b"\n")
                if lines > MAX_LINES:
                    name = path.relative_to(root).as_posix()
                    problems.append(f"{name}:{MAX_LINES + 1}: {lines} lines, the limit is {MAX_LINES}")
    return problems


def check_no_flags(root):
    """Strings of the library that name a flag. Comments may."""
    problems = []
    for top in LIBRARY:
        for path in sorted((root / top).rglob("*")):
            if path.suffix not in SOURCE_SUFFIXES:
                continue
            for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
                if NO_TEXT.match(line):
                    continue
                for literal in STRING.finditer(line):
                    flag = FLAG.search(NOT_FLAGS.sub("", literal[1] or ""))
                    if flag:
                        name = path.relative_to(root).as_posix()
                        problems.append(f"{name}:{number}: names the flag {flag[1]}; name a setting (base/setting.h)")
    return problems


def check(root):
    return check_rooms_known(root) + check_includes(root) + check_no_flags(root) + check_lengths(root)


def self_test():
    """Each rule must find its violation, and nothing in a clean tree."""
    good = {
        "src/base/error.h": "#include <string>\n",
        "gguf/dtype.h": '#include "base/error.h"\n#include "gguf/blocks.h"\n',
        "gguf/blocks.h": "",
        "src/cpu/ops/norm.cpp": '#include "device/device.h"\n#include "gguf/dtype.h"\n',
        "src/device/device.h": '#include "graph/graph.h"\n',
        "src/graph/graph.h": "",
        "src/engine/engine.cpp": '#include "kv/cache.h"\n',
        "src/kv/cache.h": "",
        "tools/main.cpp": '#include "cpu/ops/norm.cpp"\n',
        "src/setup/backends.cpp": '#include "ggml-cuda/backend.h"\n#include "setup/backends.h"\n',
        "src/kv/words.cpp": 'f("ulimit -l", "-inf", rule + "-item", "a-b", "1 - x", "-%}"); // "-c" and --mlock\n'
                            'char quote = \'"\'; int n = --i;  // "--no-mmap"\n',
        "tools/options.cpp": 'add("-c,--ctx-size", "--mlock");\n',
        "tests/unit/t.cpp": '#include "engine/engine.h"\n#include "support/x.h"\n' + "\n" * 598,
    }
    bad = [
        ({"gguf/a.h": '\n#include "graph/graph.h"\n'}, "gguf/a.h:2: gguf may not include graph"),
        ({"src/cpu/a.h": '#include "ggml-cuda/b.h"\n'}, "src/cpu/a.h:1: cpu may not include ggml-cuda"),
        ({"tools/a.cpp": '#include "ggml-cuda/b.h"\n'}, "tools/a.cpp:1: tools may not include ggml-cuda"),
        ({"src/engine/a.h": '  #  include <cpu/b.h>\n'}, "src/engine/a.h:1: engine may not include cpu"),
        ({"src/text/a.h": '#include "vocab.h"\n'}, 'src/text/a.h:1: "vocab.h" does not start with a room'),
        ({"gguf/a.h": '#include "gguf/b.h"\n', "gguf/b.h": '#include "gguf/a.h"\n'},
         "files form an include cycle: gguf/a.h -> gguf/b.h -> gguf/a.h"),
        ({"src/base/a.h": '#include "gguf/dtype.h"\n'}, "rooms form an include cycle: base -> gguf -> base"),
        ({"src/misc/a.h": ""}, "src/misc: not a room"),
        ({"src/sample/grammar/a.h": '#include "sample/sampler.h"\n', "src/sample/sampler.h": ""},
         "src/sample/grammar/a.h:1: sample/grammar may not include sample"),
        ({"src/kv/a.cpp": '\nfail("x", "a smaller -c needs less");\n'}, "src/kv/a.cpp:2: names the flag -c;"),
        ({"gguf/a.cpp": 'char c = \'"\'; fail("see \\"--mlock\\"");\n'}, "gguf/a.cpp:1: names the flag --mlock;"),
        ({"ggml-cuda/a.cu": 'fail("--%s is %g", name);\n'}, "ggml-cuda/a.cu:1: names the flag --%s;"),
        ({"src/plan/a.cpp": 'fail("(-ngl %d)", n);\n'}, "src/plan/a.cpp:1: names the flag -ngl;"),
        ({"tests/unit/long.cpp": "\n" * 601}, "tests/unit/long.cpp:601: 601 lines"),
    ]
    failures = []
    for extra, expected in [({}, None)] + bad:
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            for name, text in {**good, **extra}.items():
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                (root / name).write_text(text)
            found = check(root)
        if expected is None and found:
            failures.append(f"a clean tree gives {found}")
        if expected is not None and not any(line.startswith(expected) for line in found):
            failures.append(f"expected {expected!r}, found {found}")
    return failures


def main():
    if sys.argv[1:] == ["--self-test"]:
        problems = self_test()
    else:
        default = pathlib.Path(__file__).resolve().parent.parent
        problems = check(pathlib.Path(sys.argv[1]).resolve() if sys.argv[1:] else default)
    for line in problems:
        print(line, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
