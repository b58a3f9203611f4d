#!/usr/bin/env python3
"""Replays the experts that a run has chosen (tandem run --expert-trace FILE) against caches of different sizes and
policies, and draws the hit rates as an SVG.

    build/bin/tandem run -m model.gguf --max-ram 8GiB --expert-trace trace.txt -p "..." -n 200
    scripts/expert_report.py trace.txt -o hits.svg --gpu-output slots.svg
    scripts/expert_report.py --self-test

The first table is of one cache of all layers, in host memory. Policies: least recently used, which tandem has in host
memory; least frequently used, with counts that halve every 256 steps (which it has on GPUs, in each layer for itself) or of
the whole run; and the best possible, which evicts the expert whose next use is farthest away. Two lines are predicted, with
Che's approximation for a least-recently-used cache, as `tandem plan` does: from how often the trace uses each expert, and
from Zipf's law. All caches start empty, and are shared by all layers. Steps of more than 16 tokens are left out: they pass
through.

The second table is of a GPU's slots, as src/exec/expert_cache.cpp fills them: so many in each layer, and in every step one
expert at most is brought to a layer (--kept), because the bus carries no more beside. Policies: least recently used; least
frequently used with counts that halve every 256 steps; and the same with the router's look-ahead: what the next layer's
router would choose for a layer's input is brought before that layer asks for it, and stays till then. Each cell has the
share found, the experts brought for each layer and step, and those that are read from host memory then: brought, or missing
and computed by the CPU. A step takes as long as these reads where the bandwidth of host memory limits it, so the policy with
the fewest is the best, and it is the default. "right" is the share of the guesses that the layer then chooses.
"""

import argparse
import heapq
import json
import math
import pathlib
import sys

FEW_TOKENS = 16  # kFewTokens of src/exec/expert_room.h
ZIPF = 0.7  # kUsualExpertSkew of src/plan/expert_hits.h
HALF_LIFE = 256  # kHalfLife of src/exec/cache_policy.h
SHARES = [1 / 64, 1 / 32, 1 / 16, 1 / 8, 3 / 16, 1 / 4, 3 / 8, 1 / 2, 5 / 8, 3 / 4, 7 / 8, 1]


def read_trace(lines):
    """The model, the experts of each (step, layer) as a list of keys (layer, expert), and what each guesses of the next."""
    lines = iter(lines)
    head = json.loads(next(lines))
    if head.get("kind") != "tandem expert trace":
        raise ValueError("no trace of experts")
    model, uses, guesses = head["model"], [], []
    for line in lines:
        chosen, _, guessed = line.partition(">")
        layer, *experts = chosen.split()
        pairs = [tuple(map(int, e.split(":"))) for e in experts]
        n_tokens = sum(n for _, n in pairs) / model["n_expert_used"]
        if n_tokens <= FEW_TOKENS:
            uses.append([(int(layer), e) for e, _ in pairs])
            guesses.append([int(e) for e in guessed.split()])
    return model, uses, guesses


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


class Slots:
    """A layer's slots on a GPU: the ExpertCache and a CachePolicy."""

    def __init__(self, n_slots, policy):
        self.n_slots, self.policy = n_slots, policy
        self.held, self.scores, self.expected, self.step, self.may_keep = set(), {}, set(), 1, 0.0

    def score(self, expert):
        return math.inf if expert in self.expected else self.scores.get(expert, 0.0)

    def used(self, expert):
        if self.policy == "recent":
            self.scores[expert] = self.step
        else:
            self.scores[expert] = self.scores.get(expert, 0.0) + 2 ** (self.step / HALF_LIFE)

    def bring(self, expert, in_use):
        if len(self.held) >= self.n_slots:
            free = [e for e in self.held if e not in in_use]
            victim = min(free, key=self.score, default=None)
            if victim is None or math.isinf(self.score(victim)) or self.score(expert) < self.score(victim):
                return False
            self.held.remove(victim)
        self.held.add(expert)
        self.may_keep -= 1
        return True

    def find(self, experts, kept):
        """Returns the experts found, and of the others how many are brought."""
        for expert in experts:
            self.used(expert)
        missing = [e for e in experts if e not in self.held]
        if not self.expected:
            self.may_keep = min(1.0, self.may_keep + kept)
        best = max(missing, key=self.score, default=None)
        brought = best is not None and self.may_keep >= 1 and self.bring(best, experts)
        self.expected = set()
        self.step += 1
        return len(experts) - len(missing), brought

    def look_ahead(self, guesses, kept):
        self.expected, n = set(guesses), 0
        self.may_keep = min(1.0, self.may_keep + kept)
        for expert in guesses:
            if self.may_keep < 1:
                break
            if expert in self.held:
                continue
            if not self.bring(expert, ()):
                break
            n += 1
        return n


