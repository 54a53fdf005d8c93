#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Trains one small language model in several ways with lrmoe_train, and compares the loss that each
reaches with the time it spends in the MoE layers.

exact          every pair takes part in the backward pass
lrmoe          backward of 1/2 and of 1/4 of the pairs, drawn by chance and weighted (pps)
lrmoe top      backward of the 1/2 with the highest scores: the published rule, which is biased
smaller batch  exact, with fewer sequences a step  } in the MoE-layer time
fewer steps    exact, with a shorter schedule      } that lrmoe was measured to take

All share data, their order, initial weights and learning rate; the text is the King James Bible of
the Debian package bible-kjv, or that of --data. Runs that are complete are kept: a second call
continues where the first one stopped."""

import argparse
import dataclasses
import hashlib
import json
import math
import os
import pathlib
import platform
import re
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
VERSION = "0.1.0"
TEXT_COMMAND = ["bible", "-f", "gen1:1-rev22:21"]

# Large enough a batch that its gradient is worth more than one of half the batch, small enough that
# noise still matters; eight experts a byte, so that few of its pairs carry most of the gradient.
# The learning rate suits exact: 0.006, 0.009 and 0.0125 end within 0.005 nats of each other, less
# than seeds differ, 0.004 ends 0.025 higher.
FULL = {
    "layers": 1, "width": 64, "expert-width": 64, "experts": 16, "top-k": 8, "heads": 4,
    "context": 64, "batch": 32, "steps": 600, "warmup": 40, "learning-rate": 0.008,
    "balance": 0.01, "validate-every": 15, "validation-sequences": 256,
}
FULL_TARGETS = (1.65, 1.56)
QUICK = FULL | {
    "width": 32, "expert-width": 32, "experts": 8, "top-k": 4, "context": 32, "batch": 8,
    "steps": 40, "warmup": 4, "validate-every": 5, "validation-sequences": 32,
}


@dataclasses.dataclass(frozen=True)
class Method:
    name: str  # in paths and results
    label: str
    flags: tuple
    colour: str
    keep: float | None = None  # share of pairs kept, or whose time a control gets
    control: str | None = None  # what a control scales: "batch" or "steps"
    seeds: int | None = None  # of all seeds, how many are run

    @property
    def path(self):
        return self.name if self.keep is None else f"{self.name}-keep{self.keep}"

    @property
    def style(self):
        return "--" if self.keep == 0.25 else "-"


EXACT = Method("exact", "exact", ("--method", "exact"), "#222222")
LRMOE = [Method("lrmoe", f"lrmoe, keep {text}", ("--method", "lrmoe", "--keep", str(keep)),
                "#0072b2", keep) for keep, text in ((0.5, "1/2"), (0.25, "1/4"))]
CONTROLS = [Method(name, f"{label}, time of {text}", ("--method", flag), colour, keep, scaled)
            for keep, text in ((0.5, "1/2"), (0.25, "1/4"))
            for name, label, flag, colour, scaled in (
                ("smaller_batch", "smaller batch", "smaller-batch", "#e69f00", "batch"),
                ("fewer_steps", "fewer steps", "fewer-steps", "#009e73", "steps"))]
TOP = Method("lrmoe_top", "lrmoe top, keep 1/2",
             ("--method", "lrmoe", "--estimator", "top", "--keep", "0.5"), "#d55e00", 0.5, seeds=1)
METHODS = [EXACT, *LRMOE, *CONTROLS, TOP]


class Problem(Exception):
    """What stops the demo, in words for its user."""


@dataclasses.dataclass
class Result:
    """One complete run, from its log."""
    steps: list  # of validations
    seconds: list  # of MoE layers until then
    losses: list  # smoothed
    final_loss: float
    moe_seconds: float
    moe_ms: float  # a step, median
    moe_ms_mean: float
    step_ms: float
    noise_ratio: float  # mean of the second half
    used_batch: int
    used_steps: int
    wall_seconds: float

    def seconds_to(self, target):
        return next((s for s, loss in zip(self.seconds, self.losses) if loss <= target), None)


def read_json(path, whole=False):
    """Objects of a log, one a line, or of a whole file; what cannot be read is left out."""
    entries = []
    try:
        text = path.read_text()
        for part in [text] if whole else text.splitlines():
            entries.append(json.loads(part))
    except (OSError, json.JSONDecodeError):
        pass
    return entries


def result_of(log):
    steps = [e for e in log if e["type"] == "step"]
    validations = [e for e in log if e["type"] == "validation"]
    summary = log[-1]
    return Result(
        steps=[e["step"] for e in validations],
        seconds=[e["moe_s_cumulative"] for e in validations],
        losses=[e["val_loss_smoothed"] for e in validations],
        final_loss=summary["final_val_loss"],
        moe_seconds=summary["moe_s_cumulative"],
        moe_ms=statistics.median(e["moe_ms"] for e in steps),
        moe_ms_mean=statistics.fmean(e["moe_ms"] for e in steps),
        step_ms=statistics.median(e["step_ms"] for e in steps),
        # A biased rule has none, and the log says null.
        noise_ratio=statistics.fmean(
            math.nan if e["noise_ratio"] is None else e["noise_ratio"]
            for e in steps[len(steps) // 2:]),
        used_batch=summary["used_batch"], used_steps=summary["used_steps"],
        wall_seconds=summary["wall_s"])


class Screen:
    """On a terminal one line that is rewritten, elsewhere only lines that stay."""

    def __init__(self):
        self.terminal = sys.stdout.isatty()

    def update(self, line):
        if self.terminal:
            width = shutil.get_terminal_size().columns - 1
            print(f"\r\033[K{line[:width]}", end="", flush=True)

    def say(self, line=""):
        print(f"\r\033[K{line}" if self.terminal else line, flush=True)


class Runner:
    """Runs the trainer, one run after the other, and keeps what is complete."""

    def __init__(self, options, model, data, screen):
        self.options, self.model, self.data, self.screen = options, model, data, screen
        self.identity = {"trainer": digest([options.trainer]), "text": digest(data),
                         "threads": options.threads}
        self.start = time.monotonic()
        self.work_done = 0.0  # in this call, in runs of exact
        self.pace = None  # seconds for the work of one run of exact

    def flags(self, method, seed, shares):
        flags = [part for name, value in self.model.items() for part in (f"--{name}", str(value))]
        flags += [*method.flags, "--seed", str(seed), "--threads", str(self.options.threads)]
        if method.control:
            # The trainer scales by (1 + 2 keep)/3; rounded up, so that a control gets no less time.
            whole = self.model[method.control]
            share = math.ceil(whole * min(1.0, max(0.35, shares[method.keep])) - 1e-9) / whole
            flags += ["--keep", f"{1.5 * share - 0.5:.9f}"]
        return flags

    def run(self, method, seed, shares, left):
        """left: work of this run and of all after it, in runs of exact."""
        folder = self.options.output / "runs" / f"{method.path}-seed{seed}"
        request = self.identity | {"flags": self.flags(method, seed, shares)}
        request_file, log_file = folder / "request.json", folder / "log.jsonl"
        known = read_json(request_file, whole=True) == [request]
        log = read_json(log_file) if known else []
        reused = bool(log) and log[-1]["type"] == "summary"
        if not reused:
            resume = known and (folder / "checkpoint.bin").is_file()
            folder.mkdir(parents=True, exist_ok=True)
            request_file.unlink(missing_ok=True)
            command = [self.options.trainer, "--data", *self.data, "--output", folder, "--quiet",
                       *request["flags"], "--resume" if resume else "--overwrite"]
            self.execute([str(part) for part in command], method, seed, request, request_file,
                         log_file, left)
            log = read_json(log_file)
            if not log or log[-1]["type"] != "summary":
                raise Problem(f"{log_file} has no summary: delete {folder} and run again")
        result = result_of(log)
        self.screen.say(
            f"{method.label}, seed {seed}: loss {result.final_loss:.3f}, MoE-layer time "
            f"{result.moe_seconds:.1f} s, {result.moe_ms:.1f} of {result.step_ms:.1f} ms a step"
            + (" (kept from an earlier call)" if reused else ""))
        return result

    def execute(self, command, method, seed, request, request_file, log_file, left):
        environment = os.environ | {"OMP_NUM_THREADS": str(self.options.threads)}
        # A process group of its own: Ctrl-C reaches the trainer once, through the handler below.
        with subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL,
                              stderr=subprocess.PIPE, text=True, process_group=0) as trainer:
            try:
                request_file.write_text(json.dumps(request, indent=2) + "\n")
                while trainer.poll() is None:
                    self.show(method, seed, log_file, left)
                    try:
                        trainer.wait(1.0 if self.screen.terminal else 600.0)
                    except subprocess.TimeoutExpired:
                        pass
            except KeyboardInterrupt:
                trainer.send_signal(signal.SIGINT)
                trainer.wait()  # writes its checkpoint
                raise
            if trainer.returncode != 0:
                raise Problem(f"{shlex.join(command)}\nfailed with exit code {trainer.returncode}: "
                              f"{trainer.stderr.read().strip()}")
        self.work_done += work(method)
        self.pace = (time.monotonic() - self.start) / self.work_done

    def show(self, method, seed, log_file, left):
        if not self.screen.terminal:
            return
        log = read_json(log_file)
        step = next((e["step"] for e in reversed(log) if e["type"] == "step"), 0)
        steps = log[0].get("used_steps", 0) if log else 0
        validation = next((e for e in reversed(log) if e["type"] == "validation"), None)
        text = f"{method.label}, seed {seed}: step {step}/{steps}"
        if validation:
            text += (f"  loss {validation['val_loss_smoothed']:.3f}  MoE-layer time "
                     f"{validation['moe_s_cumulative']:.1f} s")
        if self.pace and steps:
            seconds = self.pace * (left - work(method) * step / steps)
            text += f"  about {max(1, round(seconds / 60))} min left"
        self.screen.update(text)


def work(method):
    """Rough time of a run, in runs of exact."""
    return 1.0 if method.keep is None else 0.4 + 0.6 * method.keep + 0.1


def digest(files):
    """Names a content; files are read in order."""
    content = hashlib.sha256()
    for file in files:
        content.update(pathlib.Path(file).read_bytes())
    return content.hexdigest()


def train_all(options, model, data, screen):
    """Returns {method: [result of each seed]} and the shares of exact's time that lrmoe took."""
    runner = Runner(options, model, data, screen)
    results = {method: [] for method in METHODS}
    shares = {}
    for seed in range(options.seeds):
        todo = [m for m in METHODS if m.seeds is None or seed < m.seeds]
        per_seed = sum(work(m) for m in METHODS if m.seeds is None)
        expected = (time.monotonic() - runner.start) / 60 + per_seed * (runner.pace or 0.0) / 60
        if seed > 0 and expected > options.minutes:
            screen.say(f"{seed} of {options.seeds} seeds: another would end after {expected:.1f} "
                       f"minutes, the limit is {options.minutes:g} (--minutes)")
            break
        for index, method in enumerate(todo):
            left = sum(map(work, todo[index:])) + per_seed * (options.seeds - seed - 1)
            results[method].append(runner.run(method, seed, shares, left))
            if seed == 0 and method.name == "lrmoe":
                # Controls get the time that was measured, selection and packing included.
                shares[method.keep] = results[method][0].moe_ms / results[EXACT][0].moe_ms
    return results, shares


