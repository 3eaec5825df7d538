#!/usr/bin/env python3
"""Makes recipes/lora-*: adapters trained by PyTorch and PEFT, with losses on answers only.

    .venv-references/bin/pip install peft    (in the environment of make_references.py)
    .venv-references/bin/python tests/reference/make_lora_recipes.py [NAME...]

recipe.json has the constants, config.json and model.safetensors the frozen model, adapter/ the adapters at the start
and trained/ those at the end, both as PEFT saves them. reference.safetensors:
  train.input_ids, train.labels  [steps, ranks, rows, length]; labels are the targets themselves, -100 where none counts
  train.loss                     [steps], over all targets of a step that count
  trained.PARAM                  the adapters at the end, by their names in PEFT's files
  input_ids, logits              of the model with the trained adapters, loaded again by PEFT

Where a case has dropout, PEFT's modules stay where PEFT put them, but drop what base/rng.h says (ours cannot drop what
torch's generator says): a value is a function of seed, module, step, token and column.
"""

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig, Phi3Config

RANKS, STEPS, ROWS, LENGTH, VOCAB = 2, 10, 2, 16, 53
SMALL = dict(vocab_size=VOCAB, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4,
             max_position_embeddings=32, bos_token_id=0, eos_token_id=1, pad_token_id=None)
CASES = {
    "lora-llama": (LlamaConfig(num_key_value_heads=2, rms_norm_eps=1e-5, tie_word_embeddings=False, **SMALL),
                   dict(r=4, lora_alpha=8.0, target_modules=["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj",
                                                             "up_proj", "down_proj"])),
    "lora-llama-some": (LlamaConfig(num_key_value_heads=2, rms_norm_eps=1e-5, tie_word_embeddings=True, **SMALL),
                        dict(r=3, lora_alpha=6.0, use_rslora=True, target_modules=["v_proj", "up_proj", "down_proj"])),
    "lora-gpt2": (GPT2Config(vocab_size=VOCAB, n_embd=16, n_layer=2, n_head=4, n_positions=32, resid_pdrop=0.0,
                             embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=1),
                  dict(r=2, lora_alpha=4.0, fan_in_fan_out=True, target_modules=["c_attn", "c_proj", "c_fc"])),
    "lora-phi3": (Phi3Config(num_key_value_heads=2, rms_norm_eps=1e-5, tie_word_embeddings=False, **SMALL),
                  dict(r=4, lora_alpha=4.0, target_modules=["qkv_proj", "gate_up_proj"])),
    "lora-dropout": (LlamaConfig(num_key_value_heads=2, rms_norm_eps=1e-5, tie_word_embeddings=False, **SMALL),
                     dict(r=4, lora_alpha=8.0, lora_dropout=0.25,
                          target_modules=["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"])),
}
SEED = 0  # run.seed where a run file does not say
LR = 5e-3


def answers_only(labels: torch.Tensor) -> torch.Tensor:
    """Every row keeps a tail of its own length, so that ranks have different numbers of targets."""
    first = torch.randint(2, LENGTH - 2, labels.shape[:-1])
    return torch.where(torch.arange(LENGTH) < first[..., None], torch.tensor(-100), labels)


def philox(key: int, low: np.ndarray, high: int = 0) -> list[np.ndarray]:
    """The four words of base/rng.h, of many counters."""
    word = np.uint64(0xFFFFFFFF)
    low = np.asarray(low, dtype=np.uint64)
    c = [low & word, low >> np.uint64(32), np.full_like(low, high & 0xFFFFFFFF), np.full_like(low, high >> 32)]
    k0, k1 = key & 0xFFFFFFFF, key >> 32
    for _ in range(10):
        p0, p1 = np.uint64(0xD2511F53) * c[0], np.uint64(0xCD9E8D57) * c[2]
        c = [(p1 >> np.uint64(32)) ^ c[1] ^ np.uint64(k0), p1 & word, (p0 >> np.uint64(32)) ^ c[3] ^ np.uint64(k1), p0 & word]
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return c


