#!/usr/bin/env python3
"""Replays the experts that a run has chosen (tandem run --expert-trace FILE) against caches of different sizes and
policies, and draws the hit rates as an SVG.

    build/bin/tandem run -m model.gguf --max-ram 8GiB --expert-trace trace.txt -p "..." -n 200
    scripts/expert_report.py trace.txt -o hits.svg
    scripts/expert_report.py --self-test

Policies: least recently used, which tandem has in host memory; least frequently used, with counts that halve every 256 steps
(which it has on GPUs, in each layer for itself) or of the whole run; and the best possible, which evicts the expert whose
next use is farthest away. Two lines are predicted, with Che's approximation for a
least-recently-used cache, as `tandem plan` does: from how often the trace uses each expert, and from Zipf's law. All caches
start empty, and are shared by all layers. Steps of more than 16 tokens are left out: they pass through.
"""

import argparse
import heapq
import json
import math
import pathlib
import sys

FEW_TOKENS = 16  # kFewTokens of src/exec/expert_room.h
ZIPF = 0.7  # kUsualExpertSkew of src/plan/expert_hits.h
HALF_LIFE = 256  # kHalfLife of src/exec/expert_cache.cpp
SHARES = [1 / 64, 1 / 32, 1 / 16, 1 / 8, 3 / 16, 1 / 4, 3 / 8, 1 / 2, 5 / 8, 3 / 4, 7 / 8, 1]


def read_trace(lines):
    """The model, and the experts of each (step, layer) as a list of keys (layer, expert)."""
    lines = iter(lines)
    head = json.loads(next(lines))
    if head.get("kind") != "tandem expert trace":
        raise ValueError("no trace of experts")
    model, uses = head["model"], []
    for line in lines:
        layer, *experts = line.split()
        pairs = [tuple(map(int, e.split(":"))) for e in experts]
        n_tokens = sum(n for _, n in pairs) / model["n_expert_used"]
        if n_tokens <= FEW_TOKENS:
            uses.append([(int(layer), e) for e, _ in pairs])
    return model, uses


def hit_rate(uses, n_slots, policy):
    """The share of the uses that finds its expert. `policy` gives each expert a rank; the lowest is evicted."""
    held, heap, n_found, n_used = {}, [], 0, 0
    for time, keys in enumerate(uses):
        for key in keys:
            n_used += 1
            n_found += key in held
        for key in keys:
            rank = policy(key, time)
            held[key] = rank
            heapq.heappush(heap, (rank, key))
        kept = []  # of the heap: in use now
        while len(held) > max(n_slots, len(keys)):
            rank, key = heapq.heappop(heap)
            if held.get(key) != rank:
                continue  # it has another rank now, or is gone
            if key in keys:
                kept.append((rank, key))
            else:
                del held[key]
        for entry in kept:
            heapq.heappush(heap, entry)
    return n_found / n_used


def least_recent(uses):
    return lambda key, time: time


def least_frequent(uses):
    counts = {}

    def rank(key, time):
        counts[key] = counts.get(key, 0) + 1
        return counts[key]

    return rank


def lately_frequent(uses):
    """Counts that halve every HALF_LIFE steps. A use counts more with every step, instead of the others less."""
    counts, n_layers = {}, max(1, len({layer for keys in uses for layer, _ in keys}))

    def rank(key, time):
        counts[key] = counts.get(key, 0.0) + 2 ** (time / n_layers / HALF_LIFE)
        return counts[key]

    return rank


def farthest(uses):
    """Minus the time of the next use."""
    later, following = {}, {}
    for time in range(len(uses) - 1, -1, -1):
        for key in uses[time]:
            following[key, time] = later.get(key, len(uses) * 2)
            later[key] = time
    return lambda key, time: -following[key, time]


def che(probabilities, n_slots):
    """The hit rate of a least-recently-used cache where each step uses each expert with its own probability."""
    if n_slots >= len(probabilities):
        return 1.0
    used = lambda p, t: 1 - (1 - p) ** t  # in t steps
    low, high = 0.0, 1.0
    while sum(used(p, high) for p in probabilities) < n_slots and high < 1e12:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if sum(used(p, middle) for p in probabilities) < n_slots else (low, middle)
    return sum(p * used(p, max(0, low - 0.5)) for p in probabilities) / sum(probabilities)