def spread(values):
    return (max(values) - min(values)) / 2


def mean_seconds_to(runs, target):
    """Mean over seeds, or None unless all reach the target; and how many do."""
    seconds = [s for s in (run.seconds_to(target) for run in runs) if s is not None]
    return (statistics.fmean(seconds) if len(seconds) == len(runs) else None), len(seconds)


def targets_of(options, results):
    if options.targets:
        return tuple(options.targets)
    if not options.quick and options.data is None:
        return FULL_TARGETS
    # Losses that exact has after 55 % and 80 % of its steps.
    losses = [statistics.fmean(values) for values in zip(*(r.losses for r in results[EXACT]))]
    return tuple(math.ceil(100 * losses[round(part * (len(losses) - 1))]) / 100
                 for part in (0.55, 0.8))


def table_of(results, targets):
    """Rows of text, the first one is the head."""
    rows = [["method", "sequences x steps", "V/Σs", "MoE ms a step", "MoE time, s",
             "validation loss", *(f"s to {t:.2f} (ratio)" for t in targets)]]
    exact_seconds = [mean_seconds_to(results[EXACT], t)[0] for t in targets]
    for method, runs in results.items():
        losses = [run.final_loss for run in runs]
        row = [method.label, f"{runs[0].used_batch} x {runs[0].used_steps}",
               f"{statistics.fmean(r.noise_ratio for r in runs):.2f}"
               if method.name == "lrmoe" else "-",
               f"{statistics.fmean(r.moe_ms for r in runs):.1f}",
               f"{statistics.fmean(r.moe_seconds for r in runs):.1f}",
               f"{statistics.fmean(losses):.3f}"
               + (f" ± {spread(losses):.3f}" if len(losses) > 1 else "")]
        for target, baseline in zip(targets, exact_seconds):
            seconds, reached = mean_seconds_to(runs, target)
            if seconds is not None:
                row.append(f"{seconds:.1f}" + (f" ({seconds / baseline:.2f})" if baseline else ""))
            else:
                row.append(f"{reached} of {len(runs)} seeds" if reached else "-")
        rows.append(row)
    return rows