def slots_rate(uses, guesses, n_slots, policy, kept):
    """The share of the uses found, and the experts brought and read from host memory for each (step, layer)."""
    layers = sorted({layer for keys in uses for layer, _ in keys})
    following = dict(zip(layers, layers[1:]))
    slots = {layer: Slots(n_slots, policy) for layer in layers}
    n_used = n_found = n_brought = 0
    for keys, guessed in zip(uses, guesses):
        if not keys:
            continue
        layer = keys[0][0]
        found, brought = slots[layer].find([e for _, e in keys], kept)
        n_used, n_found, n_brought = n_used + len(keys), n_found + found, n_brought + brought
        if policy == "ahead" and guessed and layer in following:
            n_brought += slots[following[layer]].look_ahead(guessed, kept)
    return n_found / n_used, n_brought / len(uses), (n_used - n_found + n_brought) / len(uses)


def right_guesses(uses, guesses):
    """The share of the guesses that the next layer chooses."""
    n = n_right = 0
    for i, guessed in enumerate(guesses[:-1]):
        chosen = {e for _, e in uses[i + 1]}
        n += len(guessed)
        n_right += sum(e in chosen for e in guessed)
    return n_right / n if n else 0.0


def slots_curves(model, uses, guesses, kept):
    slots = [max(1, round(share * model["n_expert"])) for share in SHARES]
    names = {"recent": "least recently used", "frequent": "least frequently used lately",
             "ahead": "the same with look-ahead"}
    return {name: [slots_rate(uses, guesses, n, policy, kept) for n in slots] for policy, name in names.items()}


def fewest_reads(of_slots):
    """The policies, each with the number of rows in which it reads least from host memory; rows without room for all."""
    rows = [i for i, share in enumerate(SHARES) if share < 1]
    best = [min(of_slots, key=lambda name: of_slots[name][i][2]) for i in rows]
    return ", ".join(f"{name} in {best.count(name)} of {len(rows)} rows" for name in of_slots)


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


def counts_of(uses):
    """Layers, and how often each expert of them is used."""
    counts = {}
    for keys in uses:
        for key in keys:
            counts[key] = counts.get(key, 0) + 1
    return sorted({layer for keys in uses for layer, _ in keys}), counts


def zipf_law(model):
    """The probability of each expert of a layer that a token chooses it."""
    law = [r ** -ZIPF for r in range(1, model["n_expert"] + 1)]
    return [min(1, p * model["n_expert_used"] / sum(law)) for p in law]


def predicted_slots(model, uses):
    """Of a GPU's slots, as `tandem plan` predicts: they have the experts used most of each layer."""
    layers, counts = counts_of(uses)
    traced = [sorted((counts.get((layer, e), 0.5) for e in range(model["n_expert"])), reverse=True) for layer in layers]
    slots = [max(1, round(share * model["n_expert"])) for share in SHARES]
    total, law = sum(map(sum, traced)), zipf_law(model)
    return {
        "predicted from the trace": [sum(sum(p[:n]) for p in traced) / total for n in slots],
        f"predicted, Zipf {ZIPF}": [sum(law[:n]) / sum(law) for n in slots],
    }


def curves(model, uses):
    layers, counts = counts_of(uses)
    n_experts = len(layers) * model["n_expert"]
    n_steps = len(uses) / max(1, len(layers))
    traced = [counts.get((layer, e), 0.5) / n_steps for layer in layers for e in range(model["n_expert"])]
    zipf = zipf_law(model) * len(layers)
    slots = [max(1, round(share * n_experts)) for share in SHARES]
    return {
        "best possible": [hit_rate(uses, n, farthest(uses)) for n in slots],
        "least frequently used lately": [hit_rate(uses, n, lately_frequent(uses)) for n in slots],
        "least frequently used": [hit_rate(uses, n, least_frequent(uses)) for n in slots],
        "least recently used": [hit_rate(uses, n, least_recent(uses)) for n in slots],
        "predicted from the trace": [che(traced, n) for n in slots],
        f"predicted, Zipf {ZIPF}": [che(zipf, n) for n in slots],
    }


