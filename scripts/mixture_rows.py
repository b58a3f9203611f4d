"""The rows of `offload_report.py --mixtures`: what `tandem plan` predicts for mixtures larger than a GPU, beside figures that
others have published for similar machines. Nothing is written or measured."""

import itertools

MODELS = {"gpt-oss-120b": "MXFP4_MOE", "qwen3.6-35b-a3b": "Q4_K_M", "glm-4.5-air": "Q4_K_M", "deepseek-v3": "Q4_K_M"}
VRAM, RAM = (8, 16, 24, 32), (32, 64, 128)  # GiB
MACHINE = ["--vram-bw", 936, "--pcie-bw", 25, "--ram-bw", 80, "--disk-bw", 5]  # GB/s
HEADER = ("model", "VRAM", "RAM", "placement", "prefill t/s", "decode t/s", "published prefill / decode t/s")
# Tokens per second by others: (model, GiB of VRAM).
PUBLISHED = {
    ("gpt-oss-120b", 8): "134 / 25.6 (8 GB used, 14900K)",
    ("gpt-oss-120b", 24): "380, 2091 with micro-batches of 8192 / 30-33 (3090)",
    ("deepseek-v3", 24): "88, 255 with AMX / 13.4 (4090, two 6454S)",
}


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


def rows(plan, models=None):
    """plan(model, options) returns the JSON of `tandem plan`, or raises RuntimeError with the reason."""
    for model, vram, ram in itertools.product(models or MODELS, VRAM, RAM):
        options = ["--type", MODELS.get(model, "Q4_K_M"), "--vram", f"{vram}GiB", "--max-ram", f"{ram}GiB", *MACHINE]
        try:
            best = plan(model, options)["plans"][0]
            cells = [placement_text(best), f"{best['prefill_tokens_per_s']:.0f}", f"{best['decode_tokens_per_s']:.1f}"]
        except RuntimeError as error:
            cells = [f"none: {error}", "-", "-"]
        yield [model, vram, ram, *cells, PUBLISHED.get((model, vram), "-")]