def markdown(rows):
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]

    def line(row):
        cells = [cell.ljust(w) if i == 0 else cell.rjust(w)
                 for i, (cell, w) in enumerate(zip(row, widths))]
        return "| " + " | ".join(cells) + " |"
    rule = ["-" * w if i == 0 else "-" * (w - 1) + ":" for i, w in enumerate(widths)]
    return "\n".join([line(rows[0]), line(rule), *map(line, rows[1:])])


def findings(results, targets):
    """What the runs say about lrmoe, good or bad."""
    lines = []
    for method in LRMOE:
        runs = results[method]
        parts = []
        for target in targets:
            mine, reached = mean_seconds_to(runs, target)
            exact = mean_seconds_to(results[EXACT], target)[0]
            parts.append(f"{target:.2f} in " + (
                f"{mine / exact:.2f} of exact's time" if mine and exact else
                f"{reached} of {len(runs)} seeds"))
        lines.append(f"{method.label}: reaches " + ", ".join(parts) + ".")
        for control in CONTROLS:
            if control.keep != method.keep:
                continue
            others = results[control]
            pairs = list(zip(runs, others))
            ahead = sum(a.final_loss < b.final_loss for a, b in pairs)
            gain = statistics.fmean(b.final_loss - a.final_loss for a, b in pairs)
            times = [statistics.fmean(r.moe_seconds for r in group) for group in (runs, others)]
            lines.append(f"  loss {abs(gain):.3f} {'below' if gain > 0 else 'above'} "
                         f"{control.label.split(',')[0]}, ahead in {ahead} of {len(pairs)} seeds "
                         f"({times[0]:.1f} and {times[1]:.1f} s)")
    return lines


