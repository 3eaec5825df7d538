#!/usr/bin/env python3
"""Makes recipes/streaming-diloco: sites that train apart, played in one process by PyTorch.

    .venv-references/bin/python tests/reference/make_site_recipe.py    (the environment of make_references.py)

recipe.json has the constants, config.json and model.safetensors the start. reference.safetensors:
  train.input_ids, train.labels  [steps, sites, rows, length]; labels are the targets themselves
  train.loss                     [steps, sites]
  trained.PARAM, outer.PARAM     site 0's own weights and the outer weights at the end
"""

import json
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, LlamaConfig

RECIPE = dict(kind="diloco", sites=2, every=4, fragments=2, delay=1, mix=0.5, outer_lr=0.4, outer_momentum=0.9,
              codec="none", lr=1e-3)
STEPS, ROWS, LENGTH, VOCAB = 10, 2, 16, 53
CONFIG = LlamaConfig(vocab_size=VOCAB, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2,
                     num_key_value_heads=1, max_position_embeddings=32, rms_norm_eps=1e-5, tie_word_embeddings=False,
                     bos_token_id=0, eos_token_id=1)


def fragment_of(name: str) -> int:
    words = name.split(".")
    return int(words[words.index("layers") + 1]) % RECIPE["fragments"] if "layers" in words else 0


def train_site(model: torch.nn.Module, optimizer: torch.optim.Optimizer, ids: torch.Tensor,
               labels: torch.Tensor) -> float:
    optimizer.zero_grad()
    loss = F.cross_entropy(model(input_ids=ids).logits.flatten(0, 1), labels.flatten())
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return loss.item()


def main() -> None:
    torch.manual_seed(7)
    torch.set_num_threads(1)
    folder = Path(__file__).parent / "recipes" / "streaming-diloco"
    first = AutoModelForCausalLM.from_config(CONFIG, attn_implementation="eager").float()
    first.save_pretrained(folder)
    sites = [AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager") for _ in range(RECIPE["sites"])]
    optimizers = [
        torch.optim.AdamW([dict(params=[p for p in site.parameters() if p.dim() > 1], weight_decay=0.1),
                           dict(params=[p for p in site.parameters() if p.dim() == 1], weight_decay=0.0)],
                          lr=RECIPE["lr"], betas=(0.9, 0.95), eps=1e-8) for site in sites
    ]
    outer = {name: p.detach().clone() for name, p in first.named_parameters()}
    velocity = {name: torch.zeros_like(value) for name, value in outer.items()}
    ids = torch.randint(0, VOCAB, (STEPS, RECIPE["sites"], ROWS, LENGTH))
    labels = torch.randint(0, VOCAB, ids.shape)
    losses = torch.zeros(STEPS, RECIPE["sites"])
    under_way: list[tuple[int, str, torch.Tensor]] = []
    for step in range(1, STEPS + 1):
        for m, site in enumerate(sites):
            losses[step - 1, m] = train_site(site, optimizers[m], ids[step - 1, m], labels[step - 1, m])
        own = [dict(site.named_parameters()) for site in sites]
        with torch.no_grad():
            for name, value in outer.items():
                since = step - fragment_of(name) * RECIPE["every"] // RECIPE["fragments"]
                if since > 0 and since % RECIPE["every"] == 0:
                    mean = torch.stack([value - weights[name] for weights in own]).mean(0)
                    under_way.append((step + RECIPE["delay"], name, mean))
            for due, name, mean in [exchange for exchange in under_way if exchange[0] == step]:
                velocity[name] = RECIPE["outer_momentum"] * velocity[name] + mean
                outer[name] -= RECIPE["outer_lr"] * (mean + RECIPE["outer_momentum"] * velocity[name])
                for weights in own:
                    weights[name].copy_(RECIPE["mix"] * weights[name] + (1 - RECIPE["mix"]) * outer[name])
    tensors = {"train.input_ids": ids, "train.labels": labels, "train.loss": losses}
    tensors |= {f"trained.{name}": p.detach().clone() for name, p in sites[0].named_parameters()}
    tensors |= {f"outer.{name}": value for name, value in outer.items()}
    save_file(tensors, folder / "reference.safetensors")
    (folder / "recipe.json").write_text(json.dumps(RECIPE, indent=1) + "\n")
    (folder / "generation_config.json").unlink(missing_ok=True)


if __name__ == "__main__":
    main()
