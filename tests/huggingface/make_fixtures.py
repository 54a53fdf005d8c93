#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Computes what Hugging Face's MoE blocks make of random weights, forward and backward.

Usage: tests/huggingface/make_fixtures.py [--output FOLDER]
Needs torch and transformers (5 or later) on a CPU. Writes, into fixtures/ beside this file unless
told otherwise:
  MODEL.safetensors      weights under Hugging Face's names, input and d_output, all of which are
                         bfloat16 numbers, so that every precision computes with the same ones
  CASE.TYPE.safetensors  output, routing and all gradients of one configuration in one precision,
                         of the module's own forward and autograd's backward

The modules cast the router to float32 also where everything else is float64. For TYPE f64 the
names torch.float32 and torch.float in the modules' source mean torch.float64, so that nothing is
rounded to less; what the cast would have changed is printed. For f32 nothing is altered.
"""

import argparse
import json
import pathlib
import sys

import torch
import transformers
from safetensors.torch import save as serialize
from transformers.models.glm4_moe import modeling_glm4_moe
from transformers.models.qwen3_moe import modeling_qwen3_moe

T, D, F, E, K = 24, 64, 32, 8, 2
PREFIX = "mlp."
# Two scores that decide who is chosen differ by at least this, so no precision chooses otherwise.
MARGIN = 1e-3

SIZES = dict(hidden_size=D, moe_intermediate_size=F, num_experts_per_tok=K)
# case: (model, settings)
CASES = {
    "qwen3_moe": ("qwen3_moe", dict(norm_topk_prob=True)),
    "qwen3_moe_unnormalised": ("qwen3_moe", dict(norm_topk_prob=False)),
    "glm4_moe_groups": (
        "glm4_moe",
        dict(norm_topk_prob=True, n_group=4, topk_group=2, routed_scaling_factor=2.5),
    ),
    "glm4_moe_unnormalised": (
        "glm4_moe",
        dict(norm_topk_prob=False, n_group=1, topk_group=1, routed_scaling_factor=1.75),
    ),
}
SOURCES = {"qwen3_moe": modeling_qwen3_moe, "glm4_moe": modeling_glm4_moe}


class WideTorch:
    """The module torch, in which float32 means float64."""

    float32 = float = torch.float64

    def __getattr__(self, name):
        return getattr(torch, name)


def make_block(model, settings, dtype):
    if model == "qwen3_moe":
        config = transformers.Qwen3MoeConfig(num_experts=E, **SIZES, **settings)
        kind = modeling_qwen3_moe.Qwen3MoeSparseMoeBlock
    else:
        config = transformers.Glm4MoeConfig(
            n_routed_experts=E, n_shared_experts=1, **SIZES, **settings
        )
        kind = modeling_glm4_moe.Glm4MoeMoE
    config._experts_implementation = "eager"
    return kind(config).to(dtype)


def draw_inputs(model, seed):
    """Random weights of one block, an input and a gradient, rounded to bfloat16."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape, width=1):
        values = torch.randn(*shape, generator=generator, dtype=torch.float64) / width**0.5
        return values.to(torch.bfloat16)

    weights = {
        "experts.gate_up_proj": normal(E, 2 * F, D, width=D),
        "experts.down_proj": normal(E, D, F, width=F),
        "gate.weight": normal(E, D, width=D / 2),
    }
    if model == "glm4_moe":
        weights["gate.e_score_correction_bias"] = normal(E, width=64).float()
        weights["shared_experts.gate_proj.weight"] = normal(F, D, width=D)
        weights["shared_experts.up_proj.weight"] = normal(F, D, width=D)
        weights["shared_experts.down_proj.weight"] = normal(D, F, width=F)
    return weights, normal(T, D), normal(T, D)


def run(model, settings, dtype, weights, x, d_out, wide):
    """Everything that the block computes, under Hugging Face's names."""
    source = SOURCES[model]
    source.torch = WideTorch() if wide else torch
    block = make_block(model, settings, dtype)
    missing = block.load_state_dict({name: w.to(dtype) for name, w in weights.items()})
    assert not missing.missing_keys and not missing.unexpected_keys
    x = x.to(dtype).reshape(1, T, D).requires_grad_()
    logits, chosen_weights, chosen = block.gate(x.detach().reshape(T, D))
    out = block(x)
    out.backward(d_out.to(dtype).reshape(1, T, D))
    source.torch = torch
    result = {
        "output": out.reshape(T, D),
        "d_input": x.grad.reshape(T, D),
        "router.logits": logits,
        "router.weights": chosen_weights,
        "router.experts": chosen,
    }
    for name, parameter in block.named_parameters():
        assert parameter.grad is not None, name
        result["d_" + PREFIX + name] = parameter.grad
    return {name: value.detach().contiguous() for name, value in result.items()}