def disturbed(results):
    """Runs whose steps now and then took much longer than usual, by the excess of the mean."""
    return [(run.moe_ms_mean / run.moe_ms - 1.0, method.label)
            for method, runs in results.items() for run in runs
            if run.moe_ms_mean > 1.1 * run.moe_ms]


def document_of(results, targets, shares, model):
    """Results in the format that all tools of this project share."""
    shape = "T{}-K{}-E{}-D{}-F{}".format(model["batch"] * model["context"], model["top-k"],
                                         model["experts"], model["width"], model["expert-width"])
    entries = []

    def add(kind, method, values, unit, tail=""):
        def name(m):
            keep = "" if m.keep is None else f"/keep={m.keep:g}"
            return f"{kind}/{m.name}/{shape}{tail}{keep}"
        missing = any(value is None for value in values)
        entries.append({
            "name": name(method), "value": None if missing else statistics.fmean(values),
            "unit": unit, "baseline": None if method is EXACT else name(EXACT), "ratio": None,
            "seeds": values})

    for method, runs in results.items():
        for target_name, target in zip(("easy", "strict"), targets):
            add("time_to_loss", method, [run.seconds_to(target) for run in runs], "s",
                f"/{target_name}")
            entries[-1]["target_loss"] = target
        add("final_loss", method, [run.final_loss for run in runs], "nat")
        add("moe_time", method, [run.moe_seconds for run in runs], "s")
        add("moe_step", method, [run.moe_ms for run in runs], "ms")
        add("step", method, [run.step_ms for run in runs], "ms")
        if method.name == "lrmoe":
            add("noise_ratio", method, [run.noise_ratio for run in runs], "1")
            entries[-1]["baseline"] = None
    values = {entry["name"]: entry["value"] for entry in entries}
    for entry in entries:
        baseline = values.get(entry["baseline"])
        if baseline and entry["value"] is not None:
            entry["ratio"] = entry["value"] / baseline
    return {
        "tool": "demo", "command": command_line(), "commit": commit(),
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": {"cpu": cpu(), "cores": os.cpu_count(), "gpu": None, "driver": None},
        "model": model, "time_shares": {f"{keep:g}": share for keep, share in shares.items()},
        "results": entries}


