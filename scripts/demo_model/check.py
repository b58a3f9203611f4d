#!/usr/bin/env python3
"""Checks a trained folder with transformers: compares the logits with those of model.py, asks new questions of every
family (see dialogues.py) that has one right answer, and prints a few stories.

    python3 scripts/demo_model/check.py DIR [--questions 20]

Needs the packages of train.py and transformers. Exits with 1 if the logits differ.
"""

import argparse
import json
import pathlib
import random
import sys

import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

import corpus
import dialogues
from model import Decoder

EXACT = """add animal_fact calendar colour compare count is_it_that_colour mix
my_name opposite repeat which_animal who_are_you word_sum""".split()
PROMPTS = ["Once upon a time", "A little fox", "One rainy day, Tom"]


def logits_differ(folder, theirs, tokenizer):
    """The largest difference between the logits of both programs, relative to the largest logit."""
    ours = Decoder(json.loads((folder / "config.json").read_text()))
    ours.load_state_dict(load_file(folder / "model.safetensors"))
    text = corpus.held_out_stories(corpus.HELD_OUT_SEED, 3000)
    ids = tokenizer(text, return_tensors="pt").input_ids[:, :256]
    with torch.no_grad():
        expected, found = ours(ids), theirs(ids).logits
    return ((expected - found).abs().max() / expected.abs().max()).item()


def complete(model, tokenizer, text, n, **sampling):
    ids = tokenizer(text, return_tensors="pt").input_ids
    out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=n, **sampling)
    return tokenizer.decode(out[0, ids.shape[1] :], skip_special_tokens=True)


def answers_of(model, tokenizer, family, n):
    """The number of correct answers to questions of a family, and one wrong answer."""
    rng, right, wrong = random.Random(17), 0, ""
    for _ in range(n):
        turns = getattr(dialogues, family)(rng)
        messages = []
        for question, answer in turns[:-1]:
            messages += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
        question, expected = turns[-1]
        messages.append({"role": "user", "content": dialogues.as_typed(rng, question)})
        prompt = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        found = complete(model, tokenizer, prompt, 120, do_sample=False).strip()
        if found == expected or len(turns) == 1 and family == "my_name":  # a greeting has several right answers
            right += 1
        else:
            wrong = f"{messages[-1]['content']} -> {found}"
    return right, wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--questions", type=int, default=20, help="questions of each family")
    args = parser.parse_args()
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_pretrained(args.folder, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(args.folder)

    difference = logits_differ(args.folder, model, tokenizer)
    print(f"logits differ by {difference:.1e} of the largest\n")
    for family in EXACT:
        right, wrong = answers_of(model, tokenizer, family, args.questions)
        print(f"{family:18} {right:3} of {args.questions} right  {wrong}")
    for prompt in PROMPTS:
        print(f"\n{prompt} |{complete(model, tokenizer, prompt, 250, do_sample=False)}")
        print(f"\n{prompt} |{complete(model, tokenizer, prompt, 250, do_sample=True, temperature=0.7)}")
    if difference > 1e-4:
        sys.exit("the logits of transformers and of model.py differ")


if __name__ == "__main__":
    main()
