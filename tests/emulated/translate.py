#!/usr/bin/env python3
"""Translates the CUDA device's sources to plain C++ for the emulator in this folder.

    translate.py FROM TO     translates every source and header of FROM (ggml-cuda/) into the folder TO

Launches in triple angle brackets, shared memory and inline PTX become calls of emulator.h. Everything else, including
the kernels, stays unchanged. Unchanged files keep their modification time.
"""

import pathlib
import re
import sys

SUFFIXES = {".h": ".h", ".cuh": ".cuh", ".cu": ".cpp", ".cpp": ".cpp"}


def closing(text, opening):
    """Index of the bracket that closes the one at `opening`; strings are skipped."""
    depth, i = 0, opening
    while i < len(text):
        if text[i] == '"':
            i = string_end(text, i) - 1
        elif text[i] in "([{":
            depth += 1
        elif text[i] in ")]}":
            depth -= 1
            if depth == 0:
                return i
        i += 1
    raise ValueError(f"unbalanced brackets: {text[opening:opening + 80]}")


def string_end(text, begin):
    end = begin + 1
    while text[end] != '"':
        end += 2 if text[end] == "\\" else 1
    return end + 1


def skip_space(text, i):
    while text[i].isspace():
        i += 1
    return i


def parse_asm(body):
    """The instruction and the operands [(section, constraint, expression)] of an asm statement's body."""
    i, instruction, operands, section = skip_space(body, 0), "", [], 0
    body += " \0"
    while body[i] == '"':
        end = string_end(body, i)
        instruction += body[i + 1:end - 1]
        i = skip_space(body, end)
    while body[i] != "\0":
        if body[i] == ":":
            section += 1
            i = skip_space(body, i + 1)
        elif body[i] == ",":
            i = skip_space(body, i + 1)
        elif body[i] == '"':
            end = string_end(body, i)
            constraint = body[i + 1:end - 1]
            i = skip_space(body, end)
            expression = None
            if body[i] == "(":
                end = closing(body, i)
                expression = body[i + 1:end]
                i = skip_space(body, end + 1)
            operands.append((section, constraint, expression))
        else:
            raise ValueError(f"asm: {body}")
    return instruction, operands


def translate_asm(text):
    pattern = re.compile(r"\basm\s*(?:volatile\s*)?\(")
    out, at = "", 0
    for match in iter(lambda: pattern.search(text, at), None):
        end = closing(text, match.end() - 1)
        instruction, operands = parse_asm(text[match.end():end])
        arguments = []
        for section, constraint, expression in operands:
            if section == 3:
                continue
            kind = "output" if section == 1 else "input"
            if "+" in constraint:
                kind = "in_out"
            arguments.append(f"::emulator::{kind}({expression})")
        out += text[at:match.start()] + f'::emulator::ptx("{instruction}", {{{", ".join(arguments)}}})'
        at = end + 1
    return out + text[at:]


def translate_launches(text):
    # The kernel's name is on the same line, before the brackets.
    pattern = re.compile(r"^([ \t]*)([\w.:<>, ]+?)<<<(.*?)>>>\s*\(\s*(\)?)", re.M | re.S)
    return pattern.sub(lambda m: f"{m[1]}::emulator::at({m[3]}).launch({m[2]}{m[4] or ', '}", text)


def translate_shared(text):
    pattern = re.compile(r"extern __shared__\s+(?:__align__\(\d+\)\s*)?([\w:]+)\s+(\w+)\[\];")
    text = pattern.sub(r"\1* \2 = static_cast<\1*>(::emulator::dynamic_shared());", text)
    pattern = re.compile(r"__shared__\s+([\w:]+)\s+(\w+)((?:\[[^;]*\])?);")
    return pattern.sub(r"static \1 \2\3; ::emulator::poison_shared(&\2, sizeof \2);", text)


def translate_kernels(text):
    """Every kernel checks that its block has no more threads than it is compiled for; without bounds, the compiler may
    give it more registers than a large block has."""
    pattern = re.compile(r"\b__global__\s+void\s+")
    out, at = "", 0
    for match in iter(lambda: pattern.search(text, at), None):
        bounds = re.compile(r"__launch_bounds__\s*\(").match(text, match.end())
        if not bounds:
            raise ValueError(f"a kernel without __launch_bounds__: {text[match.end():match.end() + 60]}")
        end = closing(text, bounds.end() - 1)
        n_threads = re.split(r",(?![^(<]*[)>])", text[bounds.end():end])[0]
        body = text.index("{", closing(text, text.index("(", end + 1))) + 1
        out += text[at:body] + f" ::emulator::check_launch_bounds(static_cast<unsigned>({n_threads}));"
        at = body
    return out + text[at:]


def translate(text):
    return translate_asm(translate_launches(translate_shared(translate_kernels(text))))


def main():
    source, target = map(pathlib.Path, sys.argv[1:])
    for path in sorted(source.rglob("*")):
        if path.suffix not in SUFFIXES:
            continue
        to = target / path.relative_to(source).with_suffix(SUFFIXES[path.suffix])
        text = f'#line 1 "{path}"\n' + translate(path.read_text())
        to.parent.mkdir(parents=True, exist_ok=True)
        if not to.exists() or to.read_text() != text:
            to.write_text(text)


if __name__ == "__main__":
    main()
