#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""lrmoe_train on processes of MPI: the same bits as ranks of one process, and what happens when a
process dies or was started with other flags.

Usage: train_test.py TRAINER MPIEXEC NUMPROC_FLAG [MPIEXEC_FLAG...]

The last line has the totals in the form that scripts/test adds up. Exit status: 0 everything passed;
1 something failed.
"""

import json
import math
import os
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import traceback

# Nothing of a run but these depends on the clock or on who else is in the process.
MEASURED = {"step_ms", "tokens_per_s", "moe_ms", "moe_s_cumulative", "process_peak_bytes", "rank_moe_ms"}
MODEL = {"--batch": "8", "--context": "32", "--layers": "2", "--width": "16", "--expert-width": "16",
         "--experts": "8", "--top-k": "2", "--validation-sequences": "8", "--seed": "7",
         "--steps": "12", "--timeout": "30"}
REDUCED = "--method lrmoe --keep 0.5 --planner lrmoe --sharded-optimizer".split()
LIMIT_S = 60  # of one run; those here take seconds
END_S = time.monotonic() + 170  # of the test, which must not leave runs behind when its time is over

passed = failed = 0


def check(condition, message):
    """Counts, and says what failed where."""
    global passed, failed
    if condition:
        passed += 1
    else:
        failed += 1
        line = traceback.extract_stack(limit=2)[0].lineno
        print(f"train_test.py:{line}: FAILED: {message}", flush=True)


class Runs:
    """Runs of the trainer in one folder that goes when the test ends."""

    def __init__(self, folder, trainer, mpiexec, numproc_flag, flags):
        self.folder = folder
        self.trainer = trainer
        self.launcher = [mpiexec]
        self.launcher_flags = flags
        self.numproc_flag = numproc_flag
        self.text = os.path.join(folder, "text")
        with open(self.text, "w", encoding="ascii") as file:
            for i in range(2000):
                file.write(f"{i} times {i % 7} is {i * (i % 7)}\n")

    def path(self, name, file=""):
        return os.path.join(self.folder, name, file)

    def trainer_command(self, name, flags):
        others = [word for flag, value in MODEL.items() if flag not in flags for word in (flag, value)]
        return [self.trainer, "--data", self.text, "--output", self.path(name), *others, *flags]

    def processes_command(self, *programs):
        """Each program is a number of processes and their command."""
        command = self.launcher + self.launcher_flags
        for i, (count, program) in enumerate(programs):
            command = command + ([":"] if i > 0 else [])
            command = command + [self.numproc_flag, str(count), *program]
        return command

    def alone(self, name, flags):
        return finished(start(self.trainer_command(name, flags)))

    def processes(self, count, name, flags):
        return finished(start(self.processes_command((count, self.trainer_command(name, flags)))))

    def log(self, name, types=("step", "validation"), without=()):
        """Lines of the log without what was measured."""
        with open(self.path(name, "log.jsonl"), encoding="utf-8") as file:
            lines = [json.loads(line) for line in file]
        return [{key: value for key, value in line.items() if key not in MEASURED and key not in without}
                for line in lines if line["type"] in types]

    def is_running(self, process):
        """Whether the process is a trainer that reads the folder's text."""
        try:
            with open(f"/proc/{process}/cmdline", "rb") as file:
                arguments = file.read().decode(errors="replace").split("\0")
        except OSError:
            return False  # it has ended; one that nobody has waited for has an empty command line
        return arguments[0] == self.trainer and self.text in arguments

    def running(self):
        return sorted(int(entry) for entry in os.listdir("/proc")
                      if entry.isdigit() and self.is_running(entry))


def start(command):
    # A group of its own, so that a run that hangs can be ended whole.
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT, start_new_session=True, encoding="utf-8",
                            errors="replace")


def finished(process):
    """Exit code and output; the code is None if the run did not end by itself."""
    try:
        output, _ = process.communicate(timeout=max(1, min(LIMIT_S, END_S - time.monotonic())))
        return process.returncode, output
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        return None, output


