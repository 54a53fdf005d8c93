#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The layer of lrmoe_bench_layer in PyTorch on a GPU, in three ways: with grouped products and autograd,
with grouped products and a backward written by hand, and with a loop over experts. Inputs come from
`lrmoe_bench_layer --write-tensors`, and before anything is timed the results of each way are compared with
those it wrote. All ways are timed in turn, by CUDA events, each from a cold cache.
benchmarks/compare_torch --device cuda runs both programs."""

import argparse
import json
import pathlib
import statistics
import sys
import time

try:
    import numpy
    import torch
    from torch.nn.functional import silu
except ImportError as problem:
    sys.stderr.write(f"torch_gpu_layer: {problem}: install PyTorch with CUDA, or name a Python that "
                     "has it with compare_torch --python\n")
    sys.exit(77)

VERSION = "0.1.0"
DIFFERENT = 3
# Each tensor's error in the Euclidean norm, relative to the tensor. bfloat16: both programs round about six
# times on the way, by 2^-9 at most each, and not at the same places, which leaves a few thousandths. An
# expert that is missing would make 1/sqrt(E), at E = 128 nearly a tenth.
TOLERANCE = {"float": 1e-4, "bf16": 2e-2, "double": 1e-12}


def grouped_product():
    """PyTorch's product of row groups: rows of a, ended by offs, each times a matrix of its own; or, with
    both matrices two-dimensional, a matrix of every group. Public since 2.10, before that with an
    underscore."""
    for place, name in ((torch.nn.functional, "grouped_mm"), (torch, "_grouped_mm")):
        if hasattr(place, name):
            return getattr(place, name)
    return None


def why_not_grouped(grouped, dtype, device):
    """Why the grouped product cannot be used for this type on this device, or nothing."""
    if grouped is None:
        return (f"torch {torch.__version__} has neither torch.nn.functional.grouped_mm nor "
                "torch._grouped_mm: 2.8 or later is needed")
    try:
        a = torch.ones(32, 16, dtype=dtype, device=device)
        b = torch.ones(2, 16, 16, dtype=dtype, device=device)
        ends = torch.tensor([16, 32], dtype=torch.int32, device=device)
        grouped(a, b, offs=ends)
        grouped(a.t(), a, offs=ends)
    except (RuntimeError, TypeError, NotImplementedError) as problem:
        return f"the grouped product of torch {torch.__version__} refuses {dtype}: {problem}"
    return None


def load_slice(folder, name, part):
    """Rows of a tensor's first dimension, on the host, bfloat16 as its bits; with None all of it, mapped and
    not read. Only what is asked for is read."""
    array = numpy.load(folder / f"{name}.npy", mmap_mode="r")
    if array.dtype == numpy.uint16:
        array = array.view(numpy.int16)
    return array if part is None else torch.from_numpy(numpy.array(array[part]))


class Problem:
    """Inputs of the layer on the device."""

    def __init__(self, folder, device):
        self.folder, self.device = folder, device
        described = json.loads((folder / "layer.json").read_text())
        self.shape, self.routing = described["shape"], described["routing"]
        self.type, self.top_k = described["type"], described["top_k"]
        self.has_shared = described["shared_expert"]
        self.x, self.logits, self.d_out = (self.load(n) for n in ("x", "logits", "d_out"))
        self.weight_names = ["gate_up", "down"]
        if self.has_shared:
            self.weight_names += ["shared_gate_up", "shared_down"]
        self.weights = {name: self.load(name) for name in self.weight_names}
        self.experts = self.weights["gate_up"].shape[0]

    def load(self, name):
        array = numpy.load(self.folder / f"{name}.npy")
        if array.dtype == numpy.uint16:  # bits of bfloat16
            return torch.from_numpy(array.view(numpy.int16)).to(self.device).view(torch.bfloat16)
        return torch.from_numpy(array).to(self.device)


def by_expert(chosen, experts):
    """Pairs in the order of their experts, and where each expert's end. Nothing waits for the device."""
    sorted_ids, order = torch.sort(chosen.reshape(-1), stable=True)
    ends = torch.searchsorted(sorted_ids, torch.arange(experts, device=chosen.device), right=True)
    return order, ends


