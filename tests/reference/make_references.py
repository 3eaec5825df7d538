#!/usr/bin/env python3
"""Makes the small reference models that the tests compare Heddle with.

    python3 -m venv .venv-references
    .venv-references/bin/pip install torch==2.13.0 transformers==5.17.0
    .venv-references/bin/pip install safetensors==0.8.0 numpy==2.4.6
    .venv-references/bin/python tests/reference/make_references.py [--out DIR] [--only PART]

PART is experts, families, optimizers or recipes. Families were made with torch 2.15.0 and transformers 5.23.0,
heddle-moe with torch 2.13.0 and transformers 5.22.0.

Everything follows from fixed seeds, so a second run on the same machine writes the same bytes (another CPU may differ
in the last bits of the floats). Everything is computed on one CPU thread in float32 with eager attention.

models/NAME holds an ordinary Hugging Face folder and reference.safetensors:
  input_ids, labels              [2,24]; labels are the targets themselves (already shifted), -100 is ignored
  logits, loss                   the forward pass; loss is the mean cross-entropy over the targets that count
  grad.PARAM                     gradient of that loss, under the names of the stored weights
  train.input_ids, train.labels  [10,2,24]: ten batches for ten AdamW steps (see `train`)
  train.loss, train.grad_norm    their losses, and the gradient norms before clipping
  trained.PARAM                  the weights after those steps
  greedy.prompt, greedy.output   prompt [1,8]; prompt and its greedy continuation [1,8+20], with the original weights

optimizers/NAME.safetensors has what other optimizers make of models/NAME in the same ten batches, for each of
OPTIMIZERS[NAME]:
  CASE.loss, CASE.trained.PARAM  as train.loss and trained.PARAM, without the first block, for the files' size

recipes/NAME holds a model, recipe.json and reference.safetensors of training on several ranks, played in one process:
  train.input_ids, train.labels  [steps,ranks,2,12]
  train.loss                     [steps], the mean over ranks
  trained.PARAM                  the weights in the end
onebit-adam (see `train_onebit`) has no mask: rows of tokens that did not occur before freezing must not be there.

Tokenizers are made by make_tokenizers.py.
"""

import argparse
import json
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers import Gemma2Config, Gemma3TextConfig, Glm4Config, GlmConfig, GPT2Config, GPTNeoXConfig, GraniteConfig
from transformers import LlamaConfig, MistralConfig, MixtralConfig, Olmo2Config, OlmoeConfig, Phi3Config, Qwen2Config
from transformers import Qwen3Config, Qwen3MoeConfig, SmolLM3Config, Starcoder2Config
from transformers.models.deepseek_v3.configuration_deepseek_v3 import DeepseekV3Config
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3MoE
from transformers.utils import logging

BATCH, SEQUENCE, TRAIN_STEPS, PROMPT, CONTINUATION = 2, 24, 10, 8, 20
MIN_GREEDY_GAP = 1e-3  # a smaller lead of the best token could flip under another order of summation
MIN_ROUTING_GAP = 2e-4  # the same, between the last expert that a token chooses and the next, in logits
MIN_GREEDY_KINDS = 5  # a continuation that repeats one token would hide wrong positions or a wrong cache
MAX_TOTAL_BYTES = 9 * 1000 * 1000
IDS = dict(bos_token_id=0, eos_token_id=1)
TINY = dict(hidden_size=32, num_hidden_layers=2, intermediate_size=56, max_position_embeddings=64, **IDS)

