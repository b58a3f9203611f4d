#!/usr/bin/env python3
"""Trains tandem's demo model from scratch and writes it as a Hugging Face folder.

    python3 scripts/demo_model/train.py --out DIR [--minutes 50] [--workers 2]
    python3 scripts/demo_model/train.py --out DIR --experts 16 --used 4    # a mixture of experts instead

Needs Python 3.10 or later with torch, numpy, tokenizers and safetensors. The learning rate follows the clock, so that
training ends after --minutes on any machine. With --steps N it follows the steps instead, and the same machine trains
the same model again. The folder is rewritten every minute and is usable at any time.
"""

import json
import math
import time

import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch.nn import functional as F

import corpus
from model import Decoder
from options import make_config, parse_args


def write_folder(out, model, config, tokenizer):
    def write_json(name, value):
        (out / name).write_text(json.dumps(value, indent=2) + "\n")

    write_json("config.json", config)
    write_json(
        "generation_config.json", {"bos_token_id": 0, "eos_token_id": [2, 0], "do_sample": True, "temperature": 0.7}
    )
    write_json(
        "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": corpus.BOS,
            "eos_token": corpus.IM_END,
            "pad_token": corpus.BOS,
            "add_bos_token": True,
            "add_eos_token": False,
            "clean_up_tokenization_spaces": False,
            "model_max_length": config["max_position_embeddings"],
            "chat_template": corpus.CHAT_TEMPLATE,
        },
    )
    tokenizer.save(str(out / "tokenizer.json"))
    temporary = out / "model.safetensors.tmp"
    save_file({name: tensor.contiguous() for name, tensor in model.state_dict().items()}, temporary, {"format": "pt"})
    temporary.replace(out / "model.safetensors")


def loss_of(model, batch):
    return F.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())


def learning_rate(args, progress):
    """A short warm-up, then a cosine decay to 1/50."""
    if progress < 0.03:
        return args.lr * (progress + 0.0005) / 0.0305
    return args.lr * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * min(1.0, progress))))


def average_gradients(model, progress):
    """Averages over the workers. The same exchange carries the first worker's progress, so that all stop together."""
    flat = torch.cat([p.grad.flatten() for p in model.parameters()] + [torch.tensor([progress])])
    dist.all_reduce(flat)
    offset = 0
    for p in model.parameters():
        p.grad.copy_(flat[offset : offset + p.numel()].view_as(p) / dist.get_world_size())
        offset += p.numel()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    return flat[-1].item()


def train(args, worker, model, tokenizer, config):
    matrices = [p for p in model.parameters() if p.dim() == 2]
    vectors = [p for p in model.parameters() if p.dim() != 2]
    groups = [{"params": matrices, "weight_decay": 0.05}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=args.lr, betas=(0.9, 0.98), fused=True)
    length = config["max_position_embeddings"] + 1
    source = corpus.rows(tokenizer, corpus.TRAIN_SEED + 1000 * worker, length)
    held_out = corpus.rows(tokenizer, corpus.HELD_OUT_SEED, length, held_out=True)
    test_batch = torch.tensor([next(held_out) for _ in range(8)])

    start = written = time.monotonic()
    step, progress = 0, 0.0
    while progress < 1:
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(args, progress)
        loss = loss_of(model, torch.tensor([next(source) for _ in range(args.rows)]))
        optimizer.zero_grad()
        (loss + config.get("router_aux_loss_coef", 0) * model.imbalance()).backward()
        step += 1
        elapsed = time.monotonic() - start
        mine = (step / args.steps if args.steps else elapsed / 60 / args.minutes) if worker == 0 else 0.0
        progress = average_gradients(model, mine)
        optimizer.step()
        if worker == 0 and (time.monotonic() - written > 60 or progress >= 1):
            written = time.monotonic()
            with torch.no_grad():
                test_loss = loss_of(model, test_batch).item()
            rate = step * args.rows * args.workers * (length - 1) / elapsed
            losses = f"loss {loss.item():.3f}  held out {test_loss:.4f}"
            print(f"{elapsed / 60:5.1f} min  step {step}  {losses}  {rate:.0f} tokens/s", flush=True)
            write_folder(args.out, model, config, tokenizer)


def work(worker, args):
    """A worker process. It has one thread: small matrices gain little from more, and on a busy machine threads would
    wait for each other at every product, but workers do so only once per step."""
    torch.set_num_threads(1)
    torch.manual_seed(corpus.TRAIN_SEED)  # the same weights in every worker
    dist.init_process_group(
        "gloo", init_method=f"file://{(args.out / '.workers').resolve()}", rank=worker, world_size=args.workers
    )
    tokenizer = Tokenizer.from_file(str(args.out / "tokenizer.json"))
    config = make_config(args, tokenizer.get_vocab_size())
    model = Decoder(config)
    if args.start_from:
        model.load_state_dict(load_file(args.start_from / "model.safetensors"))
    if worker == 0:
        print(
            f"{sum(p.numel() for p in model.parameters()) / 1e6:.2f} M parameters, {config['vocab_size']} tokens",
            flush=True,
        )
    train(args, worker, model, tokenizer, config)
    dist.destroy_process_group()


def main():
    args = parse_args(description=__doc__)
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / ".workers").unlink(missing_ok=True)
    if args.start_from:
        tokenizer = Tokenizer.from_file(str(args.start_from / "tokenizer.json"))
    else:
        tokenizer = corpus.train_tokenizer(corpus.TOKENIZER_SEED, args.vocab)
    tokenizer.save(str(args.out / "tokenizer.json"))
    torch.multiprocessing.spawn(work, (args,), args.workers)
    (args.out / ".workers").unlink(missing_ok=True)


if __name__ == "__main__":
    main()
