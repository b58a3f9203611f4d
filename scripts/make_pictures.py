#!/usr/bin/env python3
"""Makes the pictures of the README:

    bench.svg   `tandem bench -o svg` of a small model, speed over depth
    plan.svg    `tandem plan -o svg` of a 70B model on a GPU with 24 GiB
    chat.svg    the screen of `tandem chat` with the demo model, in a terminal of 80 columns

    scripts/make_pictures.py [bench] [plan] [chat] [--program build/bin/tandem] [--out scripts/pictures]

Without names, all three. The chat needs pyte (Debian and Ubuntu: python3-pyte)."""

import argparse
import fcntl
import html
import os
import pathlib
import pty
import select
import struct
import subprocess
import sys
import tempfile
import termios
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
COLUMNS, ROWS = 80, 24
CELL_WIDTH, CELL_HEIGHT, FONT_SIZE = 8.4, 18, 14
PAGE, TEXT = "#0d1117", "#e6edf3"
COLOURS = {
    "black": "#484f58", "red": "#ff7b72", "green": "#3fb950", "brown": "#d29922", "blue": "#58a6ff",
    "magenta": "#bc8cff", "cyan": "#39c5cf", "white": "#b1bac4", "brightblack": "#6e7681", "brightred": "#ffa198",
    "brightgreen": "#56d364", "brightbrown": "#e3b341", "brightblue": "#79c0ff", "brightmagenta": "#d2a8ff",
    "brightcyan": "#56d4dd", "brightwhite": "#ffffff",
}


def run(arguments):
    return subprocess.run(arguments, check=True, stdout=subprocess.PIPE).stdout


def make_bench(program, out):
    """A model of 135M random weights: its speed is that of the real one."""
    with tempfile.TemporaryDirectory() as folder:
        model = os.path.join(folder, "smollm2-135m.gguf")
        run([program, "synth", "smollm2-135m", "--type", "Q4_K_M", "-o", model])
        out.write_bytes(run([program, "bench", "-m", model, "-p", "256", "-n", "32", "-d", "0,1024,2048,4096", "-r", "3",
                             "-o", "svg"]))


def make_plan(program, out):
    out.write_bytes(run([program, "plan", "llama-3.1-70b", "--type", "Q4_K_M", "--gpu", "rtx4090", "-c", "16384",
                         "--ram-bw", "80", "--max-ram", "64GiB", "-o", "svg"]))


def chat_screen(program, model, question):
    """The screen after one answer, as pyte's Screen."""
    import pyte
    screen = pyte.Screen(COLUMNS, ROWS)
    stream = pyte.ByteStream(screen)
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ.update(TERM="xterm-256color", XDG_STATE_HOME=os.devnull, COLUMNS=str(COLUMNS), LINES=str(ROWS))
        os.environ.pop("NO_COLOR", None)
        os.execv(program, [program, "chat", "-m", model, "-dev", "none", "-s", "7", "-n", "160"])
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))

    def read_until_quiet(quiet, limit):
        end, last = time.time() + limit, time.time()
        while time.time() < min(end, last + quiet):
            if select.select([terminal], [], [], 0.1)[0]:
                try:
                    data = os.read(terminal, 65536)
                except OSError:
                    return
                if not data:
                    return
                stream.feed(data)
                last = time.time()

    read_until_quiet(3, 60)
    for character in question:
        os.write(terminal, character.encode())
        read_until_quiet(0.05, 1)
    os.write(terminal, b"\r")
    read_until_quiet(4, 120)
    picture = [[screen.buffer[y][x] for x in range(COLUMNS)] for y in range(ROWS)]
    os.write(terminal, b"\x04")
    read_until_quiet(2, 10)
    os.close(terminal)
    os.waitpid(pid, 0)
    return picture


def colour_of(name, default):
    if name == "default":
        return default
    return COLOURS.get(name, "#" + name if len(name) == 6 else default)


def runs_of(row):
    """Cells of the same look next to each other: (column, text, cell)."""
    runs = []
    for x, cell in enumerate(row):
        look = (cell.fg, cell.bg, cell.bold, cell.italics, cell.underscore, cell.reverse)
        if runs and runs[-1][3] == look:
            runs[-1][1] += cell.data
        else:
            runs.append([x, cell.data, cell, look])
    return runs


def draw_screen(picture, title):
    while picture and all(cell.data == " " and cell.bg == "default" for cell in picture[-1]):
        picture.pop()
    width, height = COLUMNS * CELL_WIDTH + 32, len(picture) * CELL_HEIGHT + 56
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:g}" height="{height:g}" '
           f'viewBox="0 0 {width:g} {height:g}" role="img">', f"<title>{html.escape(title)}</title>",
           f'<rect width="{width:g}" height="{height:g}" rx="8" fill="{PAGE}"/>']
    out += [f'<circle cx="{x}" cy="18" r="6" fill="{colour}"/>'
            for x, colour in ((22, "#ff5f56"), (42, "#ffbd2e"), (62, "#27c93f"))]
    out.append(f'<g font-family="ui-monospace,SFMono-Regular,Menlo,Consolas,monospace" font-size="{FONT_SIZE}" '
               'xml:space="preserve">')
    for y, row in enumerate(picture):
        top = 40 + y * CELL_HEIGHT
        for x, text, cell, _ in runs_of(row):
            foreground, background = colour_of(cell.fg, TEXT), colour_of(cell.bg, PAGE)
            if cell.reverse:
                foreground, background = background, foreground
            left, length = 16 + x * CELL_WIDTH, len(text) * CELL_WIDTH
            if background != PAGE:
                out.append(f'<rect x="{left:.1f}" y="{top}" width="{length:.1f}" height="{CELL_HEIGHT}" '
                           f'fill="{background}"/>')
            if not text.strip():
                continue
            style = ' font-weight="bold"' * cell.bold + ' font-style="italic"' * cell.italics
            style += ' text-decoration="underline"' * cell.underscore
            out.append(f'<text x="{left:.1f}" y="{top + 13}" textLength="{length:.1f}" fill="{foreground}"{style}>'
                       f"{html.escape(text)}</text>")
    return "\n".join(out + ["</g>", "</svg>"]) + "\n"


def make_chat(program, out):
    picture = chat_screen(program, str(ROOT / "models/tandem-demo-Q8_0.gguf"), "Tell me a story about a little boat.")
    out.write_text(draw_screen(picture, "tandem chat in a terminal"))


def main():
    makers = {"bench": make_bench, "plan": make_plan, "chat": make_chat}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="bench, plan or chat (default: all)")
    parser.add_argument("--program", default=str(ROOT / "build/bin/tandem"))
    parser.add_argument("--out", default=str(ROOT / "scripts/pictures"))
    arguments = parser.parse_args()
    for name in arguments.names:
        if name not in makers:
            parser.error(f"no picture {name}: there are {', '.join(makers)}")
    folder = pathlib.Path(arguments.out)
    folder.mkdir(parents=True, exist_ok=True)
    for name in arguments.names or makers:
        makers[name](os.path.abspath(arguments.program), folder / f"{name}.svg")
        print(folder / f"{name}.svg")


if __name__ == "__main__":
    sys.exit(main())
