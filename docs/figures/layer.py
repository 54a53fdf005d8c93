#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Draws docs/layer.svg: the steps of one layer call, by the labels that a profiler shows.

Usage: docs/figures/layer.py [--check] [FILE]     (FILE: docs/layer.svg beside this folder)
--check compares instead of writing, also verifies that every label occurs in the headers, and
exits with 1 on a difference.
"""

import pathlib
import re
import sys
from xml.sax.saxutils import escape

ROOT = pathlib.Path(__file__).resolve().parents[2]

# (region, [(kernel labels without "lrmoe::", or one string for a step on the host; what they deliver;
#            tag: WAITS where the host waits, OPTIONAL for what only some policies ask for, or None)])
WAITS, OPTIONAL = "host waits", "if asked for"

FORWARD = [
    ("moe_layer::route", [
        (["softmax_top_k::route"], "experts (T, K), weights w (T, K)", None),
        (["check_routing::find"], "verdict", None),
        (["expert_sorter::count", "expert_sorter::scan", "expert_sorter::place"],
         "offsets (E+1); pair_of_row, token_of_row, row_of_pair (P)", None),
        ("offsets and verdict to the host", "counts L (E)", WAITS),
    ]),
    ("moe_layer::plan", [
        ("host: costs, forecast, quota policy", "quotas q (E)", None),
        ("host: sizes of all buffers, memory check", "M kept pairs; kept_offsets (E+1)", None),
    ]),
    ("moe_layer::experts", [
        (["gate_up::tile"], "pre = [g u] (N, 2F), h (N, F), ‖h‖ (N)", None),
        (["down::tile"], "rows y (N, D)", None),
    ]),
    ("moe_layer::combine", [
        (["combine::sum"], "out (T, D)", None),
    ]),
]

BACKWARD = [
    ("moe_layer::select", [
        (["row_norms::sum"], "‖dO‖ (T)", None),
        (["score_pairs::score"], "sizes (N), contributions (N)", None),
        (["pps::select"], "kept rows (M), factors c (M), inclusion π (N)", None),
        (["certificate::sum"], "certificates (E)", None),
        (["size_histogram::count"], "pairs by size (E, 256)", OPTIONAL),
    ]),
    (None, [
        (["kept_pairs::gather"], "tokens (M), weights (M), kept_of_pair (P)", None),
        (["draw_subset::sizes", "draw_subset::tokens"], "second draws: rows for dX, rows for dW", OPTIONAL),
    ]),
    ("moe_layer::experts", [
        (["down_backward::tile"], "d_pre = [dg du] (M, 2F), c w h (M, F), dw (M)", None),
        (["gate_up_backward::tile"], "rows dx (M, D)", None),
        (["weight_gradient::tile"], "dW_down (E, F, D); dW_gate, dW_up (E, D, 2F)", None),
        (["variance_estimate::terms", "variance_estimate::sum"],
         "expected errors of [dW_gate dW_up] and dX", None),
    ]),
    ("moe_layer::combine", [
        (["combine::sum"], "dx (T, D)", None),
        (["kept_pairs::spread"], "d_weights (T, K)", None),
        (["softmax_top_k::backward"], "d_logits (T, E)", None),
    ]),
]

# What the layer keeps between the passes: (forward region it comes from, lines)
KEPT = {
    "moe_layer::route": ["experts (T, K)", "weights (T, K)", "offsets (E+1)", "pair_of_row (P)"],
    "moe_layer::plan": ["kept_offsets (E+1)"],
    "moe_layer::experts": ["x (caller's view)", "pre (N, 2F)", "‖h‖ (N)"],
}

INK, MUTED, PAPER, PANEL = "#1f2328", "#57606a", "#ffffff", "#f6f8fa"
BLUE, ORANGE, GREEN, RED = "#0969da", "#9a5b00", "#1a7f37", "#cf222e"
MONO = "ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace"
SANS = "-apple-system,'Segoe UI',Helvetica,Arial,'DejaVu Sans',sans-serif"

MARGIN, COLUMN, MIDDLE = 20, 424, 184
WIDTH = 2 * MARGIN + 2 * COLUMN + MIDDLE
KERNEL_HEIGHT, REGION_HEAD, REGION_TAIL, GAP = 40, 26, 6, 12


class Drawing:
    def __init__(self):
        self.parts = []

    def box(self, x, y, width, height, fill, stroke, dash=None, radius=6):
        dashed = f' stroke-dasharray="{dash}"' if dash else ""
        self.parts.append(f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="{radius}" '
                          f'fill="{fill}" stroke="{stroke}" stroke-width="1.3"{dashed}/>')

    def text(self, x, y, content, size=13, color=INK, mono=False, bold=False, anchor="start"):
        family = MONO if mono else SANS
        weight = ' font-weight="600"' if bold else ""
        self.parts.append(f'<text x="{x}" y="{y}" font-family="{family}" font-size="{size}" '
                          f'fill="{color}"{weight} text-anchor="{anchor}">{escape(content)}</text>')

    def arrow(self, x1, y1, x2, y2, color=MUTED):
        self.parts.append(f'<path d="M{x1} {y1} L{x2} {y2}" stroke="{color}" stroke-width="1.5" '
                          f'fill="none" marker-end="url(#tip)"/>')


def kernel_lines(labels):
    """Labels of one entity are written once: a::x, ::y, ::z."""
    entity = labels[0].split("::")[0]
    return ", ".join([labels[0]] + ["::" + label[len(entity) + 2:] for label in labels[1:]])


def tag(drawing, x, y, content):
    fill, color = ("#ffebe9", RED) if content == WAITS else (PAPER, MUTED)
    drawing.box(x - 82, y - 13, 82, 18, fill, color, radius=9)
    drawing.text(x - 41, y, content, 11.5, color, bold=content == WAITS, anchor="middle")


def column(drawing, x, y, title, subtitle, inputs, regions, color):
    """Draws a pass from top to bottom; returns where each region lies and the end."""
    drawing.text(x + COLUMN / 2, y + 16, title, 15, color, mono=True, bold=True, anchor="middle")
    drawing.text(x + COLUMN / 2, y + 36, subtitle, 13, MUTED, anchor="middle")
    y += 50
    drawing.box(x + 60, y, COLUMN - 120, 28, PAPER, color, radius=14)
    drawing.text(x + COLUMN / 2, y + 19, inputs, 13, INK, anchor="middle")
    y += 28
    places = {}
    for name, kernels in regions:
        drawing.arrow(x + COLUMN / 2, y, x + COLUMN / 2, y + GAP + 2, color)
        y += GAP + 4
        head = REGION_HEAD if name else 6
        height = head + len(kernels) * KERNEL_HEIGHT + REGION_TAIL
        drawing.box(x, y, COLUMN, height, PANEL, color if name else MUTED,
                    None if name else "4 3")
        if name:
            drawing.text(x + 12, y + 19, name, 13, color, mono=True, bold=True)
        row = y + head
        for labels, result, tagged in kernels:
            on_host = isinstance(labels, str)
            drawing.text(x + 22, row + 15, labels if on_host else kernel_lines(labels), 12.5, INK,
                         mono=not on_host)
            drawing.text(x + 34, row + 32, "→ " + result, 12.5, MUTED)
            if tagged:
                tag(drawing, x + COLUMN - 10, row + 16, tagged)
            row += KERNEL_HEIGHT
        places[name] = (y, height)
        y += height
    return places, y


def draw():
    d = Drawing()
    left, right = MARGIN, MARGIN + COLUMN + MIDDLE
    places, left_end = column(d, left, 18, "moe_layer::forward", "complete: all N pairs",
                              "x (T, D) · logits (T, E)", FORWARD, BLUE)
    _, right_end = column(d, right, 18, "moe_layer::backward", "reduced: M kept pairs of N",
                          "d_out = dO (T, D)", BACKWARD, ORANGE)
    d.arrow(right + COLUMN / 2, right_end, right + COLUMN / 2, right_end + GAP + 2, ORANGE)
    y = right_end + GAP + 4
    d.box(right + 60, y, COLUMN - 120, 28, PAPER, ORANGE, radius=14)
    d.text(right + 76, y + 19, "backward_report", 13, INK, mono=True)
    tag(d, right + COLUMN - 72, y + 18, WAITS)
    right_end = y + 28

    middle, width = left + COLUMN + 26, MIDDLE - 52
    d.text(middle + width / 2, 34, "kept by", 13, GREEN, bold=True, anchor="middle")
    d.text(middle + width / 2, 52, "the layer", 13, GREEN, bold=True, anchor="middle")
    for region, lines in KEPT.items():
        top, height = places[region]
        box = 14 + 18 * len(lines)
        centre = top + height / 2
        d.box(middle, centre - box / 2, width, box, "#dafbe1", GREEN)
        for i, line in enumerate(lines):
            d.text(middle + width / 2, centre - box / 2 + 19 + 18 * i, line, 12, INK,
                   anchor="middle")
        d.arrow(left + COLUMN, centre, middle - 4, centre)
        d.arrow(middle + width, centre, right - 4, centre)

    # Under the shorter forward column: what the picture leaves out.
    notes = [
        "Labels carry the prefix lrmoe:: in a profile. Solid boxes are",
        "profiling regions; the lines in them are kernels or, in plain",
        "type, steps of the host. Router and estimator are the default",
        "policies. Of P = T K pairs N exist: all but padding.",
        "",
        "gate_up gathers x; down_backward gathers dO and pre;",
        "weight_gradient gathers x and dO: each reads rows through an",
        "index, no gathered copy of a whole matrix is built.",
        "",
        "Saved activations: recompute makes pre of the M kept rows in",
        "backward; proxy scores and selects in forward, and keeps",
        "pre of those M rows.",
        "",
        "Shared expert (F_shared > 0): the same operations on one",
        "group of all T tokens, complete in both passes.",
    ]
    y = left_end + 34
    d.box(left, y, COLUMN, 18 * len(notes) + 20, PAPER, "#d0d7de", "4 3")
    for i, line in enumerate(notes):
        d.text(left + 14, y + 24 + 18 * i, line, 12.5, MUTED)
    height = int(max(left_end + 34 + 18 * len(notes) + 20, right_end) + MARGIN)

    # The paper is opaque, so that the picture reads the same on light and dark pages.
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" '
        f'height="{height}" role="img" aria-labelledby="title">',
        '<title id="title">Data through one LRMoE layer: complete forward, reduced backward</title>',
        f'<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
        f'markerHeight="7" orient="auto"><path d="M0 0 L8 4 L0 8 z" fill="{MUTED}"/></marker></defs>',
        f'<rect width="{WIDTH}" height="{height}" rx="10" fill="{PAPER}"/>',
        *d.parts, "</svg>", ""])


def unknown_labels():
    """Labels of the picture that no header contains."""
    headers = [*ROOT.glob("include/**/*.hpp"), *ROOT.glob("backends/*/include/**/*.hpp")]
    known = set(re.findall(r'"lrmoe::([\w:]+)"', "\n".join(h.read_text() for h in headers)))
    used = {"moe_layer::forward", "moe_layer::backward"}
    for name, kernels in FORWARD + BACKWARD:
        used.update([name] if name else [])
        used.update(label for labels, _, _ in kernels if not isinstance(labels, str)
                    for label in labels)
    return sorted(used - known)


def main(arguments):
    check = "--check" in arguments
    files = [a for a in arguments if not a.startswith("--")]
    if len(files) > 1 or any(a.startswith("--") and a != "--check" for a in arguments):
        print(__doc__, file=sys.stderr)
        return 2
    target = pathlib.Path(files[0]) if files else ROOT / "docs" / "layer.svg"
    missing = unknown_labels()
    for label in missing:
        print(f"layer.py: no header has the label lrmoe::{label}", file=sys.stderr)
    picture = draw()
    if not check:
        target.write_text(picture)
        print(f"wrote {target}")
        return 1 if missing else 0
    same = target.exists() and target.read_text() == picture
    if not same:
        print(f"layer.py: {target} differs: run docs/figures/layer.py", file=sys.stderr)
    return 0 if same and not missing else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
