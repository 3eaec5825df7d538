#!/usr/bin/env python3
"""Makes chat-lora/: adapters trained by PyTorch and PEFT on conversations, from their text to the last step.

    .venv-references/bin/python tests/reference/make_chat_lora.py    (the environment of make_lora_recipes.py)

  model/       the frozen model, with tokenizer and chat template
  chat.jsonl   the conversations
  adapter/     the adapters at the start, trained/ those at the end, as PEFT saves them
  losses.json  of every step, over the tokens of answers

transformers writes, tokenizes and masks the conversations. They are packed as Heddle does it: one after another, cut into
windows; what is in a window of other conversations is not seen, and positions begin anew with each conversation and each
window. The tokens fill a whole number of windows, and a step takes all of them, so that the order of samples does not
matter.
"""

import json
import shutil
from pathlib import Path

import torch
import torch.nn.functional as F
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedTokenizerFast

from make_chat_answers import TEMPLATES, turns

HERE = Path(__file__).parent
OUT = HERE / "chat-lora"
WINDOWS, LENGTH, STEPS, LR = 12, 48, 10, 5e-3
CONVERSATIONS = [
    turns("What is a heddle?", "A part of a loom."),
    turns("Hi", "Hello! How can I help?", "Count: 1 2 3", "4, 5 and 6."),
    turns("Name a colour.", "Blue.", "Another one?", "Green, as grass is."),
    turns("Is water wet?", "Yes."),
    turns("Say it again.", "It again."),
]


def filler(tokenizer, missing: int) -> list[dict]:
    """A conversation of so many tokens."""
    for words in range(1, missing):
        made = turns("Go on.", " ".join(["and so on"] * words))
        for end in ("", ".", "!!", " 7", " 7 8", "?!", " 7.", " x 9", "...", " a-b"):
            made[1]["content"] = " ".join(["and so on"] * words) + end
            size = len(encoded(tokenizer, made)[0])
            if size == missing:
                return made
    raise SystemExit(f"no conversation of {missing} tokens")


def encoded(tokenizer, messages: list[dict]) -> tuple[list[int], list[int]]:
    made = tokenizer.apply_chat_template(messages, return_dict=True, return_assistant_tokens_mask=True)
    return made["input_ids"], made["assistant_masks"]


def windows(conversations: list[tuple[list[int], list[int]]]) -> dict[str, torch.Tensor]:
    ids = torch.tensor([i for one, _ in conversations for i in one])
    answers = torch.tensor([a for _, mask in conversations for a in mask])
    owner = torch.tensor([n for n, (one, _) in enumerate(conversations) for _ in one])
    assert len(ids) == WINDOWS * LENGTH + 1
    cut = lambda values, first: values[first:first + WINDOWS * LENGTH].view(WINDOWS, LENGTH)
    counts = (cut(answers, 1) == 1) & (cut(owner, 1) == cut(owner, 0))
    own = cut(owner, 0)
    starts = torch.ones_like(own, dtype=torch.bool)
    starts[:, 1:] = own[:, 1:] != own[:, :-1]
    places = torch.arange(LENGTH).expand(WINDOWS, LENGTH)
    first = torch.where(starts, places, 0).cummax(dim=1).values
    sees = (own[:, :, None] == own[:, None, :]) & torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()
    return dict(ids=cut(ids, 0), labels=torch.where(counts, cut(ids, 1), -100), positions=places - first,
                mask=torch.where(sees, 0.0, torch.finfo(torch.float32).min)[:, None])


def main() -> None:
    shutil.rmtree(OUT, ignore_errors=True)
    torch.manual_seed(5)
    torch.set_num_threads(1)
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(HERE / "tokenizers" / "gpt2" / "tokenizer.json"))
    tokenizer.chat_template = TEMPLATES["marked"]
    made = [encoded(tokenizer, messages) for messages in CONVERSATIONS]
    last = filler(tokenizer, WINDOWS * LENGTH + 1 - sum(len(ids) for ids, _ in made))
    conversations = CONVERSATIONS[:3] + [last] + CONVERSATIONS[3:]
    batch = windows([encoded(tokenizer, messages) for messages in conversations])
    config = LlamaConfig(vocab_size=len(tokenizer), hidden_size=16, intermediate_size=24, num_hidden_layers=2,
                         num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64, rms_norm_eps=1e-5,
                         tie_word_embeddings=True, bos_token_id=None, eos_token_id=None, pad_token_id=None)
    base = AutoModelForCausalLM.from_config(config, attn_implementation="eager").float()
    base.save_pretrained(OUT / "model")
    shutil.copy(HERE / "tokenizers" / "gpt2" / "tokenizer.json", OUT / "model")
    (OUT / "model" / "chat_template.jinja").write_text(TEMPLATES["marked"])
    (OUT / "chat.jsonl").write_text("".join(json.dumps(dict(messages=m), ensure_ascii=False) + "\n" for m in conversations))
    base.name_or_path = base.config._name_or_path = "model"
    model = get_peft_model(base, LoraConfig(task_type="CAUSAL_LM", bias="none", lora_dropout=0.0, r=4, lora_alpha=8.0,
                                            target_modules=["q_proj", "v_proj", "o_proj", "gate_proj", "down_proj"]))
    for parameter in (p for n, p in model.named_parameters() if "lora_B" in n):
        torch.nn.init.normal_(parameter, std=0.02)  # else the first step says nothing of A
    model.save_pretrained(OUT / "adapter")
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=LR, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        logits = model(input_ids=batch["ids"], attention_mask=batch["mask"], position_ids=batch["positions"]).logits
        loss = F.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten(), ignore_index=-100)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        losses.append(loss.item())
    model.save_pretrained(OUT / "trained")
    (OUT / "losses.json").write_text(json.dumps(losses) + "\n")
    for file in OUT.rglob("*"):
        if file.name in ("README.md", "generation_config.json"):
            file.unlink()
    print([round(x, 4) for x in losses], "answers", int((batch["labels"] != -100).sum()))


if __name__ == "__main__":
    main()
