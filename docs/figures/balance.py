#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Draws docs/balance.png, the comparison of planners, from a result of lrmoe_bench_balance.

    lrmoe_bench_balance --trace benchmarks/traces/*.json --scale 16 --json RESULT
    docs/figures/balance.py RESULT [--save-figure FILE]
"""

import argparse
import json
import pathlib
import sys

DOCS = pathlib.Path(__file__).resolve().parents[1]
TRACES = {  # in the figure if the result has them
    "uniform-R64-E128": ("uniform", "#999999", "o"),
    "zipf0.6-R64-E128": ("zipf 0.6", "#56b4e9", "s"),
    "zipf1.2-R64-E128": ("zipf 1.2", "#0072b2", "D"),
    "one_hot-R64-E128": ("one hot", "#009e73", "^"),
    "drifting-R64-E128": ("drifting", "#e69f00", "v"),
    "text-unbalanced-R8-E32-x16": ("text, R=8 E=32", "#d55e00", "P"),
}
PANELS = {"peak": "peak over mean load", "time": "modelled step over static ownership's"}


def values_of(path):
    """{(planner, trace, what): value}, times relative to static; planners in order."""
    values, planners = {}, []
    for one in json.loads(path.read_text())["results"]:
        kind, *rest = one["name"].split("/")
        if kind != "balance":
            continue
        planner, trace, what = rest
        if planner not in planners:
            planners.append(planner)
        values[planner, trace, what] = one["value"]
    for (planner, trace, what), value in list(values.items()):
        if what == "time":
            values[planner, trace, "ratio"] = value / values["static", trace, "time"]
    return values, planners


def draw(values, planners, path):
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot, ticker
    figure, panels = pyplot.subplots(1, 2, figsize=(9.5, 4.6), dpi=150, sharey=True)
    for axes, (what, label) in zip(panels, PANELS.items()):
        for trace, (name, colour, marker) in TRACES.items():
            row = [(values.get((planner, trace, "ratio" if what == "time" else what)), y)
                   for y, planner in enumerate(planners)]
            row = [(x, y) for x, y in row if x is not None]
            if row:
                axes.plot(*zip(*row), marker, color=colour, label=name, markersize=5.5,
                          alpha=0.85, markeredgewidth=0)
        axes.axvline(1, color="#888888", linewidth=0.8)
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(ticker.FixedLocator([0.1, 0.2, 0.5, 1, 2, 5, 10]))
        axes.xaxis.set_major_formatter(ticker.FormatStrFormatter("%g"))
        axes.xaxis.set_minor_locator(ticker.NullLocator())
        axes.set_title(label, loc="left", fontsize=10, fontweight="bold")
        axes.set_yticks(range(len(planners)), planners)
        axes.grid(color="#e6e6e6", linewidth=0.7)
        axes.set_axisbelow(True)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    panels[0].invert_yaxis()
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncol=len(labels), frameon=False, fontsize=8.5)
    figure.tight_layout(rect=(0, 0.06, 1, 1))
    figure.savefig(path)
    pyplot.close(figure)


def main():
    parser = argparse.ArgumentParser(prog="balance.py", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("result", type=pathlib.Path, metavar="RESULT",
                        help="JSON of lrmoe_bench_balance")
    parser.add_argument("--save-figure", type=pathlib.Path, metavar="FILE",
                        default=DOCS / "balance.png", help="a PNG (default: docs/balance.png)")
    options = parser.parse_args()
    try:
        values, planners = values_of(options.result)
        if not any((planner, trace, "peak") in values for planner in planners for trace in TRACES):
            parser.error(f"{options.result} holds none of the traces " + ", ".join(TRACES))
        draw(values, planners, options.save_figure)
    except (OSError, ValueError, KeyError) as problem:
        print(f"balance.py: {options.result}: {problem}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
