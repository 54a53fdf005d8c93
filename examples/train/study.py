#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Trains the small language model of demo.py under every rule that lrmoe_train knows, three seeds each,
and writes one table: loss, MoE-layer time, and time to two targets. A second part varies the batch, to
show when a reduced backward pass pays.

Runs may share the machine (--jobs): all of them are then slower, and only ratios of times mean
something. Runs that are complete are kept: a second call continues where the first one stopped.
Controls of equal time (a smaller batch, fewer steps) get the time that the rule they stand beside was
measured to take, so they run after it."""

import argparse
import concurrent.futures
import dataclasses
import json
import math
import os
import pathlib
import statistics
import subprocess
import sys

import demo

LRMOE = ("--method", "lrmoe")


@dataclasses.dataclass(frozen=True)
class Rule:
    name: str  # in paths and results
    label: str
    flags: tuple
    unbiased: bool = True
    time_of: str = None  # name of the rule whose measured time a control gets

    def given(self, time_ratio):
        """A control with this share of exact's time: the trainer scales by (1 + 2 keep) / 3."""
        keep = min(1.0, max(0.01, (3 * time_ratio - 1) / 2))
        return dataclasses.replace(self, flags=(*self.flags, "--keep", f"{keep:.4f}"))


def lrmoe(name, label, keep, *flags, unbiased=True):
    return Rule(f"{name}/keep={keep:g}", f"{label}, keep {fraction_text(keep)}",
                (*LRMOE, "--keep", str(keep), *flags), unbiased)


def fraction_text(keep):
    top, bottom = keep.as_integer_ratio()
    return f"{top}/{bottom}"


RULES = [
    Rule("exact", "exact", ("--method", "exact")),
    *(lrmoe("lrmoe", "pps", keep) for keep in (0.5, 0.25, 0.125)),
    *(lrmoe("shared_threshold", "pps, shared threshold", keep, "--controller", "shared-threshold")
      for keep in (0.5, 0.25, 0.125)),
    lrmoe("shared_sketched", "pps, shared threshold, sketched router gradient (32)", 0.25,
          "--controller", "shared-threshold", "--router-gradient", "sketch", "--sketch-size", "32"),
    lrmoe("pps_shuffled", "pps, shuffled order", 0.25, "--estimator", "pps-shuffled"),
    lrmoe("nested", "pps, dW of half the kept", 0.5, "--dw-share", "0.5"),
    lrmoe("exact_router", "pps, exact router gradient", 0.25, "--router-gradient", "exact"),
    lrmoe("sketched_router", "pps, sketched router gradient (32)", 0.25, "--router-gradient",
          "sketch", "--sketch-size", "32"),
    lrmoe("proxy", "pps from a forward-time proxy", 0.25, "--save", "proxy"),
    lrmoe("annealed", "pps, annealed from all", 0.25, "--controller", "annealed"),
    Rule("error_bounded/epsilon=0.25", "error bounded, 0.25",
         (*LRMOE, "--controller", "error-bounded", "--epsilon", "0.25")),
    Rule("error_bounded/epsilon=1", "error bounded, 1",
         (*LRMOE, "--controller", "error-bounded", "--epsilon", "1")),
    Rule("time_optimal", "time optimal", (*LRMOE, "--controller", "time-optimal")),
    Rule("time_optimal_sketched", "time optimal, sketched router gradient (32)",
         (*LRMOE, "--controller", "time-optimal", "--router-gradient", "sketch", "--sketch-size",
          "32")),
    lrmoe("top_plus_sampled", "top plus sampled", 0.25, "--estimator", "top-plus-sampled"),
    lrmoe("uniform", "uniform", 0.25, "--estimator", "uniform"),
    lrmoe("uniform_unscaled", "uniform without weights", 0.25, "--estimator", "uniform-unscaled",
          unbiased=False),
    *(lrmoe("lrmoe_top", "top", keep, "--estimator", "top", unbiased=False)
      for keep in (0.75, 0.5, 0.25)),
    Rule("frozen_experts", "frozen experts", ("--method", "frozen-experts")),
]

CONTROLS = [
    Rule(f"{name}/keep={keep:g}", f"{label}, time of pps {fraction_text(keep)}",
         ("--method", flag), time_of=f"lrmoe/keep={keep:g}")
    for keep in (0.5, 0.25)
    for name, label, flag in (("smaller_batch", "smaller batch", "smaller-batch"),
                              ("fewer_steps", "fewer steps", "fewer-steps"))]