def shared_expert(x, gate_up, down):
    gate, up = (x @ gate_up[0]).chunk(2, dim=-1)
    return (silu(gate) * up) @ down[0]


def router_gradient(d_weights, weights, total, probabilities, chosen):
    """Gradient of the logits from that of the renormalised weights of the chosen experts."""
    d_top = (d_weights - (d_weights * weights).sum(dim=-1, keepdim=True)) / total
    dp = torch.zeros_like(probabilities).scatter_(1, chosen, d_top)
    return probabilities * (dp - (probabilities * dp).sum(dim=-1, keepdim=True))


class Autograd:
    """What the ways with autograd share: forward builds the graph, backward asks for all gradients."""

    def __init__(self, problem, given_routing=False, accumulate=False):
        self.problem, self.given_routing, self.accumulate = problem, given_routing, accumulate
        self.x = problem.x.detach().requires_grad_()
        self.logits = problem.logits.detach().requires_grad_()
        self.make_weights()
        if given_routing:
            with torch.no_grad():
                weights, self.chosen = self.route()
            self.row_weights = weights.detach().requires_grad_()

    def make_weights(self):
        self.weights = {name: weight.detach().requires_grad_()
                        for name, weight in self.problem.weights.items()}
        self.leaves = list(self.weights.values())

    def route(self):
        weights, chosen = torch.topk(torch.softmax(self.logits, dim=-1), self.problem.top_k, dim=-1)
        return weights / weights.sum(dim=-1, keepdim=True), chosen

    def forward(self):
        weights, chosen = ((self.row_weights, self.chosen) if self.given_routing else self.route())
        self.out = self.routed(weights, chosen)
        if self.problem.has_shared:
            self.out = self.out + shared_expert(self.x, self.weights["shared_gate_up"],
                                                self.weights["shared_down"])
        return self.out

    def backward(self):
        router = self.row_weights if self.given_routing else self.logits
        out, self.out = self.out, None
        leaves = [self.x, router, *self.leaves]
        if self.accumulate:
            out.backward(self.problem.d_out)
            return None
        return torch.autograd.grad(out, leaves, self.problem.d_out, allow_unused=True)

    def results(self):
        out = self.forward().detach()
        found = self.backward()
        named = {"out": out, "dx": found[0], "d_logits": found[1]}
        named.update({f"d_{name}": grad for name, grad in zip(self.weights, found[2:])})
        return named


class GroupedAutograd(Autograd):
    """Rows gathered by expert, two grouped products, a weighted index_add; autograd's backward."""

    grouped = staticmethod(grouped_product())

    def routed(self, weights, chosen):
        order, ends = by_expert(chosen, self.problem.experts)
        ends, tokens = ends.to(torch.int32), order // self.problem.top_k
        rows = self.x[tokens]
        gate, up = self.grouped(rows, self.weights["gate_up"], offs=ends).chunk(2, dim=-1)
        y = self.grouped(silu(gate) * up, self.weights["down"], offs=ends)
        y = y * weights.reshape(-1)[order][:, None].to(y.dtype)
        return torch.zeros_like(self.x).index_add(0, tokens, y)


class Loop(Autograd):
    """Rows gathered by expert, then plain products expert by expert. Every expert's weights are leaves of
    their own, because the gradient of a slice would be a padded copy of all of it."""

    def make_weights(self):
        super().make_weights()
        self.parts = {name: [part.detach().requires_grad_() for part in self.problem.weights[name]]
                      for name in ("gate_up", "down")}
        shared = [self.weights[name] for name in self.problem.weight_names[2:]]
        self.leaves = [*self.parts["gate_up"], *self.parts["down"], *shared]

    def routed(self, weights, chosen):
        order, ends = by_expert(chosen, self.problem.experts)
        tokens = order // self.problem.top_k
        ends = ends.tolist()  # the one wait: extents of products are the host's
        counts = [end - begin for begin, end in zip([0, *ends], ends)]
        parts = []
        for e, rows in enumerate(self.x[tokens].split(counts)):
            if counts[e] == 0:
                continue
            gate, up = (rows @ self.parts["gate_up"][e]).chunk(2, dim=-1)
            parts.append((silu(gate) * up) @ self.parts["down"][e])
        y = torch.cat(parts)
        y = y * weights.reshape(-1)[order][:, None].to(y.dtype)
        return torch.zeros_like(self.x).index_add(0, tokens, y)

    def results(self):
        out = self.forward().detach()
        found = self.backward()
        E = self.problem.experts
        named = {"out": out, "dx": found[0], "d_logits": found[1]}
        for name, grads in (("gate_up", found[2:2 + E]), ("down", found[2 + E:2 + 2 * E])):
            zero = torch.zeros_like(self.problem.weights[name][0])
            named[f"d_{name}"] = torch.stack([zero if g is None else g for g in grads])
        named.update({f"d_{name}": grad for name, grad in
                      zip(self.problem.weight_names[2:], found[2 + 2 * E:])})
        return named