# Odd vocabularies, unequal widths and non-default epsilons are deliberate: a hard-coded default must show.
CONFIGS: dict[str, Any] = {
    "gpt2": GPT2Config(vocab_size=97, n_positions=40, n_embd=36, n_layer=2, n_head=3, resid_pdrop=0.0, embd_pdrop=0.0,
                       attn_pdrop=0.0, **IDS),
    "llama": LlamaConfig(**TINY | dict(max_position_embeddings=256), vocab_size=101, num_attention_heads=4, head_dim=12,
                         num_key_value_heads=2, rms_norm_eps=1e-5, tie_word_embeddings=False,
                         # At head width 12 these put frequencies in all three bands: kept, blended, divided.
                         rope_parameters=dict(rope_type="llama3", rope_theta=10000.0, factor=8.0, low_freq_factor=1.0,
                                              high_freq_factor=4.0, original_max_position_embeddings=32)),
    "llama-linear-bias": LlamaConfig(**TINY, vocab_size=96, num_attention_heads=4, num_key_value_heads=1,
                                     rms_norm_eps=1e-6, attention_bias=True, mlp_bias=True, tie_word_embeddings=True,
                                     rope_parameters=dict(rope_type="linear", rope_theta=5000.0, factor=4.0)),
    "mistral": MistralConfig(**TINY, vocab_size=96, num_attention_heads=4, num_key_value_heads=2, sliding_window=None,
                             rms_norm_eps=1e-5, tie_word_embeddings=False,
                             rope_parameters=dict(rope_type="default", rope_theta=10000.0)),
    "qwen2": Qwen2Config(**TINY, vocab_size=103, num_attention_heads=4, num_key_value_heads=2, rms_norm_eps=1e-6,
                         use_sliding_window=False, tie_word_embeddings=True,
                         rope_parameters=dict(rope_type="default", rope_theta=1000000.0)),
    "qwen3": Qwen3Config(**TINY, vocab_size=96, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
                         rms_norm_eps=1e-6, use_sliding_window=False, tie_word_embeddings=True,
                         rope_parameters=dict(rope_type="default", rope_theta=1000000.0)),
    "gpt-neox": GPTNeoXConfig(**TINY | dict(intermediate_size=96), vocab_size=96, num_attention_heads=2,
                              hidden_dropout=0.0, attention_dropout=0.0, use_parallel_residual=True,
                              rope_parameters=dict(rope_type="default", rope_theta=10000.0,
                                                   partial_rotary_factor=0.25)),
    "gpt-neox-sequential": GPTNeoXConfig(**TINY | dict(intermediate_size=96), vocab_size=99, num_attention_heads=4,
                                         hidden_dropout=0.0, attention_dropout=0.0, use_parallel_residual=False,
                                         rope_parameters=dict(rope_type="default", rope_theta=5000.0,
                                                              partial_rotary_factor=0.5)),
    # Layers enough for pipelines of four ranks, whose ends share the embedding.
    "llama-deep-tied": LlamaConfig(**TINY | dict(num_hidden_layers=5), vocab_size=101, num_attention_heads=4,
                                   num_key_value_heads=2, rms_norm_eps=1e-5, tie_word_embeddings=True,
                                   rope_parameters=dict(rope_type="default", rope_theta=10000.0)),
}

# Their losses are the cross-entropy alone, without what keeps routers balanced.
SMALL = TINY | dict(hidden_size=24, num_attention_heads=4, num_key_value_heads=2)
EXPERTS: dict[str, Any] = {
    "mixtral": MixtralConfig(**SMALL | dict(intermediate_size=20), vocab_size=97, num_local_experts=4,
                             num_experts_per_tok=2, rms_norm_eps=1e-5, sliding_window=None, tie_word_embeddings=False,
                             rope_parameters=dict(rope_type="default", rope_theta=10000.0)),
    "olmoe": OlmoeConfig(**SMALL | dict(intermediate_size=12), vocab_size=96, num_experts=6, num_experts_per_tok=3,
                         norm_topk_prob=False, pad_token_id=None, rms_norm_eps=1e-6, tie_word_embeddings=False,
                         rope_parameters=dict(rope_type="default", rope_theta=10000.0)),
    # A dense layer before one with experts.
    "qwen3-moe": Qwen3MoeConfig(**SMALL | dict(intermediate_size=28), vocab_size=98, head_dim=8,
                                moe_intermediate_size=12, num_experts=6, num_experts_per_tok=2, decoder_sparse_step=2,
                                norm_topk_prob=True, rms_norm_eps=1e-6, tie_word_embeddings=True,
                                rope_parameters=dict(rope_type="default", rope_theta=1000000.0)),
}

# Llama's blocks with DeepSeek-V3's experts: what their config has beside Llama's. A dense layer is first; the others have
# a shared expert, and choose among the best two of four groups. transformers has the parts, and no model of them.
DEEPSEEK: dict[str, Any] = dict(n_routed_experts=12, num_experts_per_tok=3, moe_intermediate_size=8, n_shared_experts=1,
                                n_group=4, topk_group=2, routed_scaling_factor=2.5, norm_topk_prob=True,
                                first_k_dense_replace=1)

OWN: dict[str, Any] = {
    "heddle-moe": LlamaConfig(**SMALL, vocab_size=95, head_dim=8, rms_norm_eps=1e-6, tie_word_embeddings=False,
                              pad_token_id=3,  # whose embedding then learns nothing
                              rope_parameters=dict(rope_type="default", rope_theta=10000.0)),
}

# Two shapes of each family, windows narrower and wider than sequences, and kinds of rope within and beyond the length
# that they were made for: as small as heads, tp and pipelines allow. Their text is what generate() gives, with a cache.
LEAST = dict(hidden_size=16, num_hidden_layers=2, intermediate_size=24, max_position_embeddings=64,
             num_attention_heads=4, num_key_value_heads=2, pad_token_id=None, **IDS)
