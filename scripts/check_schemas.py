#!/usr/bin/env python3
"""Samples JSON with `tandem run --json-schema` for every schema in tests/support/schemas.h and checks it with Python's
jsonschema, formats included. Needs the packages jsonschema and rfc3339-validator (for times).

    scripts/check_schemas.py MODEL.gguf [--tandem build/bin/tandem] [-n 5] [--temp 1.5]

Any model will do: the check is that no invalid output is possible. Exits with 1 if an output does not parse or validate;
outputs cut short by --tokens are counted separately.
"""

import argparse
import json
import pathlib
import re
import subprocess
import sys

import jsonschema


def schemas(root):
    text = (root / "tests/support/schemas.h").read_text()
    return [json.loads(found) for found in re.findall(r'R"json\((.*?)\)json"', text, re.S)]


def sample(args, schema, seed):
    """The output, and whether it is complete."""
    command = [args.tandem, "run", "-m", args.model, "-p", "The JSON is", "--no-display-prompt", "-n", str(args.tokens),
               "-c", "0", "--context-shift", "--temp", str(args.temp), "--top-k", "0", "--top-p", "1", "--min-p", "0",
               "-s", str(seed), "-j", json.dumps(schema)]
    done = subprocess.run(command, capture_output=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: exit code {done.returncode}: {done.stderr.decode()}")
    return done.stdout.decode(), b"-n reached" not in done.stderr


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    root = pathlib.Path(__file__).resolve().parent.parent
    parser.add_argument("model")
    parser.add_argument("--tandem", default=str(root / "build/bin/tandem"))
    parser.add_argument("-n", type=int, default=5, help="outputs for each schema")
    parser.add_argument("--tokens", type=int, default=2000, help="maximum tokens per output")
    parser.add_argument("--temp", type=float, default=1.5)
    args = parser.parse_args()
    checker = jsonschema.Draft202012Validator.FORMAT_CHECKER
    n_good = n_cut = 0
    problems = []
    for schema in schemas(root):
        # OpenAPI's "nullable" is the only keyword here that is not part of JSON Schema.
        plain = json.loads(json.dumps(schema).replace('"type": "integer", "nullable": true', '"type": ["integer", "null"]'))
        validator = jsonschema.Draft202012Validator(plain, format_checker=checker)
        for seed in range(args.n):
            text, complete = sample(args, schema, seed)
            if not complete:
                n_cut += 1
                continue
            try:
                validator.validate(json.loads(text))
                n_good += 1
            except (ValueError, jsonschema.ValidationError) as error:
                problems.append(f"{json.dumps(schema)}\n  gave {text!r}\n  {error}")
    print(f"{n_good} outputs are valid, {n_cut} were cut short, {len(problems)} are invalid")
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems or n_good == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