def rng_key(seed: int, purpose: int | str) -> int:
    if isinstance(purpose, str):
        hashed = 0xCBF29CE484222325
        for byte in purpose.encode():
            hashed = ((hashed ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
        purpose = hashed
    words = philox(seed, np.array([purpose], dtype=np.uint64), 0x6865646C65)
    return int(words[1][0]) << 32 | int(words[0][0])


class Dropout(torch.nn.Module):
    """In place of torch's, in a model that sees all sequences of a step at once."""

    def __init__(self, rate: float, module: str) -> None:
        super().__init__()
        self.rate, self.key, self.step = rate, rng_key(rng_key(SEED, "lora.dropout"), module), 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.training:
            return x
        places = np.arange(x.numel(), dtype=np.uint64)  # token by token, and in a token column by column
        words = philox(rng_key(self.key, self.step), places >> np.uint64(1))
        drawn = np.where(places & np.uint64(1), words[1], words[0])
        stays = torch.from_numpy(drawn >= np.uint64(round(self.rate * 2**32))).view(x.shape)
        return x * stays / (1.0 - self.rate)


def replace_dropout(model) -> list[Dropout]:
    made = []
    for name, module in model.named_modules():
        if hasattr(module, "lora_dropout") and "default" in module.lora_dropout:
            rate = getattr(module.lora_dropout["default"], "p", 0.0)
            if rate > 0.0:
                made.append(Dropout(rate, name.removeprefix("base_model.model.")))
                module.lora_dropout["default"] = made[-1]
    return made


def make(name: str, config, lora: dict) -> None:
    folder = Path(__file__).parent / "recipes" / name
    shutil.rmtree(folder, ignore_errors=True)
    torch.manual_seed(11)
    AutoModelForCausalLM.from_config(config, attn_implementation="eager").float().save_pretrained(folder)
    base = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32)
    # Names of machines do not belong into files.
    base.name_or_path = base.config._name_or_path = "base"
    model = get_peft_model(base, LoraConfig(**(dict(task_type="CAUSAL_LM", bias="none", lora_dropout=0.0) | lora)))
    for parameter in (p for n, p in model.named_parameters() if "lora_B" in n):
        torch.nn.init.normal_(parameter, std=0.02)  # else the first step says nothing of A
    model.save_pretrained(folder / "adapter")
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=LR, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
    ids = torch.randint(0, VOCAB, (STEPS, RANKS, ROWS, LENGTH))
    labels = answers_only(torch.randint(0, VOCAB, ids.shape))
    losses = torch.zeros(STEPS)
    drops = replace_dropout(model)
    model.train()
    for step in range(STEPS):
        for drop in drops:
            drop.step = step + 1
        optimizer.zero_grad()
        logits = model(input_ids=ids[step].flatten(0, 1)).logits
        loss = F.cross_entropy(logits.flatten(0, 1), labels[step].flatten(), ignore_index=-100)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        losses[step] = loss.item()
    model.save_pretrained(folder / "trained")
    again = PeftModel.from_pretrained(
        AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32),
        folder / "trained")
    tensors = {"train.input_ids": ids, "train.labels": labels, "train.loss": losses, "input_ids": ids[0, 0].clone()}
    tensors["logits"] = again(input_ids=ids[0, 0]).logits.detach().contiguous()
    tensors |= {f"trained.{n}": v for n, v in load_file(folder / "trained" / "adapter_model.safetensors").items()}
    save_file(tensors, folder / "reference.safetensors")
    recipe = dict(kind="lora", ranks=RANKS, lr=LR)
    (folder / "recipe.json").write_text(json.dumps(recipe, indent=1) + "\n")
    for file in folder.rglob("*"):
        if file.name in ("README.md", "generation_config.json"):
            file.unlink()
    print(name, [round(x, 4) for x in losses.tolist()])


if __name__ == "__main__":
    torch.set_num_threads(1)
    for name in sys.argv[1:] or CASES:
        make(name, *CASES[name])