class GroupedByHand:
    """Grouped products, a combine that undoes the sort and adds each token's rows in one batched product,
    and a backward written by hand: h is computed again instead of kept, and no scatter adds."""

    grouped = staticmethod(grouped_product())

    def __init__(self, problem):
        self.problem = problem
        self.weights = problem.weights

    @staticmethod
    def swiglu(gu):
        gate, up = gu.chunk(2, dim=-1)
        return silu(gate) * up

    @staticmethod
    def swiglu_backward(gu, dh):
        """Gradients of gate and up from that of h."""
        gate, up = gu.chunk(2, dim=-1)
        F = gate.shape[1]
        d_gu = torch.empty_like(gu)
        torch.mul(dh, silu(gate), out=d_gu[:, F:])
        torch.ops.aten.silu_backward.grad_input(dh * up, gate, grad_input=d_gu[:, :F])
        return d_gu

    def forward(self):
        with torch.no_grad():
            p, K = self.problem, self.problem.top_k
            probabilities = torch.softmax(p.logits, dim=-1)
            top, chosen = torch.topk(probabilities, K, dim=-1)
            total = top.sum(dim=-1, keepdim=True)
            weights = top / total
            order, ends = by_expert(chosen, p.experts)
            ends, tokens = ends.to(torch.int32), order // K
            place = torch.empty_like(order)
            place[order] = torch.arange(order.numel(), device=order.device)
            rows = p.x.index_select(0, tokens)
            gu = self.grouped(rows, self.weights["gate_up"], offs=ends)
            y = self.grouped(self.swiglu(gu), self.weights["down"], offs=ends)
            T, D = p.x.shape
            out = torch.bmm(weights.to(y.dtype)[:, None, :],
                            y.index_select(0, place).view(T, K, D)).view(T, D)
            shared = None
            if p.has_shared:
                shared = p.x @ self.weights["shared_gate_up"][0]
                out += self.swiglu(shared) @ self.weights["shared_down"][0]
            self.kept = (probabilities, chosen, total, weights, order, place, tokens, ends, rows, gu,
                         shared)
            return out

    def backward(self):
        with torch.no_grad():
            p, K = self.problem, self.problem.top_k
            (probabilities, chosen, total, weights, order, place, tokens, ends, rows, gu,
             shared) = self.kept
            self.kept = None
            T, D = p.x.shape
            gate_up, down = self.weights["gate_up"], self.weights["down"]
            row_weights = weights.reshape(-1)[order][:, None].to(gu.dtype)
            d_out = p.d_out.index_select(0, tokens)
            dh = self.grouped(d_out, down.transpose(1, 2), offs=ends)
            h = self.swiglu(gu)
            d_weights = (dh * h).sum(dim=-1, dtype=p.logits.dtype)[place].view(T, K)
            d_gu = self.swiglu_backward(gu, dh * row_weights)
            d_down = self.grouped((h * row_weights).t(), d_out, offs=ends)
            d_gate_up = self.grouped(rows.t(), d_gu, offs=ends)
            dx_rows = self.grouped(d_gu, gate_up.transpose(1, 2), offs=ends)
            dx = dx_rows.index_select(0, place).view(T, K, D).sum(dim=1)
            d_logits = router_gradient(d_weights, weights, total, probabilities, chosen)
            found = [dx, d_logits, d_gate_up, d_down]
            if p.has_shared:
                d_shared = self.swiglu_backward(shared,
                                                p.d_out @ self.weights["shared_down"][0].t())
                dx += d_shared @ self.weights["shared_gate_up"][0].t()
                found += [(p.x.t() @ d_shared)[None],
                          (self.swiglu(shared).t() @ p.d_out)[None]]
            return found

    def results(self):
        names = ["dx", "d_logits", *(f"d_{name}" for name in self.problem.weight_names)]
        out = self.forward()
        return {"out": out, **dict(zip(names, self.backward()))}