def svg(lines, title, where="experts in memory"):
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
                f"{where}</text>")
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
    model, uses, guesses = read_trace([head] + [f"0 {e}:1" for e in order] + ["0 0:20 1:20"])
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
    assert guesses == [[]] * len(order)
    # The most used one has 5 of 10 uses, and both of the next 2.
    assert predicted_slots(model, uses)["predicted from the trace"][0] == 0.5
    assert predicted_slots(model, uses)["predicted from the trace"][-1] == 1
    # One slot: always the last one; frequent: 0 stays when it has been used more often.
    assert slots_rate(uses, guesses, 1, "recent", 1)[0] == 0
    assert slots_rate(uses, guesses, 1, "frequent", 1)[0] == 0.3
    assert slots_rate(uses, guesses, 4, "recent", 1) == (0.6, 0.4, 0.8)
    assert slots_rate(uses, guesses, 4, "recent", 0.5)[0] == 0.2  # every other step may bring one
    # Two layers, the second chooses at random, and the first knows what: one slot is enough.
    known = [f"{layer} {e if layer else 0}:1" + ("" if layer else f" > {e}") for e in order for layer in (0, 1)]
    model, uses, guesses = read_trace([head] + known)
    assert right_guesses(uses, guesses) == 1
    assert slots_rate(uses, guesses, 1, "ahead", 1)[0] > 0.85 > slots_rate(uses, guesses, 1, "frequent", 1)[0]
    print("ok")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", nargs="?", help="file of --expert-trace")
    parser.add_argument("-o", "--output", help="write the curves to this file as an SVG")
    parser.add_argument("--gpu-output", metavar="FILE", help="write the curves of a GPU's slots to this file as an SVG")
    parser.add_argument("--kept", type=float, default=1, help="experts brought to a layer in a step, at most 1")
    parser.add_argument("--self-test", action="store_true")
    args = parser.parse_args()
    if args.self_test:
        return self_test()
    if not args.trace:
        parser.error("name a trace")
    with open(args.trace, encoding="utf-8") as file:
        model, uses, guesses = read_trace(file)
    if not uses:
        sys.exit(f"{args.trace}: no steps of {FEW_TOKENS} tokens or fewer")
    lines = curves(model, uses)
    print("| experts in memory | " + " | ".join(lines) + " |")
    print("|---|" + "---|" * len(lines))
    for i, share in enumerate(SHARES):
        print(f"| {share:.1%} | " + " | ".join(f"{rates[i]:.1%}" for rates in lines.values()) + " |")
    of_slots, predicted = slots_curves(model, uses, guesses, args.kept), predicted_slots(model, uses)
    print(f"\n| slots of a layer | {' | '.join([*of_slots, *predicted])} |\n|---|" + "---|" * (len(of_slots) + len(predicted)))
    for i, share in enumerate(SHARES):
        cells = [f"{c[i][0]:.1%}, {c[i][1]:.2f}, {c[i][2]:.2f}" for c in of_slots.values()]
        print(f"| {share:.1%} | " + " | ".join(cells + [f"{c[i]:.1%}" for c in predicted.values()]) + " |")
    print(f"\nfewest reads of host memory: {fewest_reads(of_slots)}")
    print(f"guesses of the next layer's experts: {right_guesses(uses, guesses):.1%} right")
    title = f"{model['architecture']}, {model['n_layer']} layers, {model['n_expert_used']} of {model['n_expert']} experts"
    if args.gpu_output:
        rates = {name: [rate for rate, *_ in curve] for name, curve in of_slots.items()}
        pathlib.Path(args.gpu_output).write_text(svg({**rates, **predicted}, title, "a layer's experts in slots of a GPU"), encoding="utf-8")
    if args.output:
        pathlib.Path(args.output).write_text(svg(lines, title), encoding="utf-8")


if __name__ == "__main__":
    main()
