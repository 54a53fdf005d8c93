#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""The layer of lrmoe_bench_layer in PyTorch with expert parallelism, a rank for each GPU: every rank routes
its tokens and has its share of the experts, rows travel by all_to_all_single, products are grouped. In two
ways: with autograd, also through the exchanges, and with a backward written by hand. Start it with
`torchrun --nproc-per-node N` (or python3 -m torch.distributed.run). Inputs come from `lrmoe_bench_layer
--write-tensors` for the tokens of all ranks and without a shared expert; each rank reads its part, and before
anything is timed compares its part of the results with what was written. A step takes what its slowest rank
takes. benchmarks/compare_torch --device cuda --ranks N runs both programs."""

import argparse
import json
import os
import statistics
import sys

# First, because it says so where PyTorch is missing.
from torch_gpu_layer import (DIFFERENT, TOLERANCE, AddedUp, Clock, GroupedByHand, by_expert, by_part,
                             dense, described, differences, grouped_product, load_slice,
                             parse_common, router_gradient, step_of, timed, why_not_grouped)
import torch
import torch.distributed as dist
from torch.nn.functional import silu

VERSION = "0.1.0"


class Share:
    """What this rank has: a slice of the tokens and the weights of a slice of the experts."""

    def __init__(self, folder, device, rank, ranks):
        self.folder, self.device, self.rank, self.ranks = folder, device, rank, ranks
        described = json.loads((folder / "layer.json").read_text())
        self.shape, self.routing = described["shape"], described["routing"]
        self.type, self.top_k = described["type"], described["top_k"]
        if described["shared_expert"]:
            raise ValueError("the tensors have a shared expert: write them with --no-shared-expert")
        extent = {name: load_slice(folder, name, None).shape[0] for name in ("x", "gate_up")}
        self.experts = extent["gate_up"]
        if self.experts % ranks != 0:
            raise ValueError(f"{self.experts} experts do not divide among {ranks} ranks")
        self.tokens = self.part(extent["x"])
        self.mine = self.part(self.experts)
        self.local_experts = self.experts // ranks
        self.weight_names = ["gate_up", "down"]
        self.x, self.logits, self.d_out = (self.load(n) for n in ("x", "logits", "d_out"))
        self.weights = {name: self.load(name) for name in self.weight_names}

    def part(self, whole):
        return slice(whole * self.rank // self.ranks, whole * (self.rank + 1) // self.ranks)

    def load(self, name):
        """This rank's part of a tensor: experts of weights and their gradients, tokens of others."""
        of_experts = name.removeprefix("d_") in self.weight_names
        part = load_slice(self.folder, name, self.mine if of_experts else self.tokens)
        return part.to(self.device).view(torch.bfloat16) if part.dtype == torch.int16 \
            else part.to(self.device)


def row_sizes(share, ends):
    """How many rows go to each rank and come from it, as lists, and how many come from each rank for each
    expert here, (R, local experts). The one wait of a forward: both sides of an exchange need its sizes."""
    R, own = share.ranks, share.local_experts
    counts = torch.diff(ends, prepend=ends.new_zeros(1))
    arriving = torch.empty_like(counts)
    dist.all_to_all_single(arriving, counts)
    sizes = torch.stack((counts.view(R, own).sum(1), arriving.view(R, own).sum(1))).tolist()
    return sizes[0], sizes[1], arriving.view(R, own)


def arrival_order(arriving, rows):
    """Rows arrive by rank and within a rank by expert. Returns the row at each place of the order by expert,
    the place of each row, and where experts end. Nothing waits."""
    R, own = arriving.shape
    expert_of_run = torch.arange(own, device=arriving.device).repeat(R)
    expert = torch.repeat_interleave(expert_of_run, arriving.reshape(-1), output_size=rows)
    order = torch.sort(expert, stable=True).indices
    return order, inverse(order), torch.cumsum(arriving.sum(0), 0).to(torch.int32)


def inverse(order):
    place = torch.empty_like(order)
    place[order] = torch.arange(order.numel(), device=order.device)
    return place


def start_exchange(rows, sizes_out, sizes_in):
    """Returns the rows that arrive, and what to wait() on before they are used."""
    received = rows.new_empty((sum(sizes_in), *rows.shape[1:]))
    return received, dist.all_to_all_single(received, rows.contiguous(), sizes_in, sizes_out,
                                            async_op=True)


