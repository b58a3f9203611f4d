#!/usr/bin/env python3
"""Predicts how models scale over GPUs and hosts, and draws it: scripts/SCALING.md with its pictures.

    scripts/scaling.py              # some minutes, with build/bin/tandem; nothing is loaded or measured on a GPU

All numbers come from the planner (`tandem plan --hosts`), which predicts; none is measured.
"""
import argparse
import html
import json
import math
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
GPU, GPUS_PER_HOST = "h100", 2
MODELS = {"llama-3.1-70b": "Llama 3.1 70B", "deepseek-v3": "DeepSeek V3"}
CONTEXT = 16384
GPU_COUNTS = (2, 4, 8, 16)  # of one host
HOST_COUNTS = (2, 4, 8)
LINKS = (25, 100, 400)  # Gbit/s
RAM, RAM_GB_PER_S, LINK_US = "1T", 300, 20
MEASURES = {"decode": ("decode_tokens_per_s", "tokens per second, decoding"),
            "prefill": ("prefill_tokens_per_s", "tokens per second of a prompt")}
COLOURS = ("#2563eb", "#d97706", "#059669", "#db2777", "#7c3aed", "#64748b")
DARK = ("#60a5fa", "#fbbf24", "#34d399", "#f472b6", "#a78bfa", "#94a3b8")


def plan(program, model, n_hosts, gpus, link, split):
    """What the planner predicts of so many equal hosts; None if the model does not fit."""
    host = (f'[[host]]\nram = "{RAM}"\nram_bw = {RAM_GB_PER_S}\ngpu = "{GPU}"\ngpus = {gpus}\n'
            f"link = {link}\nlink_us = {LINK_US}\n")
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
        file.write(host * n_hosts)
        file.flush()
        done = subprocess.run([program, "plan", model, "-c", str(CONTEXT), "--hosts", file.name, "-sm", split, "--json"],
                              capture_output=True, text=True, check=False)
    if done.returncode == 4:  # out of memory
        return None
    if done.returncode != 0:
        sys.exit(f"tandem plan failed: {done.stderr.strip()}")
    return json.loads(done.stdout)


def series_of(program, model):
    """{name: {number of GPUs: plan}}; the first two on one host."""
    series = {}
    for split, name in (("tensor", "one host, each layer over all GPUs"), ("layer", "one host, whole layers")):
        series[name] = {n: plan(program, model, 1, n, LINKS[0], split) for n in GPU_COUNTS}
    for link in LINKS:
        name = f"hosts of {GPUS_PER_HOST} GPUs, {link} Gbit/s"
        series[name] = {n * GPUS_PER_HOST: plan(program, model, n, GPUS_PER_HOST, link, "auto") for n in HOST_COUNTS}
    return {name: {n: p for n, p in points.items() if p} for name, points in series.items()}


def nice_top(value):
    step = 10 ** math.floor(math.log10(value))
    return next(m * step for m in (1, 2, 3, 4, 5, 6, 8, 10) if m * step >= value)