def smallest_gap(scores, kept):
    ranked = scores.sort(dim=-1, descending=True).values
    if kept >= ranked.shape[-1]:
        return float("inf")
    return (ranked[:, kept - 1] - ranked[:, kept]).min().item()


def is_clear(settings, weights, result):
    """Whether every choice is made by more than the margin, and the settings matter to some."""
    logits = result["router.logits"]
    if "n_group" not in settings:
        return smallest_gap(logits, K) > MARGIN
    biased = logits.sigmoid() + weights["gate.e_score_correction_bias"].double()
    n_group, kept = settings["n_group"], settings["topk_group"]
    groups = biased.view(T, n_group, -1).topk(2, dim=-1).values.sum(dim=-1)
    best = groups.topk(kept, dim=-1).indices
    mask = torch.zeros(T, n_group).scatter_(1, best, 1).bool().repeat_interleave(E // n_group, 1)
    eligible = biased.masked_fill(~mask, float("-inf"))
    chosen = eligible.topk(K, dim=-1).indices.sort().values
    assert torch.equal(chosen, result["router.experts"].sort().values)
    plain = logits.topk(K, dim=-1).indices.sort().values
    without_groups = biased.topk(K, dim=-1).indices.sort().values
    return (
        smallest_gap(groups, kept) > MARGIN
        and smallest_gap(eligible, K) > MARGIN
        and not torch.equal(plain, without_groups)
        and (n_group == 1 or not torch.equal(chosen, without_groups))
    )


def per_expert(weights):
    """Stacked weights under the names that published checkpoints use."""
    result = {}
    for name, value in weights.items():
        if name == "experts.gate_up_proj":
            for e in range(E):
                result[f"experts.{e}.gate_proj.weight"] = value[e, :F].contiguous()
                result[f"experts.{e}.up_proj.weight"] = value[e, F:].contiguous()
        elif name == "experts.down_proj":
            for e in range(E):
                result[f"experts.{e}.down_proj.weight"] = value[e].contiguous()
        else:
            result[name] = value
    return result


def save(path, tensors, metadata):
    """Writes a file whose bytes depend on nothing else: the package's order of metadata varies."""
    content = serialize(tensors, metadata)
    end = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:end])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + content[end:])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=pathlib.Path,
                        default=pathlib.Path(__file__).resolve().parent / "fixtures")
    folder = parser.parse_args().output
    folder.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    versions = {"torch": torch.__version__, "transformers": transformers.__version__}

    for model in SOURCES:
        cases = {name: case for name, case in CASES.items() if case[0] == model}
        for seed in range(1, 1000):
            weights, x, d_out = draw_inputs(model, seed)
            exact = {
                name: run(model, settings, torch.float64, weights, x, d_out, wide=True)
                for name, (_, settings) in cases.items()
            }
            if all(is_clear(cases[name][1], weights, exact[name]) for name in cases):
                break
        else:
            sys.exit(f"{model}: no seed gives choices with a margin of {MARGIN}")
        # Qwen3's weights are stored stacked, as the module holds them, GLM's one by one.
        named = weights if model == "qwen3_moe" else per_expert(weights)
        stored = {PREFIX + name: value for name, value in named.items()}
        save(folder / f"{model}.safetensors", {**stored, "input": x, "d_output": d_out},
             {"model": model, "seed": str(seed), **versions})
        for name, (_, settings) in cases.items():
            cast = run(model, settings, torch.float64, weights, x, d_out, wide=False)
            print(f"{name}: seed {seed}; casting the router to float32 in a float64 block changes")
            for tensor, value in exact[name].items():
                change = (cast[tensor].double() - value.double()).abs().max()
                print(f"  {tensor:40} by {change:.1e} of {value.double().abs().max():.1e}")
            for precision in ("f64", "f32"):
                result = exact[name]
                if precision == "f32":
                    result = run(model, settings, torch.float32, weights, x, d_out, wide=False)
                metadata = {"model": model, "dtype": precision, "num_experts_per_tok": str(K)}
                metadata.update({key: str(value) for key, value in settings.items()})
                metadata.update(versions)
                save(folder / f"{name}.{precision}.safetensors", result, metadata)
    total = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    print(f"{total} bytes in {folder}")


if __name__ == "__main__":
    main()