def command_line():
    """The command, with paths inside the project relative to its root; of other folders only the name of
    the file, which says nothing about the results."""
    return shlex.join(re.sub(r"^/.*/", "", word.replace(f"{ROOT}/", "")) for word in sys.argv)


def commit():
    try:
        return subprocess.run(
            ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=12"],
            capture_output=True, text=True, check=True).stdout.strip() or "unknown"
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def cpu():
    try:
        for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or None


def write(path, content):
    """A reader sees the old content or the new."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    partial.write_text(content)
    partial.replace(path)


def draw(results, targets, model, path):
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot

    pyplot.rcParams.update({
        "font.size": 10, "axes.spines.top": False, "axes.spines.right": False,
        "axes.edgecolor": "#666666", "axes.labelcolor": "#333333", "xtick.color": "#333333",
        "ytick.color": "#333333", "axes.titlesize": 11, "axes.titleweight": "bold",
        "axes.titlelocation": "left"})
    figure, (curves, points) = pyplot.subplots(
        1, 2, figsize=(11, 5.8), dpi=150, gridspec_kw={"width_ratios": [1.55, 1]})

    def main(method):
        return method is EXACT or method in LRMOE

    finals = {m: statistics.fmean(r.final_loss for r in runs) for m, runs in results.items()}
    low = min(finals.values())
    high = max(loss for method, loss in finals.items() if method is not TOP)
    handles = []
    for method, runs in results.items():
        seconds = [statistics.fmean(v) for v in zip(*(r.seconds for r in runs))]
        losses = list(zip(*(r.losses for r in runs)))
        handles += curves.plot(seconds, [statistics.fmean(v) for v in losses], method.style,
                               color=method.colour, linewidth=2.2 if main(method) else 1.4,
                               label=method.label, zorder=3 if main(method) else 2)
        if len(runs) > 1:
            curves.fill_between(seconds, list(map(min, losses)), list(map(max, losses)),
                                color=method.colour, alpha=0.15, linewidth=0, zorder=1)
    curves.set_ylim(low - 0.05, min(max(finals[TOP] + 0.2, high + 0.4), low + 1.2))
    curves.set_xlim(0, None)
    curves.set_xlabel("time spent in MoE layers, seconds")
    curves.set_ylabel("validation loss, nats a byte (smoothed)")
    curves.set_title("Loss against MoE-layer time")
    for name, target in zip(("easy", "strict"), targets):
        curves.axhline(target, color="#888888", linewidth=0.9, linestyle=(0, (6, 4)), zorder=0)
        curves.annotate(f"{name} target {target:.2f}", (0, target), (4, 3),
                        textcoords="offset points", color="#666666", fontsize=8.5)

    top_outside = finals[TOP] > high + (high - low)
    for method, runs in results.items():
        if method is TOP and top_outside:
            continue
        marker = "o" if main(method) else "s"
        points.scatter([r.moe_seconds for r in runs], [r.final_loss for r in runs], s=16,
                       marker=marker, color=method.colour, alpha=0.45, linewidths=0, zorder=2)
        x = statistics.fmean(r.moe_seconds for r in runs)
        points.scatter([x], [finals[method]], s=75, marker=marker, edgecolor=method.colour,
                       facecolor="white" if method.style == "--" else method.colour,
                       linewidths=1.8, zorder=3)
        points.annotate(method.label.replace("lrmoe, ", "").replace(", time", "\ntime"),
                        (x, finals[method]), (-8 if method in LRMOE else 8, 0),
                        textcoords="offset points", color=method.colour, fontsize=8,
                        ha="right" if method in LRMOE else "left",
                        va={"steps": "bottom", "batch": "top"}.get(method.control, "center"))
    if top_outside:
        x = statistics.fmean(r.moe_seconds for r in results[TOP])
        points.annotate(f"top, keep 1/2: {finals[TOP]:.2f}", (x, 1.0), (x, 0.93),
                        xycoords=("data", "axes fraction"), textcoords=("data", "axes fraction"),
                        ha="center", va="top", color=TOP.colour, fontsize=8,
                        arrowprops={"arrowstyle": "->", "color": TOP.colour})
        single = [r.final_loss for m, runs in results.items() if m is not TOP for r in runs]
        height = max(single) - min(single)
        points.set_ylim(min(single) - 0.08 * height, max(single) + 0.25 * height)
    points.margins(x=0.22)
    points.set_xlabel("time spent in MoE layers, seconds")
    points.set_ylabel("validation loss at the end, nats a byte")
    points.set_title("End of training")
    for axes in (curves, points):
        axes.grid(color="#e6e6e6", linewidth=0.7)
        axes.set_axisbelow(True)

    seeds = len(results[EXACT])
    figure.legend(handles=handles, loc="lower center", ncol=4, frameon=False, fontsize=9,
                  bbox_to_anchor=(0.5, 0.035))
    figure.text(0.5, 0.012,
                f"{model['experts']} experts, {model['top-k']} a byte; "
                + (f"mean of {seeds} seeds, bands: least to greatest, small marks: single seeds"
                   if seeds > 1 else "one seed"),
                ha="center", color="#666666", fontsize=8.5)
    figure.tight_layout(rect=(0, 0.14, 1, 1), w_pad=2.5)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    figure.savefig(partial, format="png")
    partial.replace(path)
    pyplot.close(figure)


def text_files(options):
    if options.data:
        return options.data
    target = options.output / "bible.txt"
    if not target.is_file():
        try:
            text = subprocess.run(TEXT_COMMAND, capture_output=True, check=True).stdout
        except FileNotFoundError:
            raise Problem("no program 'bible': install the Debian package bible-kjv, or give a "
                          "text with --data FILE") from None
        except subprocess.CalledProcessError as failure:
            raise Problem(f"{shlex.join(TEXT_COMMAND)} failed: "
                          f"{failure.stderr.decode(errors='replace').strip()}") from None
        partial = target.with_name("bible.txt.partial")
        partial.write_bytes(text)
        partial.replace(target)
    return [target]


def parse_arguments():
    parser = argparse.ArgumentParser(
        prog="demo.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="Exit status: 0 complete, 1 a step failed, 2 bad usage, 130 stopped by Ctrl-C; call "
        "again to continue.")

    def positive(kind):
        def convert(text):
            value = kind(text)
            if not 0 < value < math.inf:
                raise argparse.ArgumentTypeError(f"{text} is not above 0")
            return value
        return convert
    parser.add_argument("--version", action="version", version=f"demo.py {VERSION}")
    parser.add_argument("--output", type=pathlib.Path, metavar="DIR",
                        help="folder for runs, table, picture and results (default: build/demo, "
                        "with --quick build/demo-quick)")
    parser.add_argument("--seeds", type=positive(int), default=None, metavar="N",
                        help="seeds of every method, one for top (default: 3)")
    parser.add_argument("--minutes", type=positive(float), default=9.0, metavar="M",
                        help="start no further seed that would end later; the first one always runs "
                        "(default: %(default)g)")
    parser.add_argument("--data", type=pathlib.Path, nargs="+", metavar="FILE",
                        help="text to learn from (default: the King James Bible)")
    parser.add_argument("--targets", type=positive(float), nargs=2, metavar=("EASY", "STRICT"),
                        help="losses whose times are compared (default: "
                        f"{FULL_TARGETS[0]} and {FULL_TARGETS[1]}; for another text or --quick what "
                        "exact has after 55 %% and 80 %% of its steps)")
    parser.add_argument("--quick", action="store_true",
                        help="a tiny model, a few steps and one seed, to see that everything works; "
                        "its numbers mean nothing")
    parser.add_argument("--threads", type=positive(int), default=2, metavar="N",
                        help="threads of the trainer (default: %(default)d)")
    parser.add_argument("--save-figure", type=pathlib.Path, metavar="FILE",
                        help="also write the picture, a PNG, to this file")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE",
                        help="also write the results to this file")
    parser.add_argument("--no-figure", action="store_true",
                        help="draw nothing, so that matplotlib is not needed")
    parser.add_argument("--build-dir", type=pathlib.Path, metavar="DIR",
                        default=ROOT / "build" / "host-release",
                        help="build folder with the trainer (default: build/host-release)")
    parser.add_argument("--trainer", type=pathlib.Path, metavar="FILE",
                        help="lrmoe_train (default: examples/lrmoe_train of --build-dir)")
    options = parser.parse_args()
    options.trainer = options.trainer or options.build_dir / "examples" / "lrmoe_train"
    if not os.access(options.trainer, os.X_OK):
        parser.error(f"no program '{options.trainer}': build the target lrmoe_train, or run "
                     "scripts/demo, which does so")
    for file in options.data or []:
        if not file.is_file():
            parser.error(f"no file '{file}' for --data")
    if options.no_figure and options.save_figure:
        parser.error("--no-figure and --save-figure exclude each other")
    if options.targets and not options.targets[0] > options.targets[1]:
        parser.error("--targets {} {}: the strict target is the lower one".format(*options.targets))
    if options.output is None:
        options.output = ROOT / "build" / ("demo-quick" if options.quick else "demo")
    if options.seeds is None:
        options.seeds = 1 if options.quick else 3
    if not options.no_figure:
        try:
            import matplotlib  # noqa: F401
        except ImportError:
            parser.error(f"{sys.executable} has no matplotlib: install python3-matplotlib and use "
                         "/usr/bin/python3, or give --no-figure")
    options.trainer = options.trainer.resolve()
    return options


def main():
    options = parse_arguments()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    model = QUICK if options.quick else FULL
    screen = Screen()
    try:
        options.output.mkdir(parents=True, exist_ok=True)
        data = text_files(options)
        results, shares = train_all(options, model, data, screen)
        targets = targets_of(options, results)
        table = markdown(table_of(results, targets))
        screen.say()
        screen.say(table)
        screen.say()
        if options.quick:
            screen.say("a quick run: it shows that everything works, its numbers mean nothing")
        else:
            for line in findings(results, targets):
                screen.say(line)
            if slow := disturbed(results):
                screen.say(f"Something else kept this machine busy: in {len(slow)} runs MoE layers "
                           f"took up to {100 * max(slow)[0]:.0f} % longer than in their usual step, "
                           "so times are not to be trusted.")
        screen.say()
        content = json.dumps(document_of(results, targets, shares, model), indent=2) + "\n"
        written = [options.output / "table.md", options.output / "results.json"]
        write(written[0], table + "\n")
        write(written[1], content)
        if options.json:
            write(options.json, content)
            written.append(options.json)
        if not options.no_figure:
            for path in filter(None, (options.output / "loss.png", options.save_figure)):
                draw(results, targets, model, path)
                written.append(path)
        screen.say("written: " + ", ".join(map(str, written)))
    except Problem as problem:
        screen.say()
        print(f"demo.py: {problem}", file=sys.stderr)
        return 1
    except OSError as problem:
        screen.say()
        print(f"demo.py: {problem}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        screen.say()
        print("demo.py: stopped; call again to continue", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