def exchange(rows, sizes_out, sizes_in):
    received, work = start_exchange(rows, sizes_out, sizes_in)
    work.wait()
    return received


class Exchange(torch.autograd.Function):
    """exchange(), whose gradient goes the way back."""

    @staticmethod
    def forward(ctx, rows, sizes_out, sizes_in):
        ctx.sizes = sizes_out, sizes_in
        return exchange(rows, sizes_out, sizes_in)

    @staticmethod
    def backward(ctx, gradient):
        sizes_out, sizes_in = ctx.sizes
        return exchange(gradient, sizes_in, sizes_out), None, None


class Reorder(torch.autograd.Function):
    """Rows in another order. Its gradient is a gather as well, not the scatter that indexing would have."""

    @staticmethod
    def forward(ctx, rows, order, place):
        ctx.place = place
        return rows.index_select(0, order)

    @staticmethod
    def backward(ctx, gradient):
        return gradient.index_select(0, ctx.place), None, None


class RanksAutograd:
    """Autograd through routing, exchanges and grouped products."""

    def __init__(self, share, grouped):
        self.share, self.grouped = share, grouped
        self.x = share.x.detach().requires_grad_()
        self.logits = share.logits.detach().requires_grad_()
        self.weights = {name: weight.detach().requires_grad_()
                        for name, weight in share.weights.items()}

    def forward(self):
        s = self.share
        weights, chosen = torch.topk(torch.softmax(self.logits, dim=-1), s.top_k, dim=-1)
        weights = weights / weights.sum(dim=-1, keepdim=True)
        order, ends = by_expert(chosen, s.experts)
        tokens = order // s.top_k
        leaving = self.x.index_select(0, tokens)  # whose gradient is an index_add
        to, of, arriving = row_sizes(s, ends)
        here, place, offs = arrival_order(arriving, sum(of))
        rows = Reorder.apply(Exchange.apply(leaving, to, of), here, place)
        gate, up = self.grouped(rows, self.weights["gate_up"], offs=offs).chunk(2, dim=-1)
        y = self.grouped(silu(gate) * up, self.weights["down"], offs=offs)
        y = Exchange.apply(Reorder.apply(y, place, here), of, to)
        y = y * weights.reshape(-1)[order][:, None].to(y.dtype)
        self.out = torch.zeros_like(self.x).index_add(0, tokens, y)
        return self.out

    def backward(self):
        out, self.out = self.out, None
        return torch.autograd.grad(out, [self.x, self.logits, *self.weights.values()],
                                   self.share.d_out)

    def results(self):
        names = ["dx", "d_logits", *(f"d_{name}" for name in self.share.weight_names)]
        out = self.forward().detach()
        return {"out": out, **dict(zip(names, self.backward()))}