DEEP = LEAST | dict(num_hidden_layers=4, intermediate_size=16)


def plain(**more: Any) -> dict[str, Any]:  # made anew each time: configs write into it
    return dict(rope_type="default", rope_theta=10000.0) | more


def yarn(original: int) -> dict[str, Any]:
    return dict(rope_type="yarn", rope_theta=10000.0, factor=4.0, original_max_position_embeddings=original,
                beta_fast=4.0)


def longrope(pairs: int) -> dict[str, Any]:
    return dict(rope_type="longrope", rope_theta=10000.0, short_factor=[1.0 + 0.1 * i for i in range(pairs)],
                long_factor=[1.5 + 0.7 * i for i in range(pairs)])


FAMILIES: dict[str, Any] = {
    "olmo2": Olmo2Config(**LEAST, vocab_size=53, rms_norm_eps=1e-6, tie_word_embeddings=False,
                         rope_parameters=plain()),
    "olmo2-deep": Olmo2Config(**DEEP | dict(num_key_value_heads=4), vocab_size=41, rms_norm_eps=1e-5,
                              attention_bias=True, tie_word_embeddings=True,
                              rope_parameters=dict(rope_type="default", rope_theta=500000.0)),
    "smollm3": SmolLM3Config(**DEEP, vocab_size=43, no_rope_layers=[1, 0, 1, 1], rms_norm_eps=1e-5),
    "smollm3-window": SmolLM3Config(**LEAST, vocab_size=47, no_rope_layer_interval=2, use_sliding_window=True,
                                    sliding_window=7, tie_word_embeddings=False,
                                    rope_parameters=dict(rope_type="default", rope_theta=20000.0)),
    "granite": GraniteConfig(**LEAST, vocab_size=51, embedding_multiplier=3.0, attention_multiplier=0.3,
                             residual_multiplier=0.7, logits_scaling=2.5, rope_parameters=plain()),
    "granite-deep": GraniteConfig(**DEEP, vocab_size=44, embedding_multiplier=0.5, attention_multiplier=0.7,
                                  residual_multiplier=1.3, logits_scaling=0.6, attention_bias=True, mlp_bias=True,
                                  tie_word_embeddings=True, rope_parameters=plain()),
    "glm": GlmConfig(**LEAST, vocab_size=45, head_dim=8, rms_norm_eps=1e-5, rope_parameters=plain()),
    "glm4": Glm4Config(**LEAST | dict(num_key_value_heads=1), vocab_size=42, head_dim=8, rms_norm_eps=1e-6,
                       attention_bias=False, tie_word_embeddings=True,
                       rope_parameters=plain(partial_rotary_factor=0.75)),
    "phi3": Phi3Config(**LEAST, vocab_size=46, sliding_window=9, original_max_position_embeddings=64,
                       rope_parameters=plain()),
    # Positions from 64 on are beyond the original length, those of sequences here are not.
    "phi3-longrope": Phi3Config(**DEEP | dict(hidden_size=32, max_position_embeddings=256), vocab_size=40,
                                original_max_position_embeddings=64, tie_word_embeddings=True,
                                rope_parameters=longrope(3) | dict(partial_rotary_factor=0.75)),
    "phi3-longrope-beyond": Phi3Config(**LEAST, vocab_size=48, original_max_position_embeddings=16,
                                       rope_parameters=longrope(2)),
    "starcoder2": Starcoder2Config(**LEAST, vocab_size=50, sliding_window=6, norm_epsilon=1e-6,
                                   rope_parameters=plain()),
    "starcoder2-wide": Starcoder2Config(**DEEP | dict(num_key_value_heads=1), vocab_size=42, sliding_window=4096,
                                        use_bias=False, tie_word_embeddings=False, rope_parameters=plain()),
    "mistral-window": MistralConfig(**LEAST, vocab_size=49, sliding_window=5, rope_parameters=plain()),
    "mistral-wide-window": MistralConfig(**LEAST | dict(num_key_value_heads=4), vocab_size=46, sliding_window=4096,
                                         rope_parameters=plain()),
    "qwen2-window": Qwen2Config(**DEEP, vocab_size=41, use_sliding_window=True, sliding_window=8, max_window_layers=1,
                                rope_parameters=plain()),
    "qwen3-window": Qwen3Config(**LEAST, vocab_size=47, head_dim=6, use_sliding_window=True, sliding_window=10,
                                layer_types=["sliding_attention", "full_attention"], rope_parameters=plain()),
    "llama-yarn": LlamaConfig(**LEAST, vocab_size=48, head_dim=12, rope_parameters=yarn(64)),
    "llama-yarn-beyond": LlamaConfig(**LEAST, vocab_size=47, head_dim=12,
                                     rope_parameters=yarn(16) | dict(mscale=1.5, mscale_all_dim=0.5, truncate=False)),
    "llama-dynamic": LlamaConfig(**LEAST, vocab_size=46, rope_parameters=plain(rope_type="dynamic", factor=2.0)),
    "llama-dynamic-beyond": LlamaConfig(**LEAST | dict(max_position_embeddings=16), vocab_size=45, head_dim=8,
                                        rope_parameters=plain(rope_type="dynamic", factor=2.5)),
    "llama3-beyond": LlamaConfig(**LEAST, vocab_size=44, head_dim=12,
                                 rope_parameters=dict(rope_type="llama3", rope_theta=10000.0, factor=8.0,
                                                      low_freq_factor=1.0, high_freq_factor=4.0,
                                                      original_max_position_embeddings=8)),
    # Caps are low enough to bend most scores and logits.
    "gemma2": Gemma2Config(**LEAST, vocab_size=45, head_dim=8, sliding_window=6, query_pre_attn_scalar=12,
                           attn_logit_softcapping=1.5, final_logit_softcapping=2.5, rope_parameters=plain()),
    "gemma2-wide": Gemma2Config(**DEEP | dict(num_key_value_heads=1), vocab_size=41, head_dim=6, sliding_window=4096,
                                query_pre_attn_scalar=6, attn_logit_softcapping=None, final_logit_softcapping=4.0,
                                rms_norm_eps=1e-5, rope_parameters=plain()),
    "gemma3": Gemma3TextConfig(**DEEP | dict(num_hidden_layers=3), vocab_size=43, head_dim=8, sliding_window=5, query_pre_attn_scalar=10,
                               sliding_window_pattern=3,
                               rope_parameters=dict(sliding_attention=plain(),
                                                    full_attention=plain(rope_type="linear", rope_theta=1000000.0,
                                                                         factor=8.0))),
    "gemma3-wide": Gemma3TextConfig(**LEAST, vocab_size=47, head_dim=6, sliding_window=4096, query_pre_attn_scalar=6,
                                    final_logit_softcapping=3.0,
                                    layer_types=["full_attention", "sliding_attention"]),
    # Rows of the fused projection that heads do not divide, as in Phi-4-mini.
    "phi3-kv": Phi3Config(**LEAST | dict(hidden_size=24, num_attention_heads=6), vocab_size=45, sliding_window=None,
                          original_max_position_embeddings=64, rope_parameters=plain()),
}

