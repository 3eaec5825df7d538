#!/usr/bin/env python3
"""Makes recipes/lora-*: adapters trained by PyTorch and PEFT, with losses on answers only.

    .venv-references/bin/pip install peft    (in the environment of make_references.py)
    .venv-references/bin/python tests/reference/make_lora_recipes.py

recipe.json has the constants, config.json and model.safetensors the frozen model, adapter/ the adapters at the start
and trained/ those at the end, both as PEFT saves them. reference.safetensors:
  train.input_ids, train.labels  [steps, ranks, rows, length]; labels are the targets themselves, -100 where none counts
  train.loss                     [steps], over all targets of a step that count
  trained.PARAM                  the adapters at the end, by their names in PEFT's files
  input_ids, logits              of the model with the trained adapters, loaded again by PEFT
"""

import json
import shutil
from pathlib import Path

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
}
LR = 5e-3


def answers_only(labels: torch.Tensor) -> torch.Tensor:
    """Every row keeps a tail of its own length, so that ranks have different numbers of targets."""
    first = torch.randint(2, LENGTH - 2, labels.shape[:-1])
    return torch.where(torch.arange(LENGTH) < first[..., None], torch.tensor(-100), labels)


def make(name: str, config, lora: dict) -> None:
    folder = Path(__file__).parent / "recipes" / name
    shutil.rmtree(folder, ignore_errors=True)
    torch.manual_seed(11)
    AutoModelForCausalLM.from_config(config, attn_implementation="eager").float().save_pretrained(folder)
    base = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32)
    # Names of machines do not belong into files.
    base.name_or_path = base.config._name_or_path = "base"
    model = get_peft_model(base, LoraConfig(task_type="CAUSAL_LM", bias="none", lora_dropout=0.0, **lora))
    for parameter in (p for n, p in model.named_parameters() if "lora_B" in n):
        torch.nn.init.normal_(parameter, std=0.02)  # else the first step says nothing of A
    model.save_pretrained(folder / "adapter")
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=LR, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
    ids = torch.randint(0, VOCAB, (STEPS, RANKS, ROWS, LENGTH))
    labels = answers_only(torch.randint(0, VOCAB, ids.shape))
    losses = torch.zeros(STEPS)
    for step in range(STEPS):
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
    for name, case in CASES.items():
        make(name, *case)