class RanksByHand:
    """Backward by hand: it sends rows of dO and returns those of dx, which travel while weight gradients are
    computed; h is computed again instead of kept; and a token's rows are added in one batched product after
    the sort is undone."""

    def __init__(self, share, grouped):
        self.share, self.grouped = share, grouped

    def forward(self):
        with torch.no_grad():
            s, K = self.share, self.share.top_k
            probabilities = torch.softmax(s.logits, dim=-1)
            top, chosen = torch.topk(probabilities, K, dim=-1)
            total = top.sum(dim=-1, keepdim=True)
            weights = top / total
            order, ends = by_expert(chosen, s.experts)
            tokens, sent_place = order // K, inverse(order)
            leaving = s.x.index_select(0, tokens)
            to, of, arriving = row_sizes(s, ends)
            here, place, offs = arrival_order(arriving, sum(of))
            rows = exchange(leaving, to, of).index_select(0, here)
            gu = self.grouped(rows, s.weights["gate_up"], offs=offs)
            y = self.grouped(GroupedByHand.swiglu(gu), s.weights["down"], offs=offs)
            y = exchange(y.index_select(0, place), of, to)
            T, D = s.x.shape
            out = torch.bmm(weights.to(y.dtype)[:, None, :],
                            y.index_select(0, sent_place).view(T, K, D)).view(T, D)
            self.kept = (probabilities, chosen, total, weights, order, tokens, sent_place, to, of,
                         here, place, offs, rows, gu)
            return out

    def backward(self):
        with torch.no_grad():
            s, K = self.share, self.share.top_k
            (probabilities, chosen, total, weights, order, tokens, sent_place, to, of, here, place,
             offs, rows, gu) = self.kept
            self.kept = None
            T, D = s.x.shape
            d_out = exchange(s.d_out.index_select(0, tokens), to, of).index_select(0, here)
            sent_weights = weights.reshape(-1)[order][:, None]
            row_weights = exchange(sent_weights, to, of).index_select(0, here).to(gu.dtype)
            dh = self.grouped(d_out, s.weights["down"].transpose(1, 2), offs=offs)
            h = GroupedByHand.swiglu(gu)
            d_weights = (dh * h).sum(dim=-1, dtype=s.logits.dtype)
            d_gu = GroupedByHand.swiglu_backward(gu, dh * row_weights)
            dx_rows = self.grouped(d_gu, s.weights["gate_up"].transpose(1, 2), offs=offs)
            dx_rows, dx_work = start_exchange(dx_rows.index_select(0, place), of, to)
            d_weights, weights_work = start_exchange(d_weights.index_select(0, place), of, to)
            d_down = self.grouped((h * row_weights).t(), d_out, offs=offs)
            d_gate_up = self.grouped(rows.t(), d_gu, offs=offs)
            dx_work.wait()
            weights_work.wait()
            dx = dx_rows.index_select(0, sent_place).view(T, K, D).sum(dim=1)
            d_weights = d_weights[sent_place].view(T, K)
            d_logits = router_gradient(d_weights, weights, total, probabilities, chosen)
            return [dx, d_logits, d_gate_up, d_down]

    def results(self):
        names = ["dx", "d_logits", *(f"d_{name}" for name in self.share.weight_names)]
        out = self.forward()
        return {"out": out, **dict(zip(names, self.backward()))}


def looped_product(a, b, offs=None):
    """The grouped product as a loop, for trying the program where PyTorch has none. It waits for the device
    and is no measure of anything."""
    ends = offs.tolist()
    parts = list(zip([0, *ends], ends))
    if b.dim() == 3:
        return torch.cat([a[begin:end] @ b[g] for g, (begin, end) in enumerate(parts)])
    return torch.stack([a[:, begin:end] @ b[begin:end] for begin, end in parts])


class Ranks:
    """The processes that torchrun started. Host values and barriers go over gloo."""

    def __init__(self, device_type):
        self.rank, self.size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        local = int(os.environ.get("LOCAL_RANK", self.rank))
        self.device = torch.device("cuda", local) if device_type == "cuda" else torch.device("cpu")
        if device_type == "cuda":
            torch.cuda.set_device(self.device)
        # gloo would look for the address of the machine's name, which may have none.
        if os.environ.get("LOCAL_WORLD_SIZE") == os.environ["WORLD_SIZE"]:
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        dist.init_process_group("nccl" if device_type == "cuda" else "gloo")
        self.host = dist.new_group(backend="gloo")

    def say(self, text, where=sys.stdout):
        if self.rank == 0:
            where.write(text + "\n")
            where.flush()

    def gather(self, value):
        """Every rank's value."""
        values = [None] * self.size
        dist.all_gather_object(values, value, group=self.host)
        return values

    def most(self, values):
        """The largest of each number over the ranks."""
        most = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(most, op=dist.ReduceOp.MAX, group=self.host)
        return most.tolist()

    def together(self):
        dist.barrier(group=self.host)


class RanksClock(Clock):
    """All ranks start together, with nothing under way; a time is that of the slowest."""

    def __init__(self, ranks):
        super().__init__(ranks.device)
        self.ranks = ranks

    def start(self):
        self.flushed.zero_()
        if self.on_gpu:
            torch.cuda.synchronize()
        self.ranks.together()
        self.marks = []
        self.mark()

    def milliseconds(self):
        return self.ranks.most(super().milliseconds())


