#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Checks the documentation against the sources; prints what is wrong and exits with 1.

Usage: docs/check.py [--printed OUTPUT]
Checked: relative links and anchors of every page; code marked "from FILE" occurs in that file;
docs/layer.svg is current and its labels occur in the headers. With --printed, text marked "printed
by FILE" equals the lines of OUTPUT, numbers to one part in a thousand, but for bytes held, which
depend on the number of threads.
"""

import pathlib
import re
import subprocess
import sys

DOCS = pathlib.Path(__file__).resolve().parent
ROOT = DOCS.parent
PAGES = sorted([*DOCS.glob("*.md"), *ROOT.glob("*.md"), *ROOT.glob("examples/*.md")])
BLOCK = r"<!-- %s (\S+) -->\n```\w*\n(.*?)```"


def prose(page):
    return re.sub(r"```.*?```", "", page.read_text(), flags=re.S)


def anchors(page):
    """Anchors as GitHub makes them from headings."""
    headings = re.findall(r"^#+ (.*)$", prose(page), re.M)
    return {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}


def broken_links(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if re.match(r"\w+:", target):
            continue
        file, _, anchor = target.partition("#")
        path = (page.parent / file).resolve() if file else page
        if not path.exists():
            yield f"link to {target}: no such file"
        elif anchor and anchor not in anchors(path):
            yield f"link to {target}: no such heading"


def stale_code(page):
    for file, block in re.findall(BLOCK % "from", page.read_text(), re.S):
        if block not in (page.parent / file).read_text():
            yield f"code that begins with {block.splitlines()[0]!r} is not in {file}"


def same_line(expected, got):
    if expected.startswith("bytes held"):
        return got.startswith("bytes held")
    words = list(zip(expected.split(), got.split()))
    if len(expected.split()) != len(got.split()):
        return False
    for a, b in words:
        try:
            if abs(float(a) - float(b)) > 1e-3 * abs(float(a)):
                return False
        except ValueError:
            if a != b:
                return False
    return True


def stale_output(page, printed):
    for file, block in re.findall(BLOCK % "printed by", page.read_text(), re.S):
        expected = block.rstrip().splitlines()
        got = printed.read_text().rstrip().splitlines()
        if len(expected) != len(got):
            yield f"output of {file} has {len(got)} lines, the page {len(expected)}"
        for a, b in zip(expected, got):
            if not same_line(a, b):
                yield f"output of {file}: {b!r}, the page says {a!r}"


def main(arguments):
    if arguments and (len(arguments) != 2 or arguments[0] != "--printed"):
        print(__doc__, file=sys.stderr)
        return 2
    wrong = 0
    for page in PAGES:
        complaints = [*broken_links(page), *stale_code(page)]
        if arguments:
            complaints += stale_output(page, pathlib.Path(arguments[1]))
        for complaint in complaints:
            print(f"{page.relative_to(ROOT)}: {complaint}", file=sys.stderr)
        wrong += len(complaints)
    wrong += subprocess.run([sys.executable, DOCS / "figures/layer.py", "--check"]).returncode
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
