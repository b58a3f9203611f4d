"""The rows of `offload_report.py --mixtures`: what `tandem plan` predicts for mixtures larger than a GPU, beside figures that
others have published for similar machines; and with --measure, what `tandem bench` measures on this one."""

import itertools
import os
import statistics

MODELS = {"gpt-oss-120b": "MXFP4_MOE", "qwen3.6-35b-a3b": "Q4_K_M", "glm-4.5-air": "Q4_K_M", "deepseek-v3": "Q4_K_M"}
VRAM, RAM = (8, 16, 24, 32), (32, 64, 128)  # GiB
MACHINE = ["--vram-bw", 936, "--pcie-bw", 25, "--ram-bw", 80, "--disk-bw", 5]  # GB/s
HEADER = ("model", "VRAM", "RAM", "placement", "prefill t/s", "decode t/s", "published prefill / decode t/s")
MEASURED_HEADER = ("model", "VRAM", "RAM", "placement", "prefill t/s", "measured", "decode t/s", "measured", "published prefill / decode t/s")
SKEW = 0.7  # of the routers of models that are written to be measured
# Tokens per second by others: (model, GiB of VRAM).
PUBLISHED = {
    ("gpt-oss-120b", 8): "134 / 25.6 (8 GB used, 14900K)",
    ("gpt-oss-120b", 24): "380, 2091 with micro-batches of 8192 / 30-33 (3090)",
    ("deepseek-v3", 24): "88, 255 with AMX / 13.4 (4090, two 6454S)",
}
# Of other mixtures, for comparison.
OTHERS = (
    "Qwen3-235B Q4_K_M, 3090 and 8470Q: decode 10",
    "Qwen3.5-122B Q4_K_L, 4090 and 7950X: prefill 530; decode 15.7 with all experts on the CPU, 17.9 by layers, 22.7 with a cache of hot experts",
    "MiniMax-M2.1 FP8, 5090 and two 9355: prefill 408, 1196, 2540 of 2k, 8k, 32k tokens; decode 28-32",
    "DeepSeek-V4-Flash, 5090 and a 64-core EPYC: decode 24.5-26.9; from NVMe with 32 GB of memory 1.85-1.99",
    "GLM-5.2 744B int4 from Gen5 NVMe, 5090: decode 1.23",
    "a mixture of 107 GB, 12 GB of GPU memory and 32 GB of the host's: prefill 118",
)


def placement_text(plan):
    parts = [f"ngl {plan['n_gpu_layers']}", f"stream {plan['streaming']}"]
    if plan["n_cpu_moe"]:
        parts.append(f"experts of {plan['n_cpu_moe']} layers on the CPU")
    if plan["n_cached_experts"]:
        parts.append(f"{plan['n_cached_experts']} of each on the GPU too")
    if plan["chosen_experts"]:
        parts.append("experts on disk")
    elif plan["n_disk_layers"]:
        parts.append(f"{plan['n_disk_layers']} layers on disk")
    return ", ".join(parts)


def limits(vram, ram):
    """All pairs of GiB; `vram` None: no GPU."""
    return itertools.product([None] if vram is None else vram, ram)


def shape_of(model):
    """gpt-oss-120b, of gpt-oss-120b:4, its first four layers."""
    return model.partition(":")[0]


def predicted_cells(plan):
    return [placement_text(plan), f"{plan['prefill_tokens_per_s']:.0f}", f"{plan['decode_tokens_per_s']:.1f}"]


def rows(plan, models=None, vram=VRAM, ram=RAM):
    """plan(model, options) returns the JSON of `tandem plan`, or raises RuntimeError with the reason."""
    for model, (gpu, host) in itertools.product(models or MODELS, list(limits(vram, ram))):
        options = ["--type", MODELS.get(model, "Q4_K_M"), "--vram", f"{gpu}GiB", "--max-ram", f"{host}GiB", *MACHINE]
        try:
            cells = predicted_cells(plan(model, options)["plans"][0])
        except RuntimeError as error:
            cells = [f"none: {error}", "-", "-"]
        yield [model, gpu, host, *cells, PUBLISHED.get((model, gpu), "-")]


def measured_rows(tandem, model, path, vram, ram):
    """Rows of a model in a file, on this machine: predicted for it, and measured. `vram` None: without a GPU."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for gpu, host in limits(vram, ram):
        row = [model, gpu or "-", host]
        options = ["--max-ram", f"{host}GiB", *(["--device", "none"] if gpu is None else ["--max-vram", f"{gpu}GiB"])]
        published = "-" if ":" in model else PUBLISHED.get((model, gpu), "-")
        try:
            if host * 2**30 > memory:
                raise RuntimeError(f"this machine has {memory / 2**30:.0f} GiB of memory")
            best = tandem.plan(path, options)["plans"][0]
            where, prefill, decode = predicted_cells(best)
            n_ctx, n_gen = tandem.arguments.ctx, tandem.arguments.gen
            found = [tandem.bench(path, [*what, *options]) for what in
                     (["-p", min(n_ctx, max(512, best["n_ubatch"])), "-n", 0], ["-p", 0, "-n", n_gen, "-d", max(0, (n_ctx - n_gen) // 2)])]
            speeds = [f"{statistics.median(f['samples_ts']):.{digits}f}" for f, digits in zip(found, (0, 1))]
            yield [*row, where, prefill, speeds[0], decode, speeds[1], published]
        except RuntimeError as error:
            yield [*row, f"none: {error}", "-", "-", "-", "-", published]