# Checkpoints published before `rope_parameters` spell the same things so; these replace that key in config.json.
OLD_STYLE_ROPE: dict[str, dict[str, Any]] = {
    "llama-linear-bias": dict(rope_theta=5000.0, rope_scaling=dict(type="linear", factor=4.0)),
    "gpt-neox-sequential": dict(rotary_emb_base=5000, rotary_pct=0.5),
}
SHARDED = {"llama-linear-bias"}

# Where keys have a bias that is not rotated, its true gradient is zero (a softmax does not see a shift common to all
# keys) and Adam divides rounding noise by itself. Smaller attention weights keep that noise below Adam's epsilon.
ATTENTION_SCALE: dict[str, float] = {"gpt2": 0.2, "gpt-neox": 0.2, "gpt-neox-sequential": 0.2, "glm": 0.2}


def trained_and_biases(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    """Its parameters, and what routers add to scores for choosing, which no optimizer moves."""
    return dict(model.named_parameters()) | {n: b for n, b in model.named_buffers() if n.endswith("correction_bias")}


def new_model(name: str, config: Any) -> PreTrainedModel:
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=torch.float32)
    if name in OWN:
        for layer in model.model.layers[DEEPSEEK["first_k_dense_replace"]:]:
            experts = DeepseekV3Config(hidden_size=config.hidden_size, **DEEPSEEK)
            experts._experts_implementation = "eager"
            layer.mlp = DeepseekV3MoE(experts)
    return model.eval()


def fill(model: PreTrainedModel, attention_scale: float, generator: torch.Generator) -> None:
    """Weights under which every parameter matters: no zero bias, no norm of exactly one, logits of spread about one."""
    with torch.no_grad():
        for name, parameter in trained_and_biases(model).items():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.dim() >= 2:
                scale = attention_scale if "attn." in name or "attention." in name else 1.0
                parameter.copy_(noise * scale * model.get_input_embeddings().weight.shape[1] ** -0.5)
            elif name.endswith("bias"):
                parameter.copy_(0.1 * noise)
            elif model.config.model_type.startswith("gemma"):
                parameter.copy_(0.2 * noise)  # the norm adds one
            else:
                parameter.copy_(1.0 + 0.2 * noise)


