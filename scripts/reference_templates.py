#!/usr/bin/env python3
"""Writes tests/golden/templates/expected.json: what Jinja2 renders from the chat templates there and from the built-in ones.

    scripts/reference_templates.py [--folder tests/golden/templates]
    scripts/reference_templates.py --check      compares with the file that is there

Needs the Python package jinja2. The environment is the one that the transformers library renders chat templates in.
"""

import argparse
import datetime
import json
import pathlib
import re
import sys

try:
    import jinja2
    from jinja2.ext import loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment
except ImportError as error:
    if {"-h", "--help"} & set(sys.argv):
        print(__doc__)
        sys.exit(0)
    sys.exit(f"reference_templates.py: the Python package {error.name} is missing")

ROOT = pathlib.Path(__file__).resolve().parent.parent
NOW = datetime.datetime(2026, 1, 5, 9, 3, 7)
BOS, EOS = "<s>", "</s>"
TOOLS = [
    {"type": "function", "function": {
        "name": "weather", "description": "The weather <now> & \"later\"",
        "parameters": {"type": "object", "properties": {"city": {"type": "string", "enum": ["K\u00f6ln", "\u6771\u4eac"]}},
                       "required": ["city"]}}},
    {"type": "function", "function": {"name": "time", "parameters": {}}},
]
CONVERSATIONS = {
    "user": [{"role": "user", "content": "  Hello,  world!\n"}],
    "turns": [
        {"role": "system", "content": "be BRIEF.\nAlways. "},
        {"role": "user", "content": "Gr\u00fc\u00dfe \U0001f600\n\n<b>\"x\" & 'y'</b>"},
        {"role": "assistant", "content": "<think>hm</think> Fine.\n"},
        {"role": "user", "content": "And you? {{ bos_token }} <|im_end|>"},
    ],
    "answered": [
        {"role": "user", "content": "1 + 1?"},
        {"role": "assistant", "content": " 2 "},
    ],
    "called": [
        {"role": "user", "content": "Is it raining?"},
        {"role": "assistant", "content": None, "tool_calls": [
            {"type": "function", "id": "a1", "function": {"name": "weather", "arguments": {"city": "K\u00f6ln", "days": 2}}},
            {"type": "function", "function": {"name": "time", "arguments": "{\"zone\": null}"}}]},
        {"role": "tool", "name": "weather", "content": "{\"rain\": 0.5}"},
        {"role": "tool", "content": "noon"},
        {"role": "assistant", "content": "No."},
        {"role": "user", "content": "Thanks"},
    ],
    "empty": [{"role": "user", "content": ""}, {"role": "assistant", "content": ""}, {"role": "user", "content": "?"}],
    "answer_first": [{"role": "assistant", "content": "Hi"}],
}


def environment():
    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = NOW.strftime
    return env


def templates(folder):
    """name -> text; the built-in ones are called "builtin NAME"."""
    found = {path.stem: path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.jinja"))}
    source = (ROOT / "src" / "text" / "builtin_templates.cpp").read_text(encoding="utf-8")
    texts = dict(re.findall(r'std::string_view (k\w+) = R"\((.*?)\)";', source, re.DOTALL))
    for name, constant in re.findall(r'\{"(\w+)", (k\w+)\}', source):
        found[f"builtin {name}"] = texts[constant]
    return found


def render(env, text, messages, add_generation_prompt):
    """{"expected": text} or {"error": message}."""
    try:
        return {"expected": env.from_string(text).render(
            messages=messages, tools=TOOLS, bos_token=BOS, eos_token=EOS, add_generation_prompt=add_generation_prompt)}
    except (jinja2.exceptions.TemplateError, TypeError) as error:
        return {"error": str(error)}


def compute(folder):
    env = environment()
    renders = {}
    for name, text in templates(folder).items():
        renders[name] = [
            {"conversation": conversation, "add_generation_prompt": prompt, **render(env, text, messages, prompt)}
            for conversation, messages in CONVERSATIONS.items() for prompt in (True, False)]
    return {"bos_token": BOS, "eos_token": EOS, "tools": TOOLS, "strftime_now_is": NOW.isoformat(),
            "conversations": CONVERSATIONS, "renders": renders}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--folder", type=pathlib.Path, default=ROOT / "tests" / "golden" / "templates")
    parser.add_argument("--check", action="store_true", help="compare with the file instead of writing it")
    options = parser.parse_args()
    data, path = compute(options.folder), options.folder / "expected.json"
    if options.check:
        same = json.loads(path.read_text(encoding="utf-8")) == data
        print("equal" if same else f"{path} differs")
        return 0 if same else 1
    path.write_text(json.dumps(data, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