def curves(model, uses):
    layers = sorted({layer for keys in uses for layer, _ in keys})
    n_experts = len(layers) * model["n_expert"]
    counts = {}
    for keys in uses:
        for key in keys:
            counts[key] = counts.get(key, 0) + 1
    n_steps = len(uses) / max(1, len(layers))
    traced = [counts.get((layer, e), 0.5) / n_steps for layer in layers for e in range(model["n_expert"])]
    law = [r ** -ZIPF for r in range(1, model["n_expert"] + 1)]
    zipf = [min(1, p * model["n_expert_used"] / sum(law)) for p in law] * len(layers)
    slots = [max(1, round(share * n_experts)) for share in SHARES]
    return {
        "best possible": [hit_rate(uses, n, farthest(uses)) for n in slots],
        "least frequently used lately": [hit_rate(uses, n, lately_frequent(uses)) for n in slots],
        "least frequently used": [hit_rate(uses, n, least_frequent(uses)) for n in slots],
        "least recently used": [hit_rate(uses, n, least_recent(uses)) for n in slots],
        "predicted from the trace": [che(traced, n) for n in slots],
        f"predicted, Zipf {ZIPF}": [che(zipf, n) for n in slots],
    }


def svg(lines, title):
    width, height, left, top, right, bottom = 760, 420, 60, 40, 220, 50
    x = lambda share: left + share * (width - left - right)
    y = lambda rate: height - bottom - rate * (height - top - bottom)
    colors = ["#1b7837", "#762a83", "#b35806", "#2166ac", "#2166ac", "#777777"]
    page = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" '
            f'font-size="12"><rect width="100%" height="100%" fill="white"/>'
            f'<text x="{left}" y="22" font-size="14">{title}</text>']
    for i in range(5):
        page.append(f'<line x1="{left}" x2="{width - right}" y1="{y(i / 4)}" y2="{y(i / 4)}" stroke="#ddd"/>'
                    f'<text x="{left - 8}" y="{y(i / 4) + 4}" text-anchor="end">{25 * i}%</text>'
                    f'<text x="{x(i / 4)}" y="{height - bottom + 18}" text-anchor="middle">{25 * i}%</text>')
    page.append(f'<text x="{(left + width - right) / 2}" y="{height - 12}" text-anchor="middle">'
                "experts in memory</text>")
    for i, (name, rates) in enumerate(lines.items()):
        points = " ".join(f"{x(s):.1f},{y(r):.1f}" for s, r in zip(SHARES, rates))
        dash = ' stroke-dasharray="5 4"' if name.startswith("predicted") else ""
        page.append(f'<polyline points="{points}" fill="none" stroke="{colors[i]}" stroke-width="2"{dash}/>'
                    f'<line x1="{width - right + 12}" x2="{width - right + 36}" y1="{top + 12 + 20 * i}" '
                    f'y2="{top + 12 + 20 * i}" stroke="{colors[i]}" stroke-width="2"{dash}/>'
                    f'<text x="{width - right + 42}" y="{top + 16 + 20 * i}">{name}</text>')
    return "\n".join(page) + "\n</svg>\n"


def self_test():
    head = json.dumps({"kind": "tandem expert trace", "model": {"n_expert": 4, "n_expert_used": 1}})
    order = [0, 1, 0, 2, 0, 3, 0, 1, 0, 2]
    model, uses = read_trace([head] + [f"0 {e}:1" for e in order] + ["0 0:20 1:20"])
    assert len(uses) == len(order)
    assert hit_rate(uses, 4, least_recent(uses)) == 0.6  # all but the first of each
    assert hit_rate(uses, 2, least_recent(uses)) == 0.4  # 0 alone stays
    assert hit_rate(uses, 1, least_recent(uses)) == 0
    assert hit_rate(uses, 2, farthest(uses)) >= hit_rate(uses, 2, least_recent(uses))
    assert hit_rate(uses, 3, farthest(uses)) == 0.5
    assert che([0.5] * 8, 8) == 1 and abs(che([0.01] * 800, 400) - 0.5) < 0.01
    assert che([0.9] + [0.1] * 9, 3) > che([0.18] * 10, 3)
    lines = curves(model, uses)
    assert lines["least recently used"][-1] == 0.6 and svg(lines, "t").count("<polyline") == len(lines)
    print("ok")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", nargs="?", help="file of --expert-trace")
    parser.add_argument("-o", "--output", help="write the curves to this file as an SVG")
    parser.add_argument("--self-test", action="store_true")
    args = parser.parse_args()
    if args.self_test:
        return self_test()
    if not args.trace:
        parser.error("name a trace")
    with open(args.trace, encoding="utf-8") as file:
        model, uses = read_trace(file)
    if not uses:
        sys.exit(f"{args.trace}: no steps of {FEW_TOKENS} tokens or fewer")
    lines = curves(model, uses)
    print("| experts in memory | " + " | ".join(lines) + " |")
    print("|---|" + "---|" * len(lines))
    for i, share in enumerate(SHARES):
        print(f"| {share:.1%} | " + " | ".join(f"{rates[i]:.1%}" for rates in lines.values()) + " |")
    if args.output:
        title = f"{model['architecture']}, {model['n_layer']} layers, {model['n_expert_used']} of {model['n_expert']} experts"
        pathlib.Path(args.output).write_text(svg(lines, title), encoding="utf-8")


if __name__ == "__main__":
    main()