def random_batch(vocabulary: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    tokens = torch.randint(vocabulary, (BATCH, SEQUENCE + 1), generator=generator)
    inputs, labels = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    labels[torch.rand(labels.shape, generator=generator) < 0.15] = -100
    return inputs, labels


def loss_of(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100)


def greedy(model: PreTrainedModel, prompt: torch.Tensor) -> torch.Tensor | None:
    """The continuation, or None where it is a poor test: a near tie, too monotonous, or ended early by an EOS."""
    output = prompt
    for _ in range(CONTINUATION):
        with torch.no_grad():
            best = model(output).logits[0, -1].topk(2)
        if best.values[0] - best.values[1] < MIN_GREEDY_GAP or best.indices[0] == IDS["eos_token_id"]:
            return None
        output = torch.cat([output, best.indices[:1].view(1, 1)], dim=1)
    return output if output[0, PROMPT:].unique().numel() >= MIN_GREEDY_KINDS else None


def generated(model: PreTrainedModel, prompt: torch.Tensor) -> torch.Tensor | None:
    """The same by the library's own loop, with its cache."""
    made = model.generate(prompt, do_sample=False, max_new_tokens=CONTINUATION, return_dict_in_generate=True,
                          output_logits=True)
    with torch.no_grad():
        model(prompt[:, :4])  # dynamic frequencies remember the longest sequence until a short one comes
    best = torch.stack(made.logits).topk(2).values
    near = (best[..., 0] - best[..., 1]).min() < MIN_GREEDY_GAP
    output = made.sequences
    is_whole = output.shape[1] == PROMPT + CONTINUATION
    return output if is_whole and not near and output[0, PROMPT:].unique().numel() >= MIN_GREEDY_KINDS else None


def train(model: PreTrainedModel, inputs: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """AdamW, constant rate, decay on tensors of two or more dimensions only; clips the gradients' global norm to 1."""
    parameters = list(model.parameters())
    groups = [dict(params=[p for p in parameters if p.dim() >= 2], weight_decay=0.1),
              dict(params=[p for p in parameters if p.dim() < 2], weight_decay=0.0)]
    optimizer = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.95), eps=1e-8, foreach=False)
    losses, norms = [], []
    for step_inputs, step_labels in zip(inputs, labels):
        optimizer.zero_grad()
        loss = loss_of(model(step_inputs).logits, step_labels)
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(parameters, 1.0, foreach=False))
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses), torch.stack(norms)


# Beside AdamW. torch makes the products of Newton-Schulz in bfloat16; what differs from a case in float32 is ours.
OPTIMIZERS: dict[str, dict[str, dict[str, Any]]] = {
    "llama": {
        "sgd-nesterov": dict(kind="sgd", lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.1),
        "muon": dict(kind="muon", lr=1e-3, muon_lr=0.01, momentum=0.95, nesterov=True, adjust_lr_fn="original"),
        "muon-f32": dict(kind="muon", lr=1e-3, muon_lr=0.01, momentum=0.95, nesterov=True, adjust_lr_fn="original",
                         products=torch.float32),
    },
    "gpt2": {
        "sgd-dampened": dict(kind="sgd", lr=0.1, momentum=0.8, dampening=0.3, weight_decay=0.1),
        "muon-plain": dict(kind="muon", lr=3e-4, muon_lr=3e-4, momentum=0.9, nesterov=False,
                           adjust_lr_fn="match_rms_adamw"),
    },
}


def make_optimizers(model: PreTrainedModel, kind: str, lr: float, weight_decay: float = 0.1, muon_lr: float = 0.0,
                    adjust_lr_fn: str = "", **options: Any) -> list[torch.optim.Optimizer]:
    """Decay on tensors of two or more dimensions only; Muon for the matrices of the blocks, AdamW for the rest."""
    named = list(model.named_parameters())
    vectors = [p for _, p in named if p.dim() < 2]
    inner = [p for n, p in named if p.dim() == 2 and (".layers." in n or ".h." in n)]
    outer = [p for n, p in named if p.dim() == 2 and not any(p is q for q in inner)]
    if kind == "sgd":
        groups = [dict(params=inner + outer, weight_decay=weight_decay), dict(params=vectors, weight_decay=0.0)]
        return [torch.optim.SGD(groups, lr=lr, foreach=False, **options)]
    groups = [dict(params=outer, weight_decay=weight_decay), dict(params=vectors, weight_decay=0.0)]
    return [torch.optim.Muon(inner, lr=muon_lr, weight_decay=weight_decay, adjust_lr_fn=adjust_lr_fn, **options),
            torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.95), eps=1e-8, foreach=False)]