def wait_until(condition, limit_s=LIMIT_S):
    """Whether the condition came true."""
    end = min(END_S, time.monotonic() + limit_s)
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.005)
    return condition()


def checkpoint_of(path):
    """Description and payload; the trainer itself verifies the checksum."""
    with open(path, "rb") as file:
        content = file.read()
    magic, _, description_bytes, payload_bytes, _ = struct.unpack_from("<8sIIQQ", content)
    check(magic == b"LRMOECKP", f"the checkpoint begins with {magic}")
    check(len(content) == 32 + description_bytes + payload_bytes,
          f"the checkpoint has {len(content)} bytes, its header says "
          f"{32 + description_bytes + payload_bytes}")
    return json.loads(content[32:32 + description_bytes]), content[32 + description_bytes:]


def first_difference(left, right):
    for one, other in zip(left, right):
        for key in sorted(set(one) | set(other)):
            if one.get(key) != other.get(key):
                return f"step {one['step']}, {key}: {one.get(key)} and {other.get(key)}"
    return f"{len(left)} and {len(right)} lines"


def four_processes_train_as_four_ranks_of_one(runs):
    for kind, flags in (("exact", []), ("reduced", REDUCED)):
        flags = flags + ["--validate-every", "4"]
        code, output = runs.processes(4, f"{kind}-processes", flags)
        check(code == 0, f"{kind}: mpirun ended with {code}: {output}")
        code, output = runs.alone(f"{kind}-ranks", flags + ["--ranks", "4"])
        check(code == 0, f"{kind}: --ranks 4 ended with {code}: {output}")
        processes, ranks = runs.log(f"{kind}-processes"), runs.log(f"{kind}-ranks")
        check(len(processes) == 12 + 3, f"{kind}: {len(processes)} lines in the log")
        check(processes == ranks, f"{kind}: {first_difference(processes, ranks)}")
        (_, mine), (_, theirs) = (checkpoint_of(runs.path(f"{kind}-{of}", "checkpoint.bin"))
                                  for of in ("processes", "ranks"))
        check(len(mine) > 0 and mine == theirs, f"{kind}: the checkpoints' tensors differ")
        for line in processes:
            if line["type"] == "step":
                check(len(line["rank_pairs"]) == 4 and sum(line["rank_bytes_sent"]) > 0,
                      f"{kind}: the step is not one of four ranks: {line}")


def losses_are_those_of_one_rank(runs):
    code, output = runs.alone("one-rank", ["--validate-every", "4"])
    check(code == 0, f"one rank ended with {code}: {output}")
    for one, four in zip(runs.log("one-rank"), runs.log("exact-processes")):
        for name in ("loss", "gradient_norm", "val_loss"):
            if name in one:
                # Sums in another order differ by ulps, which the steps of training enlarge.
                check(abs(one[name] - four[name]) <= 2e-4 * abs(one[name]),
                      f"step {one['step']}: {name} is {four[name]} on four ranks, {one[name]} on one")