class AddedUp:
    """A way whose weight gradients are added to those of the steps before, in the weights' type, as autograd
    adds to .grad."""

    def __init__(self, way, weights):
        self.way = way
        self.sums = [torch.zeros_like(weight) for weight in weights.values()]

    def forward(self):
        return self.way.forward()

    def backward(self):
        with torch.no_grad():
            for total, gradient in zip(self.sums, self.way.backward()[2:]):
                total.add_(gradient)


class Clock:
    """Milliseconds from a start to marks: events on a GPU, wall clock elsewhere."""

    def __init__(self, device):
        self.on_gpu = device.type == "cuda"
        size = 0
        if self.on_gpu:
            properties = torch.cuda.get_device_properties(device)
            size = 2 * getattr(properties, "L2_cache_size", 64 << 20)
        self.flushed = torch.empty(size, dtype=torch.uint8, device=device)

    def start(self):
        self.flushed.zero_()  # as lrmoe_bench_layer: launches may run ahead of it
        self.marks = []
        self.mark()

    def mark(self):
        if self.on_gpu:
            self.marks.append(torch.cuda.Event(enable_timing=True))
            self.marks[-1].record()
        else:
            self.marks.append(time.perf_counter())

    def milliseconds(self):
        if not self.on_gpu:
            return [(mark - self.marks[0]) * 1e3 for mark in self.marks[1:]]
        torch.cuda.synchronize()
        return [self.marks[0].elapsed_time(mark) for mark in self.marks[1:]]


def check(ways, problem):
    """Relative errors of every way's results against those that lrmoe_bench_layer wrote."""
    results = {name: way.results() for name, way in ways.items()}
    errors = {name: {} for name in ways}
    for tensor in list(next(iter(results.values()))):
        other = problem.load(tensor)
        size = torch.linalg.vector_norm(other)
        for name in ways:
            mine = results[name].pop(tensor)
            difference = torch.linalg.vector_norm(mine.to(other.dtype) - other
                                                  if other.dtype != torch.bfloat16
                                                  else mine.float() - other.float())
            errors[name][tensor] = float(difference / size)
    return errors


def parse_common(parser, warm_ups):
    """Adds the options that torch_gpu_ranks.py has as well, and returns what they say."""
    parser.add_argument("--tensors", type=pathlib.Path, required=True, metavar="DIR",
                        help="folder that lrmoe_bench_layer --write-tensors wrote")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda",
                        help="cpu only to try the program (default: %(default)s)")
    parser.add_argument("--repetitions", type=int, default=10, metavar="N",
                        help="measured repetitions (default: %(default)s)")
    parser.add_argument("--warm-ups", type=int, default=warm_ups, metavar="N",
                        help="repetitions before them that do not count (default: %(default)s)")
    parser.add_argument("--no-check", action="store_true", help="do not compare the results")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="also write times here")
    options = parser.parse_args()
    if options.repetitions < 1 or options.warm_ups < 0:
        parser.error("--repetitions must be at least 1, --warm-ups at least 0")
    return options


def parse_arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, epilog="Exit status: 0 measured, 1 the tensors cannot be read or a step "
        f"failed, 2 bad usage, {DIFFERENT} measured but results differ, 77 PyTorch or its GPU is "
        "missing.")
    parser.add_argument("--version", action="version", version=f"torch_gpu_layer {VERSION}")
    return parse_common(parser, warm_ups=5)


def dense(problem, clock):
    """The plain product of lrmoe_bench_layer: P rows, D by 2F. Returns a case and its TFLOP/s at 1 ms."""
    P = problem.x.shape[0] * problem.top_k
    D, width = problem.weights["gate_up"].shape[1:]
    a = torch.randn(P, D, device=problem.device).to(problem.x.dtype)
    b = torch.randn(D, width, device=problem.device).to(problem.x.dtype)
    out = torch.empty(P, width, device=problem.device, dtype=problem.x.dtype)

    def case():
        clock.start()
        torch.mm(a, b, out=out)
        clock.mark()
        return clock.milliseconds()
    return case, 2e-9 * P * D * width