def train_with(folder: Path, products: torch.dtype = torch.bfloat16, **case: Any) -> dict[str, torch.Tensor]:
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32).eval()
    reference = load_file(folder / "reference.safetensors")
    optimizers = make_optimizers(model, **case)
    losses = []
    for inputs, labels in zip(reference["train.input_ids"], reference["train.labels"]):
        model.zero_grad()
        loss = loss_of(model(inputs).logits, labels)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=False)
        with mock.patch.object(torch, "bfloat16", products):  # the name by which Muon's step knows it
            for optimizer in optimizers:
                optimizer.step()
        losses.append(loss.detach())
    trained = {n: p.detach().clone() for n, p in model.named_parameters() if ".layers.0." not in n and ".h.0." not in n}
    return {"loss": torch.stack(losses)} | {f"trained.{n}": p for n, p in trained.items()}


def make_optimizer_references(models: Path, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, cases in OPTIMIZERS.items():
        made = {case: train_with(models / name, **options) for case, options in cases.items()}
        save_file({f"{case}.{n}": t for case, tensors in made.items() for n, t in tensors.items()},
                  folder / f"{name}.safetensors")
        for case, tensors in made.items():
            print(f"{name}, {case}: losses {tensors['loss'][0]:.4f} to {tensors['loss'][-1]:.4f}")


RECIPE = dict(kind="onebit-adam", ranks=3, freeze_step=6, lr=0.002)  # three ranks do not divide any of its tensors
RECIPE_STEPS, RECIPE_SEQUENCE = 12, 12
RECIPE_MODEL = LlamaConfig(vocab_size=29, hidden_size=16, num_hidden_layers=2, intermediate_size=20,
                           max_position_embeddings=32, num_attention_heads=2, num_key_value_heads=1, rms_norm_eps=1e-5,
                           tie_word_embeddings=False, rope_parameters=dict(rope_type="default", rope_theta=10000.0),
                           **IDS)


def signs(x: torch.Tensor) -> torch.Tensor:
    """What one bit for each element and the mean magnitude make of it."""
    return x.abs().mean() * torch.where(x >= 0, 1.0, -1.0)


def train_onebit(model: PreTrainedModel, inputs: torch.Tensor, labels: torch.Tensor, ranks: int, freeze_step: int,
                 lr: float) -> torch.Tensor:
    """1-bit Adam. A rank's gradient is that of the mean loss over its own tokens. Up to freeze_step AdamW on the mean
    over ranks; then matrices have the bias-corrected second moment of that step, and the mean of the ranks' momenta
    goes through two encodings, each with its error kept: a scale for each tensor, and behind the mean for each of as
    many chunks as there are ranks. The norm that clips is then the root of the mean of the squares of all ranks."""
    parameters = dict(model.named_parameters())
    first, second = ({n: torch.zeros_like(p) for n, p in parameters.items()} for _ in range(2))
    frozen: dict[str, torch.Tensor] = {}
    worker = [{n: torch.zeros_like(p) for n, p in parameters.items()} for _ in range(ranks)]
    server = {n: torch.zeros_like(p).flatten() for n, p in parameters.items()}
    losses = []
    for step in range(1, len(inputs) + 1):
        gradients, step_losses = [], []
        for rank in range(ranks):
            model.zero_grad()
            loss = loss_of(model(inputs[step - 1, rank]).logits, labels[step - 1, rank])
            loss.backward()
            step_losses.append(loss.detach())
            gradients.append({n: p.grad.clone() for n, p in parameters.items()})
        losses.append(torch.stack(step_losses).mean())
        mean = {n: torch.stack([g[n] for g in gradients]).mean(0) for n in parameters}
        is_frozen = step > freeze_step
        squares = (torch.stack([(t ** 2).sum() for g in gradients for t in g.values()]).sum() / ranks if is_frozen
                   else torch.stack([(t ** 2).sum() for t in mean.values()]).sum())
        clip = min(1.0, 1.0 / (squares.sqrt().item() + 1e-6))
        with torch.no_grad():
            for n, p in parameters.items():
                is_matrix = p.dim() >= 2
                if is_frozen and is_matrix:
                    decoded = []
                    for rank in range(ranks):
                        x = 0.9 * first[n] + 0.1 * clip * gradients[rank][n] + worker[rank][n]
                        decoded.append(signs(x))
                        worker[rank][n] = x - decoded[-1]
                    y = torch.stack(decoded).mean(0).flatten() + server[n]
                    made = torch.cat([signs(chunk) for chunk in y.split(-(-y.numel() // ranks))])
                    server[n] = y - made
                    first[n] = made.view_as(p)
                    below = frozen[n]
                else:
                    g = clip * mean[n]
                    first[n] = 0.9 * first[n] + 0.1 * g
                    second[n] = 0.95 * second[n] + 0.05 * g * g
                    below = second[n] / (1 - 0.95 ** step)
                if step == freeze_step:
                    frozen[n] = below
                    assert not is_matrix or (below > 0).all(), f"{n} has elements without a gradient"
                p.mul_(1 - lr * (0.1 if is_matrix else 0.0))
                p.sub_(lr * (first[n] / (1 - 0.9 ** step)) / (below.sqrt() + 1e-8))
    return torch.stack(losses)


def make_recipe_reference(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator().manual_seed(20001)
    model = AutoModelForCausalLM.from_config(RECIPE_MODEL, attn_implementation="eager", dtype=torch.float32).eval()
    fill(model, 1.0, generator)
    save_model(model, "recipe", folder)
    tokens = torch.randint(RECIPE_MODEL.vocab_size, (RECIPE_STEPS, RECIPE["ranks"], 2, RECIPE_SEQUENCE + 1),
                           generator=generator)
    tensors = {"train.input_ids": tokens[..., :-1].contiguous(), "train.labels": tokens[..., 1:].contiguous()}
    constants = {key: value for key, value in RECIPE.items() if key != "kind"}
    losses = train_onebit(model, tensors["train.input_ids"], tensors["train.labels"], **constants)
    tensors |= {"train.loss": losses} | {f"trained.{n}": p.detach().clone() for n, p in model.named_parameters()}
    save_file(tensors, folder / "reference.safetensors")
    (folder / "recipe.json").write_text(json.dumps(RECIPE, indent=1) + "\n")
    print(f"recipe {RECIPE['kind']}: losses {losses[0]:.4f} to {losses[-1]:.4f}")


def save_model(model: PreTrainedModel, name: str, folder: Path) -> set[str]:
    """Writes the Hugging Face folder and returns the names under which the weights are stored."""
    if name in OWN:
        stored = {n: v for n, v in model.state_dict().items() if ".experts." not in n}
        for n, stacked in model.named_parameters():
            stored |= spread(n, stacked.detach(), set(stored))
        save_file({n: v.contiguous() for n, v in stored.items()}, folder / "model.safetensors")
        config = json.loads(model.config.to_json_string()) | DEEPSEEK | dict(model_type=name.replace("-", "_"),
                                                                             topk_method="noaux_tc")
        config["architectures"] = ["HeddleMoeForCausalLM"]
        (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
        return set(stored)
    model.save_pretrained(folder, max_shard_size="40KB" if name in SHARDED else "1GB")
    (folder / "generation_config.json").unlink(missing_ok=True)
    if name in OLD_STYLE_ROPE:
        config = json.loads((folder / "config.json").read_text())
        del config["rope_parameters"]
        config["torch_dtype"] = config.pop("dtype")
        config |= OLD_STYLE_ROPE[name]
        (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    return {tensor for file in folder.glob("model*.safetensors") for tensor in load_file(file)}


def spread(parameter: str, value: torch.Tensor, stored_names: set[str]) -> dict[str, torch.Tensor]:
    """A tensor of the module by the names under which it is stored: the library stacks experts, files do not."""
    if parameter in stored_names:
        return {parameter: value}
    for old in ("embed_out", "block_sparse_moe"):  # GPT-NeoX's head, Mixtral's experts
        renamed = parameter.replace("lm_head", old) if old == "embed_out" else parameter.replace(".mlp.", f".{old}.")
        if renamed in stored_names:
            return {renamed: value}
    module, _, matrix = parameter.rpartition(".")
    is_mixtral = any("block_sparse_moe" in name for name in stored_names)
    module = module.replace(".mlp.", ".block_sparse_moe.") if is_mixtral else module
    parts = dict(gate_up_proj=("w1", "w3") if is_mixtral else ("gate_proj", "up_proj"),
                 down_proj=("w2",) if is_mixtral else ("down_proj",))[matrix]
    return {f"{module}.{expert}.{part}.weight": piece.clone()
            for expert, of_expert in enumerate(value)
            for part, piece in zip(parts, of_expert.chunk(len(parts)))}


def watch_routing(model: PreTrainedModel, per_token: int) -> list[float]:
    """A list that gets the smallest gap of every pass of every router."""
    gaps: list[float] = []

    def look(router: torch.nn.Module, inputs: tuple[torch.Tensor, ...], _: Any) -> None:
        keys = F.linear(inputs[0].detach().flatten(0, -2), router.weight.detach())
        if hasattr(router, "e_score_correction_bias"):
            keys = keys.sigmoid() + router.e_score_correction_bias
            of_group = keys.unflatten(-1, (router.num_group, -1))
            groups = of_group.topk(2).values.sum(-1).topk(router.topk_group + 1)
            gaps.append((groups.values[:, -2] - groups.values[:, -1]).min().item())
            is_kept = torch.zeros(of_group.shape[:2]).scatter_(1, groups.indices[:, :-1], 1.0) == 1.0
            keys = of_group.masked_fill(~is_kept[..., None], -1.0).flatten(1)
        best = keys.topk(per_token + 1).values
        gaps.append((best[:, -2] - best[:, -1]).min().item())

    for module_name, module in model.named_modules():
        if module_name.endswith("mlp.gate"):
            module.register_forward_hook(look)
    return gaps


def make_model(name: str, config: Any, first_seed: int, folder: Path) -> None:
    for seed in range(first_seed, first_seed + 100):
        generator = torch.Generator().manual_seed(seed)
        model = new_model(name, config)
        fill(model, ATTENTION_SCALE.get(name, 1.0), generator)
        prompt = torch.randint(2, config.vocab_size, (1, PROMPT), generator=generator)
        if (continuation := (generated if name in FAMILIES else greedy)(model, prompt)) is not None:
            break
    else:
        raise RuntimeError(f"{name}: no seed gives a continuation free of near ties")

    per_token = getattr(config, "num_experts_per_tok", DEEPSEEK["num_experts_per_tok"])
    gaps = watch_routing(model, per_token) if name in EXPERTS | OWN else []
    folder.mkdir(parents=True, exist_ok=True)
    for old_file in folder.iterdir():
        old_file.unlink()
    stored_names = save_model(model, name, folder)

    def stored(prefix: str, values: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {prefix + at: piece for n, value in values.items() for at, piece in spread(n, value, stored_names).items()}

    inputs, labels = random_batch(config.vocab_size, generator)
    logits = model(inputs).logits
    loss = loss_of(logits, labels)
    loss.backward()
    tensors = {"input_ids": inputs, "labels": labels, "logits": logits.detach(), "loss": loss.detach().view(1),
               "greedy.prompt": prompt, "greedy.output": continuation}
    tensors |= stored("grad.", {n: torch.zeros_like(p) if p.grad is None else p.grad.clone()
                                for n, p in trained_and_biases(model).items()})
    batches = [random_batch(config.vocab_size, generator) for _ in range(TRAIN_STEPS)]
    tensors["train.input_ids"], tensors["train.labels"] = (torch.stack(part) for part in zip(*batches))

    loaded = (AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32).eval()
              if name not in OWN else model)
    if not torch.equal(loaded(inputs).logits, logits):
        raise RuntimeError(f"{name}: the saved folder does not load to the same logits")

    losses, norms = train(model, tensors["train.input_ids"], tensors["train.labels"])
    if name in EXPERTS | OWN and min(gaps) < MIN_ROUTING_GAP:
        return make_model(name, config, seed + 1, folder)
    tensors |= {"train.loss": losses, "train.grad_norm": norms}
    tensors |= stored("trained.", {n: p.detach().clone() for n, p in trained_and_biases(model).items()})
    if {n.removeprefix("grad.") for n in tensors if n.startswith("grad.")} != stored_names:
        raise RuntimeError(f"{name}: gradients and stored weights do not have the same names")
    save_file(tensors, folder / "reference.safetensors")
    print(f"{name}: seed {seed}, loss {loss.item():.4f}, norms {norms.min():.2f}..{norms.max():.2f}, "
          f"continuation {continuation[0, PROMPT:].tolist()}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Makes the reference models of the tests.")
    parser.add_argument("--out", type=Path, default=Path(__file__).resolve().parent, help="folder to write into")
    parser.add_argument("--only", choices=["experts", "families", "optimizers", "recipes"],
                        help="make only these; experts: models that have them; optimizers from the models that are there")
    arguments = parser.parse_args()
    out: Path = arguments.out
    torch.set_num_threads(1)  # one order of summation, whatever the machine
    torch.use_deterministic_algorithms(True)
    logging.disable_progress_bar()
    parts = dict(experts=EXPERTS | OWN, families=FAMILIES)
    for index, (name, config) in enumerate((CONFIGS | EXPERTS | FAMILIES | OWN).items()):
        if not arguments.only or name in parts.get(arguments.only, {}):
            make_model(name, config, 1000 * (index + 1), out / "models" / name)
    if arguments.only in (None, "optimizers"):
        make_optimizer_references(out / "models", out / "optimizers")
    if arguments.only in (None, "recipes"):
        make_recipe_reference(out / "recipes" / "onebit-adam")
    written = ("models", "optimizers", "recipes")
    made = [file for part in written for file in (out / part).rglob("*") if file.is_file()]
    total = sum(file.stat().st_size for file in made)
    print(f"{len(made)} files, {total} bytes")
    assert total <= MAX_TOTAL_BYTES, "the references outgrew their budget"


if __name__ == "__main__":
    main()
