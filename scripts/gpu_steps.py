"""For the scripts that work on a GPU: commands with time limits, and results that are written the moment they are known,
because a machine with a GPU is often lent for minutes and taken back without warning."""

import json
import os
import signal
import subprocess
import sys
import threading
import time

CUDA_TOOLS = "/usr/local/cuda/bin"


running = set()  # processes of lines_of()


class OutOfTime(Exception):
    """A command ran past its limit, or the script past its own."""


class Limits:
    """Seconds for one step, and for all of them together (0: no limit)."""

    def __init__(self, step, total):
        self.step = step
        self.end = time.monotonic() + total if total else None

    def next(self):
        """The limit of a step that starts now; None if it has none."""
        limits = [self.step] if self.step else []
        if self.end is not None:
            limits.append(self.end - time.monotonic())
        limit = min(limits, default=None)
        if limit is not None and limit < 1:
            raise OutOfTime("no time left")
        return limit


class Journal:
    """Appends results to a file, as JSON lines, each as soon as it is known."""

    def __init__(self, path):
        self.file = open(path, "a", encoding="utf-8") if path else None

    def write(self, **row):
        if self.file:
            self.file.write(json.dumps(row) + "\n")
            self.file.flush()
            os.fsync(self.file.fileno())


def say(text):
    print(text, flush=True)


def stop(process):
    """Ends a process and everything that it started: a sanitizer is the parent of the program that it checks."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def lines_of(command, limit, environment=None, errors=None):
    """Runs a command and yields its lines as it writes them. Raises OutOfTime, or CalledProcessError on a failure.

    `errors` is an open file for stderr; None mixes it with stdout."""
    process = subprocess.Popen([str(part) for part in command], env=environment, text=True, errors="replace",
                               stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors or subprocess.STDOUT,
                               start_new_session=True)
    running.add(process)
    timed_out = threading.Event()

    def end():
        timed_out.set()
        stop(process)

    timer = threading.Timer(limit, end) if limit else None
    if timer:
        timer.start()
    try:
        for line in process.stdout:
            yield line.rstrip("\n")
        code = process.wait()
    finally:
        if timer:
            timer.cancel()
        stop(process)  # also when the caller stops reading, or this script is told to end
        process.wait()
        running.discard(process)
    if timed_out.is_set():
        raise OutOfTime(f"stopped after {limit:.0f} s")
    if code:
        raise subprocess.CalledProcessError(code, command)


def end_children_on_sigterm():
    """`timeout` sends SIGTERM."""

    def end(*_):
        for process in list(running):
            stop(process)
        sys.exit(143)

    signal.signal(signal.SIGTERM, end)


def add_options(parser, sections, step_limit):
    parser.add_argument("--sections", help=f"only these, comma-separated: {','.join(sections)}")
    parser.add_argument("--limit", type=float, default=step_limit, help="seconds for each step (default: %(default)s)")
    parser.add_argument("--total", type=float, default=0, help="seconds for all of them (default: no limit)")
    parser.add_argument("--json", metavar="FILE", help="append each result to FILE as a line of JSON")


def chosen_sections(parser, text, known, default=None):
    chosen = text.split(",") if text else list(default or known)
    for name in chosen:
        if name not in known:
            parser.error(f"unknown section {name}, needed one of {', '.join(known)}")
    return chosen
