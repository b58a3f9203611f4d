"""The options of train.py, and the model that they describe. Needs no packages.

    python3 scripts/demo_model/options.py --self-test
"""

import argparse
import contextlib
import io
import os
import pathlib
import sys


def make_parser(description=None):
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, required=True, help="folder to write")
    parser.add_argument("--minutes", type=float, default=50, help="how long to train")
    parser.add_argument("--steps", type=int, help="train for this many steps instead of --minutes")
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="processes that share each step")
    parser.add_argument("--start-from", type=pathlib.Path, help="continue from the folder of an earlier run")
    parser.add_argument("--vocab", type=int, default=3072, help="vocabulary size")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--experts", type=int, default=0, help="train a mixture of so many experts in each layer")
    parser.add_argument("--used", type=int, help="experts that a token uses (4)")
    parser.add_argument("--rows", type=int, default=2, help="rows of 512 tokens per worker and step")
    parser.add_argument("--lr", type=float, default=2e-3, help="highest learning rate")
    return parser


def parse_args(arguments=None, description=None):
    parser = make_parser(description)
    args = parser.parse_args(arguments)
    if args.experts < 0 or args.experts == 1:
        parser.error(f"--experts {args.experts}: needed 2 or more, or 0 for a model without experts")
    if args.used is not None and not args.experts:
        parser.error(f"--used {args.used}: only with --experts")
    if args.experts:
        args.used = args.used if args.used is not None else min(4, args.experts)
        if not 1 <= args.used <= args.experts:
            parser.error(f"--used {args.used}: needed 1 to {args.experts}, the number of experts")
    return args


def make_config(args, vocab_size):
    """A dict with the keys of config.json: a Llama, or a Qwen3 mixture whose tokens compute as much as in the Llama."""
    width = 512
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": vocab_size,
        "hidden_size": 256,
        "intermediate_size": width,
        "num_hidden_layers": args.layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "max_position_embeddings": 512,
        "tie_word_embeddings": True,
        "attention_bias": False,
        "mlp_bias": False,
        "bos_token_id": 0,
        "eos_token_id": 2,
        "torch_dtype": "float32",
    }
    if not args.experts:
        return config
    return config | {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "num_experts": args.experts,
        "num_experts_per_tok": args.used,
        "moe_intermediate_size": max(32, width // args.used // 32 * 32),
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "router_aux_loss_coef": 0.01,
    }


def self_test():
    def refusal(*arguments):
        errors = io.StringIO()
        with contextlib.redirect_stderr(errors):
            try:
                parse_args(["--out", "x", *arguments])
            except SystemExit as end:
                assert end.code == 2
                return errors.getvalue()
        raise AssertionError(f"{arguments} are accepted")

    def config(*arguments):
        return make_config(parse_args(["--out", "x", *arguments]), 3072)

    assert config()["model_type"] == "llama" and "num_experts" not in config()
    mixture = config("--experts", "16")
    assert mixture["architectures"] == ["Qwen3MoeForCausalLM"]
    assert (mixture["num_experts"], mixture["num_experts_per_tok"], mixture["moe_intermediate_size"]) == (16, 4, 128)
    assert config("--experts", "3")["num_experts_per_tok"] == 3
    assert config("--experts", "8", "--used", "2")["moe_intermediate_size"] == 256
    assert config("--experts", "8", "--used", "3")["moe_intermediate_size"] == 160
    assert "--used 2: only with --experts" in refusal("--used", "2")
    assert "--used 9: needed 1 to 8" in refusal("--experts", "8", "--used", "9")
    assert "--used 0: needed 1 to 8" in refusal("--experts", "8", "--used", "0")
    assert "--experts 1: needed 2 or more" in refusal("--experts", "1")
    assert "--experts -2: needed 2 or more" in refusal("--experts=-2")
    print("ok")


if __name__ == "__main__":
    if sys.argv[1:] != ["--self-test"]:
        sys.exit(__doc__.strip())
    self_test()