def differences(errors, tolerance):
    """What is said of each tensor that is further from LRMoE's than allowed."""
    return [f"{way}: {name} differs from LRMoE's by {error:.1e} of its norm, more than {tolerance:.1e}: "
            "not the same layer"
            for way, of_way in errors.items() for name, error in of_way.items()
            if not error <= tolerance]


def step_of(way, clock):
    """The case of a forward and a backward."""
    def case():
        clock.start()
        way.forward()
        clock.mark()
        way.backward()
        clock.mark()
        return clock.milliseconds()
    return case


def timed(cases, options):
    """All cases in turn; what the measured repetitions of each took."""
    times = {name: [] for name in cases}
    for repetition in range(-options.warm_ups, options.repetitions):
        for name, case in cases.items():
            found = case()
            if repetition >= 0:
                times[name].append(found)
    return times


def by_part(times):
    """Milliseconds of steps by way and part, as the JSON file has them."""
    return {name: {"forward_ms": [one[0] for one in found], "full_ms": [one[1] for one in found]}
            for name, found in times.items()}


def described(ways):
    """A line for each way."""
    for name, found in ways.items():
        yield (f"{name}: forward {statistics.median(found['forward_ms']):.3f} ms, forward and "
               f"backward {statistics.median(found['full_ms']):.3f} ms ({min(found['full_ms']):.3f} "
               f".. {max(found['full_ms']):.3f})")


def main():
    options = parse_arguments()
    if options.device == "cuda" and not torch.cuda.is_available():
        sys.stderr.write(f"torch_gpu_layer: torch {torch.__version__} sees no GPU: check nvidia-smi, "
                         "and that this PyTorch was built with CUDA\n")
        return 77
    device = torch.device(options.device)
    try:
        problem = Problem(options.tensors, device)
    except (OSError, ValueError, KeyError) as problem:
        sys.stderr.write(f"torch_gpu_layer: cannot read --tensors: {problem}\n")
        return 1

    refused = why_not_grouped(grouped_product(), problem.x.dtype, device)
    ways, also = {"loop": Loop(problem)}, {}
    if refused:
        sys.stderr.write(f"torch_gpu_layer: {refused}; only the loop over experts is measured\n")
    else:
        ways["grouped_mm, autograd"] = GroupedAutograd(problem)
        ways["grouped_mm, backward by hand"] = GroupedByHand(problem)
        also["grouped_mm, backward by hand, gradients added up"] = AddedUp(
            ways["grouped_mm, backward by hand"], problem.weights)
        also["grouped_mm, autograd, routing given, gradients added up"] = GroupedAutograd(
            problem, given_routing=True, accumulate=True)

    errors, agrees = {}, True
    if not options.no_check:
        errors = check(ways, problem)
        for difference in differences(errors, TOLERANCE[problem.type]):
            agrees = False
            sys.stderr.write(f"torch_gpu_layer: {difference}\n")

    clock = Clock(device)
    cases = {name: step_of(way, clock) for name, way in {**ways, **also}.items()}
    cases["dense"], dense_work = dense(problem, clock)
    times = timed(cases, options)
    dense_times = [found[0] for found in times.pop("dense")]
    result = {
        "shape": problem.shape,
        "routing": problem.routing,
        "type": problem.type,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "gpu": torch.cuda.get_device_name(device) if clock.on_gpu else None,
        "errors": errors,
        "agrees": agrees,
        "not_measured": refused,
        "dense_tflops": [dense_work / ms for ms in dense_times],
        "ways": by_part(times),
    }
    if options.json:
        options.json.write_text(json.dumps(result, indent=2) + "\n")
    print(f"torch {torch.__version__}, dense {statistics.median(result['dense_tflops']):.1f} TFLOP/s")
    for line in described(result["ways"]):
        print(line)
    return 0 if agrees else DIFFERENT


if __name__ == "__main__":
    sys.exit(main())