# For the second part: the model of the first at several batches, each with as many steps.
BATCHES = (8, 16, 32, 64, 128)
BATCH_STEPS = 200
BATCH_RULES = [RULES[0], next(r for r in RULES if r.name == "shared_threshold/keep=0.25")]
BATCH_CONTROL = Rule("smaller_batch/keep=0.25", "smaller batch of the same time",
                     ("--method", "smaller-batch"), time_of=BATCH_RULES[1].name)


@dataclasses.dataclass
class Job:
    rule: Rule
    model: dict
    seed: int
    folder: pathlib.Path

    def run(self, options, data, identity):
        flags = [part for name, value in self.model.items() for part in (f"--{name}", str(value))]
        flags += [*self.rule.flags, "--seed", str(self.seed), "--threads", str(options.threads)]
        request = identity | {"flags": flags}
        request_file, log_file = self.folder / "request.json", self.folder / "log.jsonl"
        log = demo.read_json(log_file)
        complete = bool(log) and log[-1]["type"] == "summary"
        if not complete or demo.read_json(request_file, whole=True) != [request]:
            self.folder.mkdir(parents=True, exist_ok=True)
            request_file.unlink(missing_ok=True)
            command = [options.trainer, "--data", *data, "--output", self.folder, "--quiet", *flags,
                       "--overwrite"]
            done = subprocess.run(
                [str(part) for part in command], stdin=subprocess.DEVNULL, capture_output=True,
                text=True, env=os.environ | {"OMP_NUM_THREADS": str(options.threads),
                                             "OMP_WAIT_POLICY": "passive",
                                             "OMP_PROC_BIND": "false"})
            if done.returncode != 0:
                raise demo.Problem(f"{self.rule.label}, seed {self.seed}: {done.stderr.strip()}")
            request_file.write_text(json.dumps(request, indent=2) + "\n")
            log = demo.read_json(log_file)
        result = demo.result_of(log)
        steps = [e for e in log if e["type"] == "step"]
        late = steps[len(steps) // 2:]
        result.kept = statistics.fmean(e["kept_fraction"] for e in steps)
        scales = [e["noise_scale_tokens"] for e in late if e.get("noise_scale_tokens")]
        result.noise_scale = statistics.median(scales) if scales else None
        return result


def run_all(jobs, options, data, identity):
    """Results in the order of the jobs; says what is done as it is done."""
    results = [None] * len(jobs)
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        running = {pool.submit(job.run, options, data, identity): i for i, job in enumerate(jobs)}
        for count, future in enumerate(concurrent.futures.as_completed(running), 1):
            i = running[future]
            results[i] = future.result()
            print(f"{count}/{len(jobs)} {jobs[i].rule.label}, batch {jobs[i].model['batch']}, seed "
                  f"{jobs[i].seed}: loss {results[i].final_loss:.3f}", flush=True)
    return results


def mean(values):
    return statistics.fmean(values)


def relative(runs, exact, value):
    """Mean over seeds of a value over that of exact with the same seed."""
    pairs = [(value(a), value(b)) for a, b in zip(runs, exact)]
    if any(a is None or b is None for a, b in pairs):
        return None
    return mean(a / b for a, b in pairs)


def table_of(results, targets):
    rows = [["rule", "kept", "V/Σs", "MoE time", "validation loss",
             *(f"time to {t:.2f}" for t in targets)]]
    exact = results[RULES[0]]
    for rule, runs in results.items():
        losses = [r.final_loss for r in runs]
        row = [rule.label, f"{mean(r.kept for r in runs):.2f}" if LRMOE[1] in rule.flags else "-",
               f"{mean(r.noise_ratio for r in runs):.2f}"
               if LRMOE[1] in rule.flags and rule.unbiased else "-",
               f"{relative(runs, exact, lambda r: r.moe_seconds):.2f}",
               f"{mean(losses):.3f} ± {demo.spread(losses):.3f}"]
        for target in targets:
            reached = sum(r.seconds_to(target) is not None for r in runs)
            ratio = relative(runs, exact, lambda r: r.seconds_to(target))
            row.append(f"{ratio:.2f}" if ratio else f"{reached} of {len(runs)}" if reached else "-")
        rows.append(row)
    return rows


def document_of(results, batches, targets, model, options):
    shape = "T{}-K{}-E{}-D{}-F{}"

    def name_of(m):
        return shape.format(m["batch"] * m["context"], m["top-k"], m["experts"], m["width"],
                            m["expert-width"])
    entries = []

    def add(kind, rule, m, values, unit, tail=""):
        if m["steps"] != model["steps"]:
            tail += f"/steps={m['steps']}"
        head, _, setting = rule.name.partition("/")
        path = f"{kind}/{head}/{name_of(m)}{tail}" + (f"/{setting}" if setting else "")
        missing = any(v is None or (isinstance(v, float) and math.isnan(v)) for v in values)
        entries.append({"name": path, "value": None if missing else mean(values), "unit": unit,
                        "baseline": None if rule is RULES[0] else
                        f"{kind}/exact/{name_of(m)}{tail}", "ratio": None, "seeds": [
                            None if isinstance(v, float) and math.isnan(v) else v for v in values]})

    def add_all(rule, m, runs):
        add("final_loss", rule, m, [r.final_loss for r in runs], "nat")
        add("moe_time", rule, m, [r.moe_seconds for r in runs], "s")
        add("kept", rule, m, [r.kept for r in runs], "1")
        add("noise_ratio", rule, m, [r.noise_ratio for r in runs], "1")
        entries[-1]["baseline"] = None
        add("noise_scale", rule, m, [r.noise_scale for r in runs], "tokens")

    for rule, runs in results.items():
        add_all(rule, model, runs)
        for name, target in zip(("easy", "strict"), targets):
            add("time_to_loss", rule, model, [r.seconds_to(target) for r in runs], "s", f"/{name}")
            entries[-1]["target_loss"] = target
    for (rule, batch), runs in batches.items():
        add_all(rule, model | {"batch": batch, "steps": BATCH_STEPS}, runs)
    values = {e["name"]: e["value"] for e in entries}
    for e in entries:
        if values.get(e["baseline"]) and e["value"] is not None:
            e["ratio"] = e["value"] / values[e["baseline"]]
    return {"tool": "study", "command": demo.command_line(), "commit": demo.commit(),
            "time": demo.time.strftime("%Y-%m-%dT%H:%M:%SZ", demo.time.gmtime()),
            "machine": {"cpu": demo.cpu(), "cores": os.cpu_count(), "gpu": None, "driver": None,
                        "jobs": options.jobs, "threads": options.threads},
            "model": model, "results": entries}


def draw(batches, model, path):
    """Loss that lrmoe gains over a smaller batch of the same MoE-layer time, against the batch."""
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot
    figure, axes = pyplot.subplots(figsize=(7, 4.2), dpi=150)
    tokens = [batch * model["context"] for batch in BATCHES]
    exact = BATCH_RULES[0]
    for rule, colour in zip((BATCH_RULES[1], BATCH_CONTROL), ("#0072b2", "#e69f00")):
        means, low, high = [], [], []
        for batch in BATCHES:
            losses = [a.final_loss - b.final_loss
                      for a, b in zip(batches[rule, batch], batches[exact, batch])]
            means.append(mean(losses))
            low.append(min(losses))
            high.append(max(losses))
        axes.plot(tokens, means, "o-", color=colour, label=rule.label)
        axes.fill_between(tokens, low, high, color=colour, alpha=0.15, linewidth=0)
    scales = [r.noise_scale for (rule, _), runs in batches.items() if rule is not exact
              for r in runs if r.noise_scale]
    if scales:
        axes.axvline(statistics.median(scales), color="#888888", linestyle=(0, (6, 4)),
                     linewidth=0.9)
        axes.annotate("noise scale", (statistics.median(scales), 1), (4, -12),
                      xycoords=("data", "axes fraction"), textcoords="offset points", fontsize=8,
                      color="#666666")
    axes.set_xscale("log", base=2)
    axes.set_xlabel("batch, tokens a step")
    axes.set_ylabel("loss above exact's, nats a byte")
    axes.set_title(f"What saving MoE-layer time costs ({BATCH_STEPS} steps)", loc="left",
                   fontsize=11, fontweight="bold")
    axes.grid(color="#e6e6e6", linewidth=0.7)
    axes.legend(frameon=False, fontsize=9)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    pyplot.close(figure)


def parse_arguments():
    parser = argparse.ArgumentParser(
        prog="study.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=pathlib.Path, default=demo.ROOT / "build" / "study",
                        metavar="DIR", help="folder for runs and results (default: build/study)")
    parser.add_argument("--seeds", type=int, default=3, metavar="N", help="default: %(default)d")
    parser.add_argument("--jobs", type=int, default=1, metavar="N",
                        help="runs at a time (default: %(default)d)")
    parser.add_argument("--threads", type=int, default=2, metavar="N",
                        help="threads of each run (default: %(default)d)")
    parser.add_argument("--data", type=pathlib.Path, nargs="+", metavar="FILE",
                        help="text to learn from (default: the King James Bible)")
    parser.add_argument("--quick", action="store_true", help="a tiny model and one seed")
    parser.add_argument("--rules", nargs="+", metavar="NAME",
                        help="only exact and the rules whose names begin so, such as lrmoe or "
                        "error_bounded/epsilon=1 (default: all)")
    parser.add_argument("--batch-seeds", type=int, metavar="N",
                        help="seeds of the second part (default: --seeds)")
    parser.add_argument("--no-batches", action="store_true", help="leave out the second part")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE",
                        help="also write the results to this file")
    parser.add_argument("--save-figure", type=pathlib.Path, metavar="FILE",
                        help="picture of the second part, a PNG")
    parser.add_argument("--trainer", type=pathlib.Path, metavar="FILE",
                        default=demo.ROOT / "build" / "host-release" / "examples" / "lrmoe_train",
                        help="lrmoe_train (default: that of build/host-release)")
    options = parser.parse_args()
    if not os.access(options.trainer, os.X_OK):
        parser.error(f"no program '{options.trainer}': build the target lrmoe_train")
    options.trainer = options.trainer.resolve()
    if options.quick:
        options.seeds = 1
    if options.batch_seeds is None:
        options.batch_seeds = options.seeds
    known = {rule.name for rule in (*RULES, *CONTROLS)}
    for name in options.rules or []:
        if not any(rule.startswith(name) for rule in known):
            parser.error(f"--rules {name}: none of " + ", ".join(sorted(known)))
    return options