def a_killed_process_ends_all_and_the_checkpoint_continues(runs):
    steps = 100
    flags = ["--steps", str(steps), "--checkpoint-every", "5", "--validate-every", "50"]
    code, output = runs.alone("whole", flags + ["--ranks", "4"])
    check(code == 0, f"the whole run ended with {code}: {output}")
    # The first process, which is started first, writes the checkpoints; the last one only computes.
    for name, which in (("first", 0), ("last", -1)):
        run = start(runs.processes_command((4, runs.trainer_command(name, flags))))
        # Found beforehand, so that nothing but the kill lies between the checkpoint and it.
        started = wait_until(lambda: len(runs.running()) == 4)
        victim = runs.running()[which] if started else None
        wait_until(lambda: os.path.exists(runs.path(name, "checkpoint.bin")))
        check(started and runs.is_running(victim), f"{name}: no process is left at the checkpoint")
        if started and runs.is_running(victim):
            os.kill(victim, signal.SIGKILL)
        code, output = finished(run)
        check(code not in (None, 0), f"{name}: mpirun ended with {code} after a kill: {output}")
        check(wait_until(lambda: not runs.running(), 10),
              f"{name}: processes {runs.running()} outlive mpirun")

        description, payload = checkpoint_of(runs.path(name, "checkpoint.bin"))
        step = description["progress"]["step"]
        check(step % 5 == 0 and 5 <= step < steps, f"{name}: the checkpoint is of step {step}")
        check(len(payload) > 0, f"{name}: the checkpoint is empty")
        again = name + "-again"
        shutil.copytree(runs.path(name), runs.path(again))

        code, output = runs.processes(2, name, flags + ["--resume"])
        check(code == 0, f"{name}: two processes continued with {code}: {output}")
        check(f"continuing after step {step}" in output, f"{name}: does not say so: {output}")
        log = runs.log(name, ("step",))
        check([line["step"] for line in log] == list(range(1, steps + 1)),
              f"{name}: steps {[line['step'] for line in log]}")
        check(all(math.isfinite(line["loss"]) for line in log), f"{name}: a loss is not finite")
        check([len(line["rank_pairs"]) for line in log] == [4] * step + [2] * (steps - step),
              f"{name}: the steps are not those of four ranks, then of two")
        check(checkpoint_of(runs.path(name, "checkpoint.bin"))[0]["progress"]["step"] == steps,
              f"{name}: the last checkpoint is not of the last step")

        # As many as before go on as if nothing had happened.
        code, output = runs.processes(4, again, flags + ["--resume"])
        check(code == 0, f"{name}: four processes continued with {code}: {output}")
        # A peak of memory is one of the process, so it begins anew.
        continued, whole = (runs.log(of, without=("moe_peak_bytes",)) for of in (again, "whole"))
        check(continued == whole, f"{name}: {first_difference(continued, whole)}")


def processes_with_other_flags_are_refused_by_name(runs):
    for setting, mine, other in (("seed", "1", "2"), ("layers", "1", "2"), ("steps", "8", "9"),
                                 ("experts", "4", "8")):
        programs = [(1, runs.trainer_command("refused", [f"--{setting}", value]))
                    for value in (mine, other)]
        code, output = finished(start(runs.processes_command(*programs)))
        check(code not in (None, 0), f"{setting}: ended with {code}: {output}")
        check(f"{setting} is '{mine}' on rank 0, '{other}' on rank 1" in output,
              f"{setting}: is not named: {output}")
        check(not os.path.exists(runs.path("refused")), f"{setting}: the output folder was made")
        check(wait_until(lambda: not runs.running(), 10),
              f"{setting}: processes {runs.running()} outlive mpirun")


def main():
    if len(sys.argv) < 4:
        print(__doc__, file=sys.stderr)
        return 2
    trainer, mpiexec, numproc_flag, *flags = sys.argv[1:]
    cases = [four_processes_train_as_four_ranks_of_one, losses_are_those_of_one_rank,
             a_killed_process_ends_all_and_the_checkpoint_continues,
             processes_with_other_flags_are_refused_by_name]
    cases_failed = 0
    global failed
    with tempfile.TemporaryDirectory(prefix="lrmoe-train-") as folder:
        runs = Runs(folder, os.path.abspath(trainer), mpiexec, numproc_flag, flags)
        for case in cases:
            before, start_s = failed, time.monotonic()
            try:
                case(runs)
            except Exception:  # a case that breaks is a case that fails; the others still count
                traceback.print_exc(file=sys.stdout)
                failed += 1
            cases_failed += failed > before
            print(f"{case.__name__}: {'failed' if failed > before else 'passed'}, "
                  f"{time.monotonic() - start_s:.1f} s", flush=True)
    print(f"test totals: cases {len(cases) - cases_failed} passed {cases_failed} failed, "
          f"assertions {passed} passed {failed} failed")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