def draw(title, axis, curves):
    """Curves over the number of GPUs, one step a doubling. curves: {name: {n: value}}"""
    width, height, left, top, bottom = 760, 380, 64, 56, 250
    xs = {n: left + 40 + i * (width - left - 100) / (len(GPU_COUNTS) - 1) for i, n in enumerate(GPU_COUNTS)}
    most = nice_top(max(v for points in curves.values() for v in points.values()))

    def y_of(value):
        return bottom - (bottom - top) * value / most

    classes = "".join(f".s{i}{{stroke:{c}}}.c{i}{{fill:{c}}}" for i, c in enumerate(COLOURS))
    dark = "".join(f".s{i}{{stroke:{c}}}.c{i}{{fill:{c}}}" for i, c in enumerate(DARK))
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
           f'viewBox="0 0 {width} {height}" role="img">', f"<title>{html.escape(title)}</title>",
           "<style>\n.page{fill:#ffffff}.title{fill:#1f2328;font-size:16px;font-weight:600}"
           ".note{fill:#59636e;font-size:12px}.label{fill:#1f2328;font-size:12px}"
           'text{font-family:system-ui,-apple-system,"Segoe UI",Helvetica,Arial,sans-serif}'
           f".grid{{stroke:#d1d9e0}}.curve{{fill:none;stroke-width:2}}{classes}\n"
           "@media (prefers-color-scheme:dark){.page{fill:#0d1117}.title,.label{fill:#f0f6fc}.note{fill:#9198a1}"
           f".grid{{stroke:#3d444d}}{dark}}}\n</style>",
           f'<rect class="page" width="{width}" height="{height}"/>',
           f'<text class="title" x="16" y="26">{html.escape(title)}</text>',
           f'<text class="note" x="16" y="44">{html.escape(axis)}; predicted, not measured</text>']
    for i in range(5):
        value = most * i / 4
        out.append(f'<line class="grid" x1="{left}" x2="{width - 40}" y1="{y_of(value):.1f}" y2="{y_of(value):.1f}"/>')
        out.append(f'<text class="note" x="{left - 8}" y="{y_of(value) + 4:.1f}" text-anchor="end">{value:g}</text>')
    for n, x in xs.items():
        out.append(f'<text class="note" x="{x:.1f}" y="{bottom + 18}" text-anchor="middle">{n} GPUs</text>')
    for i, (name, points) in enumerate(curves.items()):
        path = " ".join(f"{xs[n]:.1f},{y_of(v):.1f}" for n, v in sorted(points.items()))
        dash = ' stroke-dasharray="5 3"' if name.startswith("one host, whole") else ""
        out.append(f'<polyline class="curve s{i}" points="{path}"{dash}/>')
        for n, v in sorted(points.items()):
            out.append(f'<circle class="c{i}" cx="{xs[n]:.1f}" cy="{y_of(v):.1f}" r="3.5">'
                       f"<title>{html.escape(name)}, {n} GPUs: {v:.1f}</title></circle>")
        x, y = 24 + 370 * (i % 2), bottom + 50 + 22 * (i // 2)
        out.append(f'<line class="curve s{i}" x1="{x}" x2="{x + 24}" y1="{y - 4}" y2="{y - 4}"{dash}/>')
        out.append(f'<text class="label" x="{x + 32}" y="{y}">{html.escape(name)}</text>')
    return "\n".join(out + ["</svg>"]) + "\n"


def table(series):
    lines = ["| | " + " | ".join(f"{n} GPUs" for n in GPU_COUNTS) + " |", "|---" * (len(GPU_COUNTS) + 1) + "|"]
    for name, points in series.items():
        cells = []
        for n in GPU_COUNTS:
            p = points.get(n)
            cells.append(f"{p['decode_tokens_per_s']:.1f} / {p['prefill_tokens_per_s']:.0f}" if p else "")
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


INTRO = f"""# Scaling over GPUs and hosts

**Every number here is a prediction of the planner; none is measured.** `scripts/scaling.py` asks `tandem plan --hosts` for
each point, writes this page and draws its pictures again.

What is assumed:

- The models as Q4_K_M, one text, a context of {CONTEXT} tokens that is half full while decoding; a prompt that fills half of it.
- GPUs as `--gpu {GPU}`: 0.8 of the data sheet's memory bandwidth, 0.4 of its dense half-float operations, a PCIe 5 bus, and
  NVLink between the GPUs of a host: 360 GB/s and 12 microseconds for each sum over them, by NCCL.
- Hosts with {RAM.replace("T", " T")}iB of memory that gives {RAM_GB_PER_S} GB/s. Their CPUs compute as the one of the machine that made this page, which
  matters where experts stay in host memory.
- Links between hosts of 25, 100 and 400 Gbit/s, each message with {LINK_US} microseconds beside its bytes.
- On one host, one process has all GPUs. Over hosts, each has {GPUS_PER_HOST} GPUs and a stage of the layers, as `tandem run --mpi`
  divides them; over its GPUs a stage is divided as `-sm auto` finds faster.
- While decoding, computing and collectives take turns. Of prompts, some parts of a step's tokens are summed over the GPUs
  while these compute another (`src/exec/parts.h`), where that is predicted to be faster. What a rank sends is on its way while
  it goes on computing.

In the tables: tokens per second, decoding / of a prompt. Empty: not asked for, or it does not fit.
"""

READING = """
## How to read it

- One text passes the stages of a pipeline one after the other: more hosts hold larger models and read prompts faster, but a
  single text decodes no faster than on one. Only `-sm tensor` within a host brings more memory bandwidth to each token.
- A stage sends the residual stream, some tens of KiB a token. For one text, links of 25 Gbit/s are therefore nearly as good as
  those of 400.
- A sum over GPUs costs its 12 microseconds twice a layer, however many GPUs there are: that bounds what more of them bring.
- Where there are more GPUs than key-value heads (Llama 3.1 70B has 8), some get none, and prompts suffer: sums to which
  a GPU adds nothing go over host memory. `-sm auto` therefore does not divide layers over 16 GPUs; the row shows what `-sm tensor` would do.
- DeepSeek V3 takes 377 GiB: below 8 GPUs, experts stay in host memory, whose bandwidth then decides.
"""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default=str(ROOT / "build/bin/tandem"))
    parser.add_argument("--out", default=str(ROOT / "scripts"))
    arguments = parser.parse_args()
    folder = pathlib.Path(arguments.out)
    (folder / "pictures").mkdir(parents=True, exist_ok=True)
    page = [INTRO]
    for model, title in MODELS.items():
        series = series_of(arguments.program, model)
        page.append(f"## {title}\n")
        for kind, (key, axis) in MEASURES.items():
            curves = {name: {n: p[key] for n, p in points.items()} for name, points in series.items() if points}
            path = folder / "pictures" / f"scaling-{model}-{kind}.svg"
            path.write_text(draw(f"{title}: {kind}", axis, curves))
            page.append(f"![{title}, {axis}, over the number of GPUs](pictures/{path.name})\n")
        page.append(table(series) + "\n")
    (folder / "SCALING.md").write_text("\n".join(page) + READING)
    print(folder / "SCALING.md")


if __name__ == "__main__":
    sys.exit(main())