def main():
    options = parse_arguments()
    model = demo.QUICK if options.quick else demo.FULL
    targets = demo.FULL_TARGETS
    try:
        options.output.mkdir(parents=True, exist_ok=True)
        data = demo.text_files(options)
        identity = {"trainer": demo.digest([options.trainer]), "text": demo.digest(data)}

        def wanted(rule):
            return options.rules is None or any(rule.name.startswith(name) for name in options.rules)

        def jobs_of(rules, varied, tag, seeds):
            return [(name, Job(rule, varied, seed, options.output / "runs" /
                               f"{rule.name.replace('/', '-')}{tag}-seed{seed}"))
                    for seed in range(seeds) for name, rule in rules]

        def run(jobs, into):
            done = run_all([job for _, job in jobs], options, data, identity)
            for (name, job), result in zip(jobs, done):
                key = name if job.model is model else (name, job.model["batch"])
                into.setdefault(key, []).append(result)

        def timed(control, results, of, exact):
            return control, control.given(relative(results[of], results[exact],
                                                   lambda r: r.moe_seconds))

        rules = [rule for rule in RULES if rule is RULES[0] or wanted(rule)]
        by_name = {rule.name: rule for rule in rules}
        controls = [c for c in CONTROLS if wanted(c) and c.time_of in by_name]
        batch_models = [] if options.no_batches else [
            model | {"batch": batch, "steps": 20 if options.quick else BATCH_STEPS,
                     "warmup": 4 if options.quick else 20} for batch in BATCHES]
        results, batches = {}, {}
        first = jobs_of([(rule, rule) for rule in rules], model, "", options.seeds)
        for varied in batch_models:
            first += jobs_of([(rule, rule) for rule in BATCH_RULES], varied,
                             f"-batch{varied['batch']}", options.batch_seeds)
        found = {}
        run(first, found)
        second = jobs_of([timed(c, found, by_name[c.time_of], RULES[0]) for c in controls], model,
                         "", options.seeds)
        for varied in batch_models:
            batch = varied["batch"]
            second += jobs_of([timed(BATCH_CONTROL, found, (BATCH_RULES[1], batch),
                                     (RULES[0], batch))], varied, f"-batch{batch}",
                              options.batch_seeds)
        run(second, found)
        for key, runs in found.items():
            (batches if isinstance(key, tuple) else results)[key] = runs
        table = demo.markdown(table_of(results, targets))
        print("\n" + table)
        content = json.dumps(document_of(results, batches, targets, model, options), indent=2) + "\n"
        demo.write(options.output / "table.md", table + "\n")
        for path in filter(None, (options.output / "results.json", options.json)):
            demo.write(path, content)
        if batches and options.save_figure:
            draw(batches, model, options.save_figure)
    except (demo.Problem, OSError) as problem:
        print(f"study.py: {problem}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
