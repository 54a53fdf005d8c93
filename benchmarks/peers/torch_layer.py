#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The layer of lrmoe_bench_layer in PyTorch on the CPU: a loop over experts, as in Hugging Face's
models, with autograd's backward. Inputs come from `lrmoe_bench_layer --write-tensors`, and before
anything is timed the results are compared with those it wrote. benchmarks/compare_torch runs both."""

import argparse
import json
import os
import pathlib
import statistics
import sys
import time

try:
    import numpy
    import torch
except ImportError as problem:
    sys.stderr.write(f"torch_layer: {problem}: install PyTorch (Debian, Ubuntu: apt-get install "
                     "python3-torch, for /usr/bin/python3)\n")
    sys.exit(77)

VERSION = "0.1.0"
# Each tensor's error in the Euclidean norm, relative to the tensor. Sums of a few thousand rounded
# products in another order stay a hundred times below; a term that is missing is far above.
TOLERANCE = {"float32": 1e-4, "float64": 1e-12}


class Expert(torch.nn.Module):
    """Gate and up projection in one product; a parameter of its own for every expert, because the
    gradient of a slice of one large parameter would be a zero-padded copy of all of it."""

    def __init__(self, gate_up, down):
        super().__init__()
        # torch.nn.Linear keeps (outputs, inputs).
        self.gate_up = torch.nn.Parameter(gate_up.t().contiguous())
        self.down = torch.nn.Parameter(down.t().contiguous())

    def forward(self, x):
        gate, up = torch.nn.functional.linear(x, self.gate_up).chunk(2, dim=-1)
        return torch.nn.functional.linear(torch.nn.functional.silu(gate) * up, self.down)


class Layer(torch.nn.Module):
    def __init__(self, gate_up, down, top_k, shared=None):
        super().__init__()
        self.top_k = top_k
        self.experts = torch.nn.ModuleList(Expert(g, d) for g, d in zip(gate_up, down))
        self.shared = Expert(*shared) if shared else None

    def forward(self, x, logits):
        weights, chosen = torch.topk(torch.softmax(logits, dim=-1), self.top_k, dim=-1)
        weights = weights / weights.sum(dim=-1, keepdim=True)
        out = self.shared(x) if self.shared else torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            token, k = torch.where(chosen == number)
            if token.numel() == 0:
                continue
            y = expert(x.index_select(0, token)) * weights[token, k, None]
            out.index_add_(0, token, y)
        return out


def blas_libraries():
    """Files of the BLAS libraries that this process has loaded."""
    names = set()
    for line in open("/proc/self/maps"):
        path = line.split()[-1]
        if path.startswith("/") and any(n in path for n in ("blas", "mkl", "blis")):
            names.add(path)
    return sorted(names)


def check(layer, x, logits, d_out, load):
    """Compares one step with the results that lrmoe_bench_layer wrote. Returns relative errors."""
    out = layer(x, logits)
    out.backward(d_out)
    results = {
        "out": out,
        "dx": x.grad,
        "d_logits": logits.grad,
        "d_gate_up": torch.stack([e.gate_up.grad.t() for e in layer.experts]),
        "d_down": torch.stack([e.down.grad.t() for e in layer.experts]),
    }
    if layer.shared:
        results["d_shared_gate_up"] = layer.shared.gate_up.grad.t()[None]
        results["d_shared_down"] = layer.shared.down.grad.t()[None]
    errors = {}
    for name, mine in results.items():
        other = load(name)
        errors[name] = float(torch.linalg.norm(mine.detach() - other) / torch.linalg.norm(other))
    return errors


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, epilog="Exit status: 0 measured, 1 the results differ or cannot be "
        "read, 2 bad usage, 77 PyTorch is missing.")
    parser.add_argument("--version", action="version", version=f"torch_layer {VERSION}")
    parser.add_argument("--tensors", type=pathlib.Path, required=True, metavar="DIR",
                        help="folder that lrmoe_bench_layer --write-tensors wrote")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)),
                        metavar="N", help="threads (default: %(default)s)")
    parser.add_argument("--repetitions", type=int, default=5, metavar="N",
                        help="measured repetitions (default: %(default)s)")
    parser.add_argument("--warm-ups", type=int, default=1, metavar="N",
                        help="repetitions before them that do not count (default: %(default)s)")
    parser.add_argument("--accumulate", action="store_true",
                        help="add to the gradients of the last step; by default they are dropped "
                        "between steps, which saves one pass over them")
    parser.add_argument("--no-check", action="store_true", help="do not compare the results")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="also write times here")
    options = parser.parse_args()
    if options.threads < 1 or options.repetitions < 1 or options.warm_ups < 0:
        parser.error("--threads and --repetitions must be at least 1, --warm-ups at least 0")

    torch.set_num_threads(options.threads)

    def load(name):
        return torch.from_numpy(numpy.load(options.tensors / f"{name}.npy"))

    try:
        described = json.loads((options.tensors / "layer.json").read_text())
        if described["type"] == "bf16":
            raise ValueError("they are bf16, which torch_gpu_layer.py takes: compare float or double")
        shared = None
        if described["shared_expert"]:
            shared = load("shared_gate_up")[0], load("shared_down")[0]
        x, logits, d_out = load("x"), load("logits"), load("d_out")
        layer = Layer(load("gate_up"), load("down"), described["top_k"], shared)
    except (OSError, ValueError, KeyError) as problem:
        sys.stderr.write(f"torch_layer: cannot read --tensors: {problem}\n")
        return 1
    x.requires_grad_()
    logits.requires_grad_()

    errors = {}
    if not options.no_check:
        tolerance = TOLERANCE[str(x.dtype).split(".")[1]]
        errors = check(layer, x, logits, d_out, load)
        for name, error in errors.items():
            if not error <= tolerance:
                sys.stderr.write(f"torch_layer: {name} differs from LRMoE's by {error:.1e} of its "
                                 f"norm, more than {tolerance:.1e}: not the same layer\n")
                return 1

    forward, full = [], []
    for repetition in range(-options.warm_ups, options.repetitions):
        if not options.accumulate:
            layer.zero_grad(set_to_none=True)
            x.grad = logits.grad = None
        start = time.perf_counter()
        out = layer(x, logits)
        middle = time.perf_counter()
        out.backward(d_out)
        end = time.perf_counter()
        if repetition >= 0:
            forward.append((middle - start) * 1e3)
            full.append((end - start) * 1e3)

    result = {
        "shape": described["shape"],
        "routing": described["routing"],
        "type": described["type"],
        "torch": torch.__version__,
        "blas": blas_libraries(),
        "threads": torch.get_num_threads(),
        "accumulate": options.accumulate,
        "errors": errors,
        "forward_ms": forward,
        "full_ms": full,
    }
    if options.json:
        options.json.write_text(json.dumps(result, indent=2) + "\n")
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads: forward "
          f"{statistics.median(forward):.3f} ms, forward and backward "
          f"{statistics.median(full):.3f} ms ({min(full):.3f} .. {max(full):.3f})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