def check(ways, share, ranks):
    """Relative errors of every way's results against those that lrmoe_bench_layer wrote, over all ranks."""
    results = {name: way.results() for name, way in ways.items()}
    errors = {name: {} for name in ways}
    for tensor in list(next(iter(results.values()))):
        other = share.load(tensor).float() if share.type == "bf16" else share.load(tensor)
        for name in ways:
            mine = results[name].pop(tensor).to(other.dtype)
            squares = torch.stack((torch.linalg.vector_norm(mine - other),
                                   torch.linalg.vector_norm(other))).double().square().cpu()
            dist.all_reduce(squares, group=ranks.host)
            errors[name][tensor] = float((squares[0] / squares[1]).sqrt())
    return errors


def parse_arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, epilog="Exit status: 0 measured, 1 the tensors cannot be read or a step "
        f"failed, 2 bad usage, {DIFFERENT} measured but results differ (then "
        "\"agrees\" is false in the JSON, whatever the launcher makes of the status), 77 PyTorch or a "
        "GPU is missing.")
    parser.add_argument("--version", action="version", version=f"torch_gpu_ranks {VERSION}")
    options = parse_common(parser, warm_ups=6)
    if "WORLD_SIZE" not in os.environ:
        parser.error("start it with torchrun --nproc-per-node N")
    return options


def measure(options, ranks):
    share = Share(options.tensors, ranks.device, ranks.rank, ranks.size)
    grouped = grouped_product()
    refused = why_not_grouped(grouped, share.x.dtype, ranks.device)
    if refused and options.device == "cuda":
        ranks.say(f"torch_gpu_ranks: {refused}", sys.stderr)
        return 1
    if refused:
        ranks.say(f"torch_gpu_ranks: {refused}; a loop stands in for it, only to try the program",
                  sys.stderr)
        grouped = looped_product
    ways = {"grouped_mm, autograd": RanksAutograd(share, grouped),
            "grouped_mm, backward by hand": RanksByHand(share, grouped)}

    errors, agrees = {}, True
    if not options.no_check:
        errors = check(ways, share, ranks)
        for difference in differences(errors, TOLERANCE[share.type]):
            agrees = False
            ranks.say(f"torch_gpu_ranks: {difference}", sys.stderr)

    clock = RanksClock(ranks)
    also = {"grouped_mm, backward by hand, gradients added up":
            AddedUp(ways["grouped_mm, backward by hand"], share.weights)}
    cases = {name: step_of(way, clock) for name, way in {**ways, **also}.items()}
    cases["dense"], dense_work = dense(share, clock)
    times = timed(cases, options)
    dense_times = [found[0] for found in times.pop("dense")]
    on_gpu = options.device == "cuda"
    gpus = ranks.gather(torch.cuda.get_device_name(ranks.device) if on_gpu else None)
    result = {
        "shape": share.shape,
        "routing": share.routing,
        "type": share.type,
        "ranks": ranks.size,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "nccl": ".".join(map(str, torch.cuda.nccl.version())) if on_gpu else None,
        "gpu": gpus[0],
        "gpus": gpus,
        "errors": errors,
        "agrees": agrees,
        "not_measured": refused,
        "dense_tflops": [dense_work / ms for ms in dense_times],
        "ways": by_part(times),
    }
    if options.json and ranks.rank == 0:
        options.json.write_text(json.dumps(result, indent=2) + "\n")
    ranks.say(f"torch {torch.__version__}, {ranks.size} ranks, dense "
              f"{statistics.median(result['dense_tflops']):.1f} TFLOP/s on the slowest")
    for line in described(result["ways"]):
        ranks.say(line)
    ranks.together()
    return 0 if agrees else DIFFERENT


def main():
    options = parse_arguments()
    if options.device == "cuda":
        local = int(os.environ.get("LOCAL_RANK", 0))
        gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if local >= gpus:
            sys.stderr.write(f"torch_gpu_ranks: rank {local} of this machine has no GPU, torch "
                             f"{torch.__version__} sees {gpus}: start at most as many, and check "
                             "nvidia-smi and that this PyTorch was built with CUDA\n")
            return 77
    ranks = Ranks(options.device)
    try:
        return measure(options, ranks)
    except (OSError, ValueError, KeyError) as problem:
        sys.stderr.write(f"torch_gpu_ranks: cannot read --tensors: {problem}\n")
        return 1
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    sys.exit(main())
