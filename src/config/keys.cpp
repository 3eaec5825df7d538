#include <utility>

#include "config/field.h"
#include "config/presets.h"
#include "config/schema.h"

namespace heddle::config {
namespace {

constexpr double kMaxCount = 1e15;               // exact in a double, beyond any run
constexpr double kMaxSeed = 9007199254740992.0;  // 2^53: survives JSON readers

std::vector<Key> model_keys() {
  const auto s = &RunConfig::model;
  return {
      {.name = "preset",
       .field = choice(s, &ModelConfig::preset, preset_names()),
       .scope = Scope::derived,
       .help = "a model that Heddle knows by name, with random weights",
       .explanation = "Exactly one of model.preset, model.path and model.config is given. The "
                      "presets are the files of configs/models, built into the program.",
       .foreign = {"model", "flavor", "model_name", "model_type"}},
      {.name = "path",
       .field = field(s, &ModelConfig::path),
       .scope = Scope::derived,
       .help = "a Hugging Face model folder to start from, weights included",
       .explanation = "The folder's tokenizer is used unless data.tokenizer names another.",
       .foreign = {"model_name_or_path", "pretrained", "pretrained_checkpoint", "load",
                   "initial_load_path"}},
      {.name = "config",
       .field = field(s, &ModelConfig::config),
       .scope = Scope::derived,
       .help = "a config.json in Hugging Face form to start from with random weights",
       .foreign = {"config_name", "model_config", "hf_config"}},
      {.name = "vocab_size",
       .field = field(s, &ModelConfig::vocab_size),
       .scope = Scope::derived,
       .unit = "tokens",
       .minimum = 0,
       .maximum = 16777216,
       .help = "overrides the vocabulary size of the preset or config.json",
       .explanation =
           "0 takes the tokenizer's size for a preset, and that of a config.json, or the "
           "tokenizer's "
           "where it is larger. Not allowed with model.path, whose weights have their own size.",
       .foreign = {"padded_vocab_size", "make_vocab_size_divisible_by"}},
      {.name = "seed",
       .field = field(s, &ModelConfig::seed),
       .scope = Scope::run,
       .minimum = 0,
       .maximum = kMaxSeed,
       .help = "seed of the random weights",
       .when_absent = "run.seed"},
      {.name = "init_std",
       .field = field(s, &ModelConfig::init_std),
       .scope = Scope::run,
       .minimum = 0,
       .maximum = 10,
       .help = "standard deviation of the random weights",
       .when_absent = "initializer_range of the model's config",
       .foreign = {"init_method_std", "initializer_range"}},
      {.name = "scale_residual_init",
       .field = field(s, &ModelConfig::scale_residual_init),
       .scope = Scope::run,
       .help =
           "divide the initial weights of the projections into the residual by sqrt(2 x layers)",
       .explanation =
           "The Hugging Face definition does so for GPT-2 and not for Llama; many trainers do "
           "it for every model.",
       .when_absent = "as the model's family does",
       .foreign = {"depth_init", "use_scaled_init_method"}},
      {.name = "ignore_dropout",
       .field = field(s, &ModelConfig::ignore_dropout),
       .scope = Scope::run,
       .help = "train without the dropout that the model's config asks for",
       .explanation =
           "Only adapters have dropout (lora.dropout). A config with a dropout probability is "
           "refused for training unless this says that leaving it out is meant. Evaluation and "
           "generation never have dropout."},
      {.name = "router_aux_loss",
       .field = field(s, &ModelConfig::router_aux_loss),
       .scope = Scope::run,
       .minimum = 0,
       .maximum = 100,
       .help = "weight of the loss that keeps a model's experts evenly used",
       .explanation =
           "In training every token's loss gets this times the mean over layers with experts of "
           "experts x the sum over them of (share of the micro-batch's tokens that chose it) x "
           "(the token's probability of it): as many as a token chooses, when all are used alike. "
           "The losses that are shown do not contain it.",
       .when_absent = "router_aux_loss_coef of the model's config where it has "
                      "output_router_logits, as in transformers; else 0",
       .foreign = {"router_aux_loss_coef", "moe_aux_loss_coeff", "aux_loss_alpha",
                   "load_balance_coeff"}},
      {.name = "router_z_loss",
       .field = field(s, &ModelConfig::router_z_loss),
       .scope = Scope::run,
       .minimum = 0,
       .maximum = 100,
       .help = "weight of the loss that keeps the logits of a model's routers small",
       .explanation = "In training every token's loss gets this times the square of the logarithm "
                      "of the sum of exponentials of its logits, for each layer with experts; "
                      "0.001 is usual.",
       .when_absent = "0",
       .foreign = {"moe_z_loss_coeff", "router_z_loss_coef", "z_loss_coeff"}},
      {.name = "router_balance",
       .field = choice(s, &ModelConfig::router_balance,
                       {"hf", "switch", "megatron", "deepseek", "global"}),
       .scope = Scope::run,
       .help = "whose shares model.router_aux_loss pulls together",
       .explanation =
           "hf: what of a micro-batch's tokens choose an expert (with K experts of a token the "
           "loss is K at balance, as in transformers, which takes the shares and probabilities of "
           "all layers together, where here each layer is balanced by itself); switch: what of "
           "them choose it first; megatron: its "
           "share of all choices; deepseek: that of each sequence by itself; global: that of the "
           "step before, of all tokens, so that it depends on no micro-batch. All but hf are 1 at "
           "balance.",
       .foreign = {"moe_router_load_balancing_type", "seq_aux"}},
      {.name = "router_bias_rate",
       .field = field(s, &ModelConfig::router_bias_rate),
       .scope = Scope::run,
       .minimum = 0,
       .maximum = 1,
       .help = "what a step adds to or takes from the bias by which a router chooses an expert",
       .explanation =
           "For models whose routers have such a bias (topk_method noaux_tc): it grows for experts "
           "that fewer tokens of the step chose than the mean, and shrinks for the others. 0 "
           "leaves it.",
       .when_absent = "0.001",
       .foreign = {"moe_router_bias_update_rate", "bias_update_speed"}},
      {.name = "router_noise",
       .field = choice(s, &ModelConfig::router_noise, {"none", "gaussian", "gumbel"}),
       .scope = Scope::run,
       .help = "noise on the logits of routers in training",
       .explanation =
           "gaussian adds normal numbers divided by the number of experts, and scores "
           "have them too (Tutel's); gumbel changes the choice alone (DeepSpeed's "
           "RSample). What a token gets depends on the step and the token, not on ranks.",
       .foreign = {"noisy_gate_policy", "gate_noise"}},
      {.name = "router_noise_scale",
       .field = field(s, &ModelConfig::router_noise_scale),
       .scope = Scope::run,
       .minimum = 0,
       .maximum = 100,
       .help = "what model.router_noise is multiplied by"},
      {.name = "capacity_factor",
       .field = field(s, &ModelConfig::capacity_factor),
       .scope = Scope::run,
       .minimum = -1000,
       .maximum = 1000,
       .help = "how many tokens an expert takes in training, of its equal share; 0: all that "
               "choose it",
       .explanation =
           "Choices beyond it are dropped: such a token goes on without that expert. What counts "
           "are the tokens of a micro-batch that one rank routes, so that results depend on how "
           "ranks share them. Evaluation and generation drop nothing.",
       .foreign = {"moe_expert_capacity_factor", "expert_capacity_factor", "moe_capacity_factor"}},
      {.name = "capacity_rule",
       .field = choice(s, &ModelConfig::capacity_rule, {"megatron", "deepspeed", "tutel"}),
       .scope = Scope::run,
       .help = "how model.capacity_factor becomes a number of tokens",
       .explanation = "Of T tokens that choose K of E experts: megatron takes ceil(f K T / E); "
                      "deepspeed no less than model.capacity_least; tutel K floor(f ceil(T / E)), "
                      "rounded up to a multiple of model.capacity_multiple, and with a negative f "
                      "the same with its size and without rounding."},
      {.name = "capacity_least",
       .field = field(s, &ModelConfig::capacity_least),
       .scope = Scope::run,
       .minimum = 0,
       .maximum = kMaxCount,
       .help = "the least that model.capacity_rule = \"deepspeed\" gives",
       .foreign = {"min_capacity"}},
      {.name = "capacity_multiple",
       .field = field(s, &ModelConfig::capacity_multiple),
       .scope = Scope::run,
       .minimum = 1,
       .maximum = 1048576,
       .help = "what model.capacity_rule = \"tutel\" rounds up to"},
      {.name = "drop",
       .field = choice(s, &ModelConfig::drop,
                       {"late-slots", "late-tokens", "unsure", "low-scores", "random"}),
       .scope = Scope::run,
       .help = "which choices are dropped, with a model.capacity_factor",
       .explanation =
           "late-slots: second choices before first ones, then later tokens (GShard, Tutel); "
           "late-tokens: later tokens; unsure: as late-slots, but tokens with lower best scores "
           "count as later (batch-prioritised); low-scores: those with the lowest scores; random: "
           "by a number that depends on the step and the token.",
       .foreign = {"moe_token_drop_policy", "use_rts", "batch_prioritized_routing"}},
      {.name = "renorm_after_drop",
       .field = field(s, &ModelConfig::renorm_after_drop),
       .scope = Scope::run,
       .help = "divide the weights of choices by the sum over those that were not dropped",
       .explanation = "As DeepSpeed does; otherwise they were divided before, as in Tutel and "
                      "Megatron-LM. Of models that divide weights at all."},
  };
}

std::vector<Key> data_keys() {
  const auto s = &RunConfig::data;
  return {
      {.name = "train",
       .field = field(s, &DataConfig::train),
       .scope = Scope::derived,
       .help = "what to train on: a token file, or text or records to be tokenized first",
       .explanation =
           "A file, a folder or a pattern (*, ?, []); text, JSON lines, JSON, CSV, Parquet "
           "and Arrow are known by their content, also as .gz and .zst, and so are tokens "
           "of nanoGPT and Megatron-LM. Exactly one of data.train and [[data.sources]] is "
           "given. A relative path is relative to the folder in which heddle is started, "
           "as are all paths here.",
       .foreign = {"data_path", "train_data_path", "dataset", "dataset_path", "dataset_name",
                   "train_file"}},
      {.name = "sources",
       .field = field(s, &DataConfig::sources),
       .scope = Scope::derived,
       .help = "a mixture: one [[data.sources]] table per source with path, weight and name",
       .explanation =
           "weight (default 1) is the source's share of the training tokens, relative to the "
           "other weights; name (default: the path) is what reports call it.",
       .foreign = {"blend", "data_blend", "datasets", "mixture"}},
      {.name = "eval",
       .field = field(s, &DataConfig::eval),
       .scope = Scope::derived,
       .help = "a separate file for evaluation",
       .explanation = "When given, nothing of the training data is held out.",
       .foreign = {"valid_data_path", "eval_data_path", "validation_file", "validation"}},
      {.name = "holdout",
       .field = field(s, &DataConfig::holdout),
       .scope = Scope::run,
       .unit = "fraction",
       .minimum = 0,
       .maximum = 0.5,
       .help = "share of the training data kept for evaluation when data.eval is absent",
       .explanation = "The end of each source is held out; 0 trains on everything and evaluates on "
                      "nothing.",
       .foreign = {"split", "validation_split", "validation_split_percentage"}},
      {.name = "kind",
       .field = choice(s, &DataConfig::kind, {"text", "chat"}),
       .scope = Scope::derived,
       .help = "chat: records are conversations, and only answers are learnt",
       .explanation =
           "A record has messages (objects with role and content), or a prompt and its answer. It "
           "is written as the chat template of the tokenizer's folder says; what the template puts "
           "inside {% generation %}, or else what it writes behind the beginning of an answer, are "
           "the targets. A step's loss is the mean over all of them. Records do not see each "
           "other.",
       .foreign = {"dataset_type", "type", "chat", "train_on_inputs", "assistant_only_loss"}},
      {.name = "messages_field",
       .field = field(s, &DataConfig::messages_field),
       .scope = Scope::derived,
       .help = "of a chat record, the field with its messages",
       .foreign = {"messages", "conversations", "field_messages"}},
      {.name = "prompt_field",
       .field = field(s, &DataConfig::prompt_field),
       .scope = Scope::derived,
       .help = "of a chat record without messages, the field with what a user asks",
       .foreign = {"field_instruction", "instruction", "prompt_column"}},
      {.name = "answer_field",
       .field = field(s, &DataConfig::answer_field),
       .scope = Scope::derived,
       .help = "of a chat record without messages, the field with the answer",
       .foreign = {"field_output", "completion", "response_column"}},
      {.name = "tokenizer",
       .field = field(s, &DataConfig::tokenizer),
       .scope = Scope::derived,
       .help =
           "a tokenizer.json, tokenizer.model, vocab.json (with merges.txt), vocab.txt or their "
           "folder",
       .when_absent = "the one in model.path, or the one the token file names",
       .foreign = {"tokenizer_model", "tokenizer_path", "tokenizer_name", "hf_assets_path"}},
      {.name = "eos",
       .field = field(s, &DataConfig::eos),
       .scope = Scope::launch,
       .help = "the token put after each document when text is tokenized",
       .explanation = "\"none\" puts none. The tokenizer's own is the eos_token of the "
                      "tokenizer_config.json beside it, else a special token with one of the usual "
                      "names.",
       .when_absent = "the tokenizer's own end-of-text token",
       .foreign = {"append_eod", "eod", "eos_token"}},
      {.name = "format",
       .field = choice(
           s, &DataConfig::format,
           {"text", "jsonl", "json", "csv", "tsv", "parquet", "arrow", "nanogpt", "megatron"}),
       .scope = Scope::launch,
       .help = "what the files are",
       .when_absent = "recognised by their content and names",
       .foreign = {"dataset_format", "file_format"}},
      {.name = "field",
       .field = field(s, &DataConfig::field),
       .scope = Scope::launch,
       .help = "the field of objects, or the column of tables, that holds the text",
       .foreign = {"text_column", "text_field", "json_keys", "dataset_text_field", "text_key"}},
      {.name = "seq_len",
       .field = field(s, &DataConfig::seq_len),
       .scope = Scope::run,
       .unit = "tokens",
       .minimum = 1,
       .maximum = 16777216,
       .help = "length of a training sequence",
       .foreign = {"seq_length", "sequence_length", "block_size", "max_seq_length", "max_seq_len",
                   "n_ctx", "context_length"}},
      {.name = "documents",
       .field = choice(s, &DataConfig::documents, {"mask", "ignore"}),
       .scope = Scope::run,
       .help = "mask: attention stays inside a document; ignore: it crosses document boundaries",
       .foreign = {"reset_attention_mask", "document_mask", "attn_mask_type"}},
      {.name = "seed",
       .field = field(s, &DataConfig::seed),
       .scope = Scope::run,
       .minimum = 0,
       .maximum = kMaxSeed,
       .help = "seed of the order of samples",
       .explanation = "The order is a pure function of this seed, the tokens and the step.",
       .when_absent = "run.seed",
       .foreign = {"data_seed", "shuffle_seed"}},
      {.name = "stream",
       .field = field(s, &DataConfig::stream),
       .scope = Scope::run,
       .help = "train on what is tokenized while the rest still is",
       .explanation =
           "Samples come block by block of the files, shuffled within a block only, whatever the "
           "pace of tokenizing; so their order is another than without. data.holdout is the end of "
           "the first block of each source. Needs text or records, not token files.",
       .foreign = {"streaming"}},
      {.name = "prefetch",
       .field = field(s, &DataConfig::prefetch),
       .scope = Scope::process,
       .unit = "micro-batches",
       .minimum = 0,
       .maximum = 1024,
       .help = "micro-batches prepared ahead by a background thread; 0 prepares each when needed",
       .foreign = {"num_workers", "dataloader_num_workers", "prefetch_factor"}},
  };
}

std::vector<Key> train_keys() {
  const auto s = &RunConfig::train;
  return {
      {.name = "steps",
       .field = field(s, &TrainConfig::steps),
       .scope = Scope::run,
       .unit = "steps",
       .minimum = 0,
       .maximum = kMaxCount,
       .help = "optimizer steps of the whole run",
       .explanation = "Exactly one of train.steps and train.tokens is given (0 means not given).",
       .foreign = {"train_iters", "max_steps", "num_steps", "iterations", "max_iters"}},
      {.name = "tokens",
       .field = field(s, &TrainConfig::tokens),
       .scope = Scope::derived,
       .unit = "tokens",
       .minimum = 0,
       .maximum = kMaxCount,
       .help = "tokens of the whole run, rounded up to whole steps",
       .foreign = {"train_tokens", "max_tokens", "total_tokens", "train_samples"}},
      {.name = "tokens_per_step",
       .field = field(s, &TrainConfig::tokens_per_step),
       .scope = Scope::run,
       .unit = "tokens",
       .minimum = 0,
       .maximum = kMaxCount,
       .help = "tokens whose gradients make one optimizer step, over all ranks",
       .explanation =
           "A multiple of train.microbatch x data.seq_len x parallel.dp x parallel.sites; how many "
           "micro-batches are accumulated follows and is shown. 0 is one micro-batch.",
       .foreign = {"global_batch_size", "train_batch_size", "batch_size", "total_batch_size",
                   "num_tokens_per_train_step", "tokens_per_batch"}},
      {.name = "microbatch",
       .field = field(s, &TrainConfig::microbatch),
       .scope = Scope::launch,
       .unit = "sequences",
       .minimum = 1,
       .maximum = 1048576,
       .help = "sequences that go through the model at once on one rank",
       .explanation =
           "More is faster until memory is full; the result of a step does not depend on it "
           "except for rounding.",
       .foreign = {"micro_batch_size", "train_micro_batch_size_per_gpu", "local_batch_size",
                   "num_tokens_per_microbatch_per_dp_rank", "per_device_train_batch_size"}},
      {.name = "recompute",
       .field = choice(s, &TrainConfig::recompute, {"none", "block"}),
       .scope = Scope::launch,
       .help = "block: keep only each block's input and attention's output, compute the rest again",
       .explanation = "In the backward pass. Costs up to a third more time, less for long "
                      "sequences, because attention is not computed again; saves most of the "
                      "activation memory.",
       .foreign = {"recompute_granularity", "recompute_activations", "activation_checkpointing",
                   "activation_checkpoint", "gradient_checkpointing", "selective_ac"}},
      {.name = "loss_chunk",
       .field = field(s, &TrainConfig::loss_chunk),
       .scope = Scope::launch,
       .unit = "tokens",
       .minimum = 0,
       .maximum = 16777216,
       .help = "tokens per piece of the output projection and its loss; 0 is what suits the device",
       .explanation = "Logits are held for one piece only: loss_chunk x vocabulary values. On CPU "
                      "1024 suits, on a GPU as many as make 1024M values."},
      {.name = "eval_every",
       .field = field(s, &TrainConfig::eval_every),
       .scope = Scope::launch,
       .unit = "steps",
       .minimum = 0,
       .maximum = kMaxCount,
       .help = "steps between evaluations; 0 evaluates only at the end",
       .foreign = {"eval_interval", "eval_steps", "validation_interval", "val_check_interval"}},
      {.name = "eval_tokens",
       .field = field(s, &TrainConfig::eval_tokens),
       .scope = Scope::launch,
       .unit = "tokens",
       .minimum = 0,
       .maximum = kMaxCount,
       .help = "tokens of one evaluation; 0 takes all that are held out",
       .foreign = {"eval_iters", "max_eval_samples"}},
      {.name = "patience",
       .field = field(s, &TrainConfig::patience),
       .scope = Scope::launch,
       .unit = "evaluations",
       .minimum = 0,
       .maximum = kMaxCount,
       .help = "stop after so many evaluations without a loss below the best; 0 never does",
       .explanation = "The run then ends as if train.steps were reached: with a checkpoint, and "
                      "with status 0. Of its checkpoints the best stays (checkpoint.best).",
       .foreign = {"early_stopping_patience", "early_stopping", "early_stop_patience"}},
      {.name = "sample_every",
       .field = field(s, &TrainConfig::sample_every),
       .scope = Scope::launch,
       .unit = "steps",
       .minimum = 0,
       .maximum = kMaxCount,
       .help = "steps between samples of generated text; 0 takes none",
       .explanation = "Needs a tokenizer to print text."},
      {.name = "sample_prompt",
       .field = field(s, &TrainConfig::sample_prompt),
       .scope = Scope::launch,
       .help = "what the samples continue",
       .when_absent = "the first words of held-out text"},
      {.name = "sample_tokens",
       .field = field(s, &TrainConfig::sample_tokens),
       .scope = Scope::launch,
       .unit = "tokens",
       .minimum = 1,
       .maximum = 1048576,
       .help = "length of a sample"},
      {.name = "nonfinite",
       .field = choice(s, &TrainConfig::nonfinite, {"skip", "stop"}),
       .scope = Scope::launch,
       .help = "a loss or gradient that is not finite: skip that update, or stop the run",
       .foreign = {"check_for_nan_in_loss_and_grad", "skip_nan"}},
      {.name = "nonfinite_limit",
       .field = field(s, &TrainConfig::nonfinite_limit),
       .scope = Scope::launch,
       .unit = "updates",
       .minimum = 1,
       .maximum = kMaxCount,
       .help = "skipped updates after which the run stops all the same"},
      {.name = "freeze",
       .field = field(s, &TrainConfig::freeze),
       .scope = Scope::run,
       .help = "tensors of the model that stay as they are",
       .explanation = "Names as in the model's files, in which * stands for any text and ? for one "
                      "character: [\"model.embed_tokens.weight\", \"model.layers.0.*\"]. Frozen "
                      "tensors have no gradients and no state. Those that are one matrix here (q, "
                      "k and v; gate and up) are frozen together or not at all.",
       .when_absent = "everything is trained",
       .foreign = {"freeze_modules", "frozen", "freeze_layers", "trainable_layers"}},
  };
}

std::vector<Key> lora_keys() {
  const auto s = &RunConfig::lora;
  return {
      {.name = "rank",
       .field = field(s, &LoraConfig::rank),
       .scope = Scope::weights,
       .minimum = 1,
       .maximum = 65536,
       .help = "train adapters of this rank, and nothing of the model itself",
       .explanation =
           "Beside a linear layer y = W x lie A, of as many rows, and B, of as many columns; the "
           "layer becomes W x + alpha / rank B A x. A starts at random and B at zero. Checkpoints "
           "have the adapters alone, in PEFT's form. The model is that of model.path.",
       .when_absent = "the model is trained, or the adapters of lora.path are",
       .foreign = {"r", "lora_r", "lora_rank", "lora_dim"}},
      {.name = "alpha",
       .field = field(s, &LoraConfig::alpha),
       .scope = Scope::weights,
       .minimum = 0,
       .maximum = 1e6,
       .help = "what adapters add is multiplied by this and divided by lora.rank",
       .when_absent = "lora.rank",
       .foreign = {"lora_alpha"}},
      {.name = "rslora",
       .field = field(s, &LoraConfig::rslora),
       .scope = Scope::weights,
       .help = "divide lora.alpha by the square root of lora.rank instead",
       .when_absent = "false",
       .foreign = {"use_rslora"}},
      {.name = "dropout",
       .field = field(s, &LoraConfig::dropout),
       .scope = Scope::run,
       .minimum = 0,
       .maximum = 0.99,
       .help = "the share of every adapter's input that is dropped in training",
       .explanation =
           "As lora_dropout of PEFT: before A only, of each adapter other values, what stays "
           "divided by the share that stays; evaluation and generation drop nothing. Which values "
           "follows from run.seed, the adapter, the step and the token, whatever the mesh.",
       .when_absent = "that of lora.path, else 0",
       .foreign = {"lora_dropout"}},
      {.name = "targets",
       .field = field(s, &LoraConfig::targets),
       .scope = Scope::weights,
       .help = "the linear layers that get adapters",
       .explanation = "As target_modules of PEFT: names of modules, or their ends behind a dot, as "
                      "in [\"q_proj\", \"v_proj\"]. Experts and their routers have none.",
       .when_absent = "all linear layers of blocks",
       .foreign = {"target_modules", "lora_target_modules", "lora_target"}},
      {.name = "path",
       .field = field(s, &LoraConfig::path),
       .scope = Scope::derived,
       .help = "a folder with adapters in PEFT's form to start from",
       .explanation = "Also a checkpoint, or a run folder, of such a run. The other keys of [lora] "
                      "are those of the folder's adapter_config.json; what is given must agree.",
       .foreign = {"adapter_name_or_path", "adapter_path", "lora_model_dir", "peft_path"}},
  };
}

std::vector<Key> optim_keys() {
  const auto s = &RunConfig::optim;
  return {
      {.name = "name",
       .field = choice(s, &OptimConfig::name,
                       {planner::updates_names().begin(), planner::updates_names().end()}),
       .scope = Scope::run,
       .help = "the optimizer",
       .explanation = "sgd is torch.optim.SGD; muon is torch.optim.Muon for the matrices of the "
                      "blocks and AdamW for embeddings, head, norms and biases. onebit-adam is "
                      "AdamW that freezes its second moment (optim.freeze_step); from then on "
                      "data-parallel ranks exchange one bit for each value of a matrix, there and "
                      "back, instead of gradients: for slow links, with parallel.zero = 0 (with 1, "
                      "updated weights still travel whole). Each keeps other states: a checkpoint "
                      "of one is continued by another only without them.",
       .foreign = {"optimizer", "optim"}},
      {.name = "lr",
       .field = field(s, &OptimConfig::lr),
       .scope = Scope::run,
       .minimum = 0,
       .maximum = 100,
       .help = "highest learning rate, reached after the warm-up",
       .foreign = {"learning_rate", "max_lr"}},
      {.name = "min_lr",
       .field = field(s, &OptimConfig::min_lr),
       .scope = Scope::run,
       .minimum = 0,
       .maximum = 100,
       .help = "learning rate at the last step",
       .explanation = "Not used by the constant schedule.",
       .foreign = {"min_lr_factor", "min_lr_ratio", "end_learning_rate"}},
      {.name = "schedule",
       .field = choice(s, &OptimConfig::schedule, {"constant", "linear", "cosine", "wsd"}),
       .scope = Scope::run,
       .help = "how the learning rate falls from lr to min_lr",
       .explanation =
           "constant: it does not; linear and cosine: from the end of the warm-up to the "
           "last step; wsd (warm-up, stable, decay): linearly over the last "
           "optim.decay_steps.",
       .foreign = {"lr_decay_style", "lr_scheduler_type", "lr_scheduler", "decay_type"}},
      {.name = "warmup_steps",
       .field = field(s, &OptimConfig::warmup_steps),
       .scope = Scope::run,
       .unit = "steps",
       .minimum = 0,
       .maximum = kMaxCount,
       .help = "steps over which the learning rate rises linearly from 0",
       .foreign = {"lr_warmup_iters", "lr_warmup_fraction", "warmup_ratio", "warmup_num_steps",
                   "warmup_iters", "warmup"}},
      {.name = "decay_steps",
       .field = field(s, &OptimConfig::decay_steps),
       .scope = Scope::run,
       .unit = "steps",
       .minimum = 0,
       .maximum = kMaxCount,
       .help = "length of the final decay of the wsd schedule",
       .foreign = {"lr_wsd_decay_iters", "lr_decay_iters", "decay_ratio", "num_decay_steps"}},
      {.name = "beta1",
       .field = field(s, &OptimConfig::beta1),
       .scope = Scope::run,
       .minimum = 0,
       .maximum = 0.999999999,
       .help = "decay of the gradient's running mean",
       .foreign = {"adam_beta1", "betas"}},
      {.name = "beta2",
       .field = field(s, &OptimConfig::beta2),
       .scope = Scope::run,
       .minimum = 0,
       .maximum = 0.999999999,
       .help = "decay of the squared gradient's running mean",
       .foreign = {"adam_beta2"}},
      {.name = "eps",
       .field = field(s, &OptimConfig::eps),
       .scope = Scope::run,
       .minimum = 1e-30,
       .maximum = 1,
       .help = "added to the root of the squared mean before dividing by it",
       .foreign = {"adam_eps", "adam_epsilon", "epsilon"}},
      {.name = "weight_decay",
       .field = field(s, &OptimConfig::weight_decay),
       .scope = Scope::run,
       .minimum = 0,
       .maximum = 100,
       .help = "weight decay, applied to matrices only",
       .explanation = "Norms and biases (tensors of one dimension) are not decayed. adamw and muon "
                      "decouple it from the gradient, sgd adds it to the gradient, as torch.optim "
                      "does.",
       .foreign = {"wd", "adam_w_mode"}},
      {.name = "clip",
       .field = field(s, &OptimConfig::clip),
       .scope = Scope::run,
       .minimum = 0,
       .maximum = 1e30,
       .help = "largest global norm of the gradient; 0 does not clip",
       .foreign = {"clip_grad", "gradient_clipping", "max_norm", "max_grad_norm", "grad_clip",
                   "gradient_clip_val"}},
      {.name = "momentum",
       .field = field(s, &OptimConfig::momentum),
       .scope = Scope::run,
       .minimum = 0,
       .maximum = 0.999999999,
       .help = "what sgd and muon keep of earlier gradients",
       .explanation =
           "sgd: m = momentum m + (1 - dampening) g; with 0 it keeps no state. muon: m = "
           "momentum m + (1 - momentum) g.",
       .when_absent = "0 for sgd, 0.95 for muon",
       .foreign = {"sgd_momentum", "muon_momentum"}},
      {.name = "nesterov",
       .field = field(s, &OptimConfig::nesterov),
       .scope = Scope::run,
       .help = "sgd and muon look ahead: the gradient counts once more beside the momentum",
       .when_absent = "false for sgd, true for muon",
       .foreign = {"muon_use_nesterov", "use_nesterov"}},
      {.name = "dampening",
       .field = field(s, &OptimConfig::dampening),
       .scope = Scope::run,
       .minimum = 0,
       .maximum = 1,
       .help = "sgd: what of each gradient does not enter the momentum"},
      {.name = "muon_lr",
       .field = field(s, &OptimConfig::muon_lr),
       .scope = Scope::run,
       .minimum = 0,
       .maximum = 100,
       .help = "muon: highest learning rate of the matrices of the blocks",
       .explanation = "It rises and falls as optim.lr does, which embeddings, head, norms and "
                      "biases have.",
       .when_absent = "optim.lr"},
      {.name = "muon_scale",
       .field = choice(s, &OptimConfig::muon_scale, {"original", "match_rms_adamw"}),
       .scope = Scope::run,
       .help = "muon: what the learning rate of an A x B matrix is multiplied by",
       .explanation = "match_rms_adamw: 0.2 sqrt(max(A, B)), so that updates are about as large as "
                      "AdamW's and its learning rate serves; original: sqrt(max(1, A / B)), with "
                      "which optim.muon_lr = 0.02 is usual. torch.optim.Muon calls it "
                      "adjust_lr_fn, and its default is original.",
       .foreign = {"adjust_lr_fn", "muon_scale_mode"}},
      {.name = "newton_schulz_steps",
       .field = field(s, &OptimConfig::newton_schulz_steps),
       .scope = Scope::run,
       .unit = "steps",
       .minimum = 1,
       .maximum = 99,
       .help = "muon: steps of the iteration that makes a matrix nearly orthogonal",
       .foreign = {"ns_steps", "muon_num_ns_steps"}},
      {.name = "freeze_step",
       .field = field(s, &OptimConfig::freeze_step),
       .scope = Scope::run,
       .unit = "steps",
       .minimum = 1,
       .maximum = kMaxCount,
       .help = "onebit-adam: the last step before the second moment is frozen",
       .explanation =
           "Until then it is AdamW, with all its traffic. 15 to 25 % of a run are usual; "
           "not inside optim.warmup_steps, when the second moment is not yet that of "
           "training.",
       .when_absent = "when it has settled (optim.freeze_ratio)",
       .foreign = {"onebit_freeze_step"}},
      {.name = "freeze_ratio",
       .field = field(s, &OptimConfig::freeze_ratio),
       .scope = Scope::run,
       .minimum = 0.01,
       .maximum = 0.9999,
       .help = "onebit-adam: the second moment has settled when its sum changes less than so much",
       .explanation = "Without optim.freeze_step the sum of the matrices' second moments is looked "
                      "at every 1 / (1 - beta2) steps behind the learning rate's warm-up. When the "
                      "smaller of two such sums is at least this fraction of the larger, it is "
                      "frozen."},
      {.name = "freeze_mask",
       .field = field(s, &OptimConfig::freeze_mask),
       .scope = Scope::run,
       .help = "onebit-adam: elements that had no gradient before freezing only decay",
       .explanation = "Rows of tokens that did not occur, for example. Their second moment is 0, "
                      "and without the mask the momentum's sign alone would move them by "
                      "optim.lr / optim.eps."},
  };
}

std::vector<Key> parallel_keys() {
  const auto s = &RunConfig::parallel;
  constexpr double kMaxRanks = 1048576;
  return {
      {.name = "sites",
       .field = field(s, &ParallelRequest::sites),
       .scope = Scope::run,
       .unit = "sites",
       .minimum = 1,
       .maximum = 4096,
       .help = "replicas that train apart and bring their weights together seldom ([outer])",
       .explanation =
           "The outermost axis: each site is a mesh of dp x cp x tp x pp ranks of its own, with "
           "its own part of every step's tokens, gradients, norm and optimizer state. Ranks of a "
           "site have neighbouring numbers.",
       .foreign = {"num_replicas", "replica_groups", "group_size", "galaxy_size"}},
      {.name = "dp",
       .field = field(s, &ParallelRequest::dp),
       .scope = Scope::launch,
       .unit = "ranks",
       .minimum = 0,
       .maximum = kMaxRanks,
       .help = "data-parallel replicas; 0 derives it from the number of ranks",
       .foreign = {"data", "data_parallel_size", "data_parallel_replicate_degree",
                   "data_parallel_degree", "dp_size"}},
      {.name = "tp",
       .field = field(s, &ParallelRequest::tp),
       .scope = Scope::launch,
       .unit = "ranks",
       .minimum = 1,
       .maximum = kMaxRanks,
       .help = "ranks that share each matrix (tensor parallelism)",
       .foreign = {"tensor", "tensor_model_parallel_size", "tensor_parallel",
                   "tensor_parallel_degree", "tensor_parallel_size", "tp_size", "autotp_size"}},
      {.name = "pp",
       .field = field(s, &ParallelRequest::pp),
       .scope = Scope::launch,
       .unit = "ranks",
       .minimum = 1,
       .maximum = kMaxRanks,
       .help = "pipeline ranks: each holds some of the layers",
       .foreign = {"pipeline", "pipeline_model_parallel_size", "pipeline_stages", "num_stages",
                   "pipeline_parallel_degree", "pipeline_parallel_size", "pp_size"}},
      {.name = "cp",
       .field = field(s, &ParallelRequest::cp),
       .scope = Scope::launch,
       .unit = "ranks",
       .minimum = 1,
       .maximum = kMaxRanks,
       .help = "ranks that share each sequence in attention (context parallelism)",
       .foreign = {"context_parallel_size", "sequence_parallel_size", "context_parallel_degree",
                   "ulysses", "cp_size"}},
      {.name = "context",
       .field = choice(s, &ParallelRequest::context,
                       {context_method_names().begin(), context_method_names().end()}),
       .scope = Scope::launch,
       .help = "how the cp ranks share attention",
       .explanation =
           "ring and gather move keys and values, ulysses exchanges tokens for heads, usp does "
           "both, lightseq also moves queries to ranks that have nothing to do, tokenring moves "
           "queries and outputs. auto: ulysses where the heads allow it and it sends less than a "
           "ring, else ring. Has no effect with cp = 1.",
       .foreign = {"cp_comm_type", "context_parallel_method", "context_parallel_rotate_method",
                   "context_parallel_load_balancer"}},
      {.name = "context_order",
       .field = choice(s, &ParallelRequest::context_order,
                       {context_order_names().begin(), context_order_names().end()}),
       .scope = Scope::launch,
       .help = "which tokens each cp rank has",
       .explanation =
           "contiguous: one stretch each; zigzag: two, one from either end, so that all have as "
           "much to compute; striped: every cp-th token. auto takes what suits the method."},
      {.name = "context_heads",
       .field = field(s, &ParallelRequest::context_heads),
       .scope = Scope::launch,
       .unit = "ranks",
       .minimum = 0,
       .maximum = kMaxRanks,
       .help = "of context = \"usp\": ranks that exchange tokens for heads; 0: as many as can",
       .foreign = {"ulysses_size", "ulysses_degree", "sp_ulysses_degree"}},
      {.name = "ep",
       .field = field(s, &ParallelRequest::ep),
       .scope = Scope::launch,
       .unit = "ranks",
       .minimum = 1,
       .maximum = kMaxRanks,
       .help = "ranks that share the experts of a mixture-of-experts layer",
       .explanation =
           "Of the ranks of a stage (dp x cp x tp), whatever their axes. Tokens travel to their "
           "experts and back in every layer. Without ep and etp, experts lie like other MLPs: tp "
           "divides their width.",
       .foreign = {"expert", "expert_model_parallel_size", "ep_size", "expert_parallel_degree"}},
      {.name = "etp",
       .field = field(s, &ParallelRequest::etp),
       .scope = Scope::launch,
       .unit = "ranks",
       .minimum = 1,
       .maximum = kMaxRanks,
       .help = "ranks that share the width of each expert that ep gives them",
       .explanation = "ep x etp divides dp x cp x tp; neighbouring ranks are those of etp.",
       .foreign = {"expert_tensor_parallel_size", "expert_tensor_parallel_degree",
                   "enable_expert_tensor_parallelism"}},
      {.name = "ep_rows",
       .field = field(s, &ParallelRequest::ep_rows),
       .scope = Scope::launch,
       .minimum = 0,
       .maximum = kMaxRanks,
       .help =
           "rows that a rank may receive for its experts, in multiples of an even share; 0: any",
       .explanation =
           "A step in which a rank would receive more ends the run by name, before memory does. "
           "Memory is planned for even shares, and stated for the most that is allowed: this, or "
           "what all tokens on the same rank would make.",
       .foreign = {"num_worst_tokens", "moe_received_token_capacity"}},
      {.name = "ep_exchange",
       .field = words(s, &ParallelRequest::ep_exchange),
       .scope = Scope::launch,
       .help = "how rows and weights of experts meet (Tutel)",
       .explanation =
           "Words, each of which may be left out: r=N with N a divisor of etp (each row goes to N "
           "ranks of etp, which gather the experts' weights in groups of etp / N; 0: rows stay, "
           "and "
           "every rank gathers all weights; etp where left out), degree=N or degree=N/M (pieces in "
           "forward and in backward, whose exchanges and computations overlap; degree=planned: "
           "those "
           "with which a layer takes least by the times of observe.system), 2dh=N (all-to-alls "
           "first within N neighbouring ranks of ep, then between), networks=1 (exchanges over etp "
           "wait for those over ep, as where both are on one wire; 2, side by side, where left "
           "out), rows=again (rows that came for a rank's experts are not kept for the gradients "
           "of "
           "weights but sent once more in backward: what is kept then does not grow with the "
           "experts of a token, for a quarter more bytes), windows=planned (sums of gradients are "
           "cut, and begin where the backward of "
           "layers with experts leaves the network between nodes idle, by the times of "
           "observe.system; for zero 0 and 1). adaptive tries them all and learns the fastest for "
           "each number of rows; then "
           "results of two runs may differ in the last bits. turns has another one in every layer, "
           "for checks.",
       .when_absent = "\"\": each row goes to all ranks of etp, in one piece",
       .foreign = {"adaptive_r", "a2a_ffn_overlap_degree", "use_2dh", "pipeline_degree"}},
      {.name = "zero",
       .field = field(s, &ParallelRequest::zero),
       .scope = Scope::launch,
       .minimum = 0,
       .maximum = 3,
       .help = "what data-parallel ranks split: 1 optimizer state, 2 gradients too, 3 weights too",
       .foreign = {"use_distributed_optimizer", "zero_optimization", "zero_stage", "stage",
                   "data_parallel_shard_degree", "fsdp", "fsdp_config"}},
      {.name = "sequence",
       .field = field(s, &ParallelRequest::sequence),
       .scope = Scope::launch,
       .help = "split the norm regions along the sequence over the tp ranks",
       .explanation = "Has no effect with tp = 1.",
       .foreign = {"sequence_parallel", "enable_sequence_parallel"}},
      {.name = "schedule",
       .field = choice(s, &ParallelRequest::schedule,
                       {schedule_names().begin(), schedule_names().end()}),
       .scope = Scope::launch,
       .help = "order of forward and backward passes in the pipeline",
       .explanation = "Has no effect with pp = 1. routes: stages may be skipped and swapped, see "
                      "parallel.skip and parallel.routes.",
       .foreign = {"pipeline_parallel_schedule", "pipeline_schedule"}},
      {.name = "chunks",
       .field = field(s, &ParallelRequest::chunks),
       .scope = Scope::launch,
       .minimum = 1,
       .maximum = 1024,
       .help = "model chunks per pipeline rank",
       .foreign = {"num_layers_per_virtual_pipeline_stage", "num_virtual_stages_per_pipeline_rank",
                   "virtual_pipeline_model_parallel_size", "num_model_chunks"}},
      {.name = "skip",
       .field = field(s, &ParallelRequest::skip),
       .scope = Scope::run,
       .minimum = 0,
       .maximum = 0.75,
       .help = "share of the pipeline's stages that each micro-batch leaves out (SkipPipe)",
       .explanation =
           "With schedule = \"routes\". All stages but the first are left out equally often, and "
           "are trained with the micro-batches that come by. Another model is trained than "
           "without: losses are close, not equal.",
       .foreign = {"skip_ratio"}},
      {.name = "routes",
       .field = field(s, &ParallelRequest::routes),
       .scope = Scope::run,
       .help = "ways of micro-batches through the pipeline: \"swap\", or ranks in order",
       .explanation =
           "With schedule = \"routes\". \"swap\": odd micro-batches visit the first two ranks "
           "behind rank 0, and the last two, in swapped order (CheckFree+). \"0-1-3 0-2-3\": "
           "routes that micro-batches take in turn, as `heddle plan routes` finds them. Without, "
           "all ranks in order but for what parallel.skip leaves out."},
      {.name = "cut",
       .field = field(&RunConfig::stages, &StagesConfig::cut),
       .scope = Scope::launch,
       .help = "blocks of every stage of the pipeline, as \"5 3 4 4\"",
       .explanation =
           "With chunks, of all stages in the order of the model. The first stage has the "
           "embedding too, the last the head. `heddle plan stages` finds it by the speeds that a "
           "run has measured. Without, stages have equal work.",
       .when_absent = "\"\": stages of equal work",
       .foreign = {"pipeline_model_parallel_layout", "decoder_first_pipeline_num_layers",
                   "module_fqns_per_model_part", "partition_method"}},
      {.name = "vocabulary",
       .field = choice(s, &ParallelRequest::vocabulary,
                       {vocabulary_names().begin(), vocabulary_names().end()}),
       .scope = Scope::launch,
       .help = "over which ranks the embedding and the output projection are split",
       .explanation =
           "tensor has no effect with tp = 1. pipeline gives every pipeline rank its rows "
           "(schedules 1f1b and v-half).",
       .foreign = {"enable_vocab_parallel", "vocab_parallel", "disable_loss_parallel"}},
      {.name = "vocabulary_algorithm",
       .field = field(s, &ParallelRequest::vocabulary_algorithm),
       .scope = Scope::launch,
       .minimum = 1,
       .maximum = 2,
       .help = "how a vocabulary split over the pipeline is computed: 1 or 2",
       .explanation = "2 holds a micro-batch less in flight, 1 multiplies once less. Has no effect "
                      "unless vocabulary = \"pipeline\"."},
      {.name = "overlap",
       .field = field(s, &ParallelRequest::overlap),
       .scope = Scope::launch,
       .help = "reduce gradients and fetch weights over dp while computing",
       .explanation = "The results are the same bit for bit with and without.",
       .foreign = {"overlap_comm", "overlap_grad_reduce", "overlap_param_gather"}},
  };
}

std::vector<Key> outer_keys() {
  const auto s = &RunConfig::outer;
  return {
      {.name = "every",
       .field = field(s, &OuterConfig::every),
       .scope = Scope::run,
       .unit = "steps",
       .minimum = 1,
       .maximum = 1e9,
       .help = "steps between two exchanges of the same weights between sites",
       .explanation = "30 stays close to training in one site, 100 to 500 are usual over slow "
                      "links. All of [outer] has no effect with parallel.sites = 1.",
       .foreign = {"sync_steps", "local_steps", "diloco_sync_period", "sync_every"}},
      {.name = "fragments",
       .field = field(s, &OuterConfig::fragments),
       .scope = Scope::run,
       .minimum = 1,
       .maximum = 4096,
       .help = "parts of the model that are exchanged one after the other within `every` steps",
       .explanation = "Block l is in part l mod fragments, all else in the first. More parts need "
                      "less of a link at a time (Streaming DiLoCo).",
       .when_absent = "8, or `every` if that is less",
       .foreign = {"num_fragments", "num_diloco_fragments"}},
      {.name = "delay",
       .field = field(s, &OuterConfig::delay),
       .scope = Scope::run,
       .unit = "steps",
       .minimum = 0,
       .maximum = 1e9,
       .help = "steps for which an exchange may travel while training goes on",
       .when_absent = "1; 0 where `every` is 1",
       .foreign = {"fragment_sync_delay", "num_communication_overlapping_steps"}},
      {.name = "mix",
       .field = field(s, &OuterConfig::mix),
       .scope = Scope::run,
       .minimum = 0,
       .maximum = 1,
       .help = "what a site's weights keep of themselves when outer weights arrive",
       .explanation = "0 takes the outer weights, 0.5 the mean of both, which suits a delay; 1 "
                      "never takes anything.",
       .when_absent = "0.5 with a delay, else 0",
       .foreign = {"fragment_update_alpha", "communication_overlapping_alpha"}},
      {.name = "codec",
       .field = field(s, &OuterConfig::codec),
       .scope = Scope::run,
       .help = "how the differences of weights travel: none, or a codec as in `bench codec`",
       .explanation = "e3m0 has 4 bits a value, int4:128 too, topk less than a quarter of a bit.",
       .foreign = {"should_quantize", "hivemind_compression"}},
      {.name = "lr",
       .field = field(s, &OuterConfig::lr),
       .scope = Scope::run,
       .minimum = 0,
       .maximum = 10,
       .help = "learning rate of the outer weights",
       .when_absent = "0.4; 1 with topk and sign",
       .foreign = {"outer_lr", "diloco_outer_lr"}},
      {.name = "momentum",
       .field = field(s, &OuterConfig::momentum),
       .scope = Scope::run,
       .minimum = 0,
       .maximum = 0.9999,
       .help = "Nesterov's momentum of the outer weights",
       .when_absent = "0.9; 0 with topk and sign",
       .foreign = {"outer_momentum", "diloco_outer_momentum"}},
      {.name = "feedback",
       .field = field(s, &OuterConfig::feedback),
       .scope = Scope::run,
       .minimum = 0,
       .maximum = 1,
       .help = "of what the codec left out, the part that is sent the next time",
       .explanation = "It takes the place of momentum in the sparse form. 0 forgets it.",
       .when_absent = "0; 0.95 with topk and sign",
       .foreign = {"error_decay", "error_feedback"}},
      {.name = "lost",
       .field = choice(s, &OuterConfig::lost, {"stop", "go-on"}),
       .scope = Scope::launch,
       .help = "a site whose ranks are gone, silent or stuck: stop the run, or go on without it",
       .explanation =
           "go-on needs ranks that join over TCP, and a run.timeout. Ranks of the other "
           "sites meet again at rank 0's address and go on from the newest checkpoint "
           "that all of them have, each with its own weights, samples and learning rate; "
           "a step then has the tokens of fewer sites. If the site of rank 0 is lost, "
           "all stop. A lost site comes back when all ranks are started again with "
           "--accept-changes. With recover.elastic ranks are replaced while the others go on, "
           "whatever this says.",
       .foreign = {"min_replica_size"}},
  };
}

std::vector<Key> compress_keys() {
  const auto s = &RunConfig::compress;
  const std::string absent = "none, or what compress.preset says";
  return {
      {.name = "gradients",
       .field = field(s, &Compression::gradients),
       .scope = Scope::launch,
       .help = "codec of the sums of gradients over dp and cp",
       .explanation =
           "A codec as \"heddle bench codec\" lists them: bf16, int8:128, int4:128, fp8:128, "
           "e3m0:256, sign, topk:64, zfp:8. Vectors (norms, biases), and matrices of whose "
           "gradient "
           "tp ranks have a part each, go plainly.",
       .when_absent = absent,
       .foreign = {"zero_quantized_gradients", "communication_data_type", "grad_compression",
                   "comm_hook"}},
      {.name = "weights",
       .field = field(s, &Compression::weights),
       .scope = Scope::launch,
       .help = "codec of the weights that ZeRO gathers",
       .explanation =
           "All ranks use the decoded weights; who updates them keeps exact ones. Has no "
           "effect with parallel.zero = 0.",
       .when_absent = absent,
       .foreign = {"zero_quantized_weights", "fp8_param_gather"}},
      {.name = "tensor",
       .field = field(s, &Compression::tensor),
       .scope = Scope::launch,
       .help = "codec of activations and their gradients between the ranks of tp",
       .explanation = "Has no effect with tp = 1.",
       .when_absent = absent,
       .foreign = {"tp_comm_overlap_fp8", "tensor_compression"}},
      {.name = "pipeline",
       .field = field(s, &Compression::pipeline),
       .scope = Scope::launch,
       .help = "codec of the messages between pipeline stages",
       .explanation =
           "Has no effect with pp = 1. What a vocabulary that is split over the pipeline "
           "exchanges goes plainly.",
       .when_absent = absent,
       .foreign = {"pipeline_compression", "activation_compression"}},
      {.name = "experts",
       .field = field(s, &Compression::experts),
       .scope = Scope::launch,
       .help = "codec of the rows that travel to experts and back (parallel.ep)",
       .explanation =
           "Each row by itself, and its gradient. Weights of choices, and what the ranks of etp "
           "exchange, go plainly. min_bytes is held against the mean payload of the ranks.",
       .when_absent = absent,
       .foreign = {"moe_dispatch_dtype", "use_fp8_dispatch"}},
      {.name = "preset",
       .field = choice(s, &Compression::preset, compression_presets()),
       .scope = Scope::launch,
       .help = "codecs for all kinds of traffic; those that are given win",
       .explanation =
           "The schemes of the paper on hybrid compression: mzhybrid is zfp:8 for gradients and "
           "lossless for everything else (rows of experts go plainly), zhybrid zfp:8 and zfp:16. "
           "naive is what compressing every message alike does, zfp:8 in lines without feedback "
           "(loses accuracy; for comparison).",
       .when_absent = "none"},
      {.name = "min_bytes",
       .field = bytes(s, &Compression::min_bytes),
       .scope = Scope::launch,
       .minimum = 0,
       .maximum = kMaxCount,
       .help = "calls whose payload is smaller go plainly",
       .explanation = "The payload is what a plain call would move, all ranks' parts together.",
       .foreign = {"compression_threshold"}},
      {.name = "error_feedback",
       .field = field(s, &Compression::error_feedback),
       .scope = Scope::launch,
       .help = "add what encoding lost of a gradient to the next one",
       .explanation = "Takes 4 bytes for each parameter of compressed gradients on every rank, 8 "
                      "with recover.elastic. The residuals are saved with checkpoints.",
       .when_absent = "true; false with preset naive",
       .foreign = {"use_error_feedback"}},
  };
}

std::vector<Key> checkpoint_keys() {
  const auto s = &RunConfig::checkpoint;
  return {
      {.name = "every",
       .field = field(s, &CheckpointConfig::every),
       .scope = Scope::launch,
       .unit = "steps",
       .minimum = 0,
       .maximum = kMaxCount,
       .help = "steps between checkpoints; 0 saves none on the way",
       .foreign = {"save_interval", "save_steps", "interval", "save_every", "checkpoint_every"}},
      {.name = "keep",
       .field = field(s, &CheckpointConfig::keep),
       .scope = Scope::launch,
       .unit = "checkpoints",
       .minimum = 1,
       .maximum = 1e9,
       .help = "how many of the newest checkpoints stay on disk",
       .foreign = {"keep_latest_k", "save_total_limit", "most_recent_k", "save_top_k"}},
      {.name = "keep_every",
       .field = field(s, &CheckpointConfig::keep_every),
       .scope = Scope::launch,
       .unit = "steps",
       .minimum = 0,
       .maximum = kMaxCount,
       .help = "checkpoints at multiples of this stay for good; 0 keeps none beyond the newest",
       .foreign = {"save_retain_interval", "retain_interval"}},
      {.name = "best",
       .field = field(s, &CheckpointConfig::best),
       .scope = Scope::launch,
       .help = "also keep the checkpoint with the lowest evaluation loss",
       .foreign = {"load_best_model_at_end", "save_best"}},
      {.name = "dtype",
       .field = choice(s, &CheckpointConfig::dtype, {"f32", "bf16"}),
       .scope = Scope::launch,
       .help = "type of the model weights in the Hugging Face files",
       .explanation = "Resuming is exact either way: the optimizer's files keep float32 weights.",
       .foreign = {"export_dtype", "save_dtype"}},
      {.name = "on_exit",
       .field = field(s, &CheckpointConfig::on_exit),
       .scope = Scope::launch,
       .help = "save when the run ends or is stopped by a signal",
       .foreign = {"exit_signal_handler", "save_on_exit", "last_save_model_only"}},
      {.name = "resume",
       .field = field(s, &CheckpointConfig::resume),
       .scope = Scope::launch,
       .help = "continue from the newest whole checkpoint of the run folder when there is one",
       .foreign = {"resume_from_checkpoint", "enable_checkpoint", "auto_resume"}},
  };
}

std::vector<Key> recover_keys() {
  const auto s = &RunConfig::recover;
  return {
      {.name = "elastic",
       .field = field(s, &RecoverConfig::elastic),
       .scope = Scope::launch,
       .help = "go on without ranks that are lost, and let others join, without a restart",
       .explanation =
           "Needs ranks that are processes joined over TCP, and a token: \"heddle launch --ranks 4 "
           "-- train RUN.toml\" starts them so on one machine. More than half of the ranks, or "
           "half with the first, decide who goes on; the others end. Sites (parallel.sites) then "
           "decide every step together, which takes a round trip between them. All of [recover] "
           "has no effect without it.",
       .foreign = {"max_restarts", "elastic_enabled", "elasticity"}},
      {.name = "timeout",
       .field = field(s, &RecoverConfig::timeout),
       .scope = Scope::launch,
       .unit = "seconds",
       .minimum = 6,
       .maximum = 1e6,
       .help =
           "how long a rank looks for enough others to go on with, and a newcomer for an answer",
       .explanation = "When a rank counts as lost follows from measured steps and round trips, and "
                      "is printed once.",
       .foreign = {"rdzv_timeout", "join_timeout"}},
      {.name = "copies",
       .field = field(s, &RecoverConfig::copies),
       .scope = Scope::launch,
       .minimum = 0,
       .maximum = 1,
       .help = "ranks that keep a copy of another's weights and optimizer states in memory",
       .explanation =
           "For what no data-parallel replica has: the states of ZeRO, experts, a stage of a "
           "pipeline. A copy costs 12 bytes per parameter and 4 on the wire. Residuals of "
           "compressed gradients are not in it: those of a lost rank begin with zeros. "
           "Not with onebit-adam."},
      {.name = "stages",
       .field = choice(s, &RecoverConfig::stages, {"none", "checkfree", "checkfree+", "skip"}),
       .scope = Scope::launch,
       .help = "what a lost stage of a pipeline is made of that no rank has any more",
       .explanation =
           "none: all go back to the newest checkpoint. checkfree: its weights become the mean of "
           "the stages beside it, weighted by the norms of their last gradients, and training goes "
           "on; of the first and the last stage, and where neighbours are lost together, all go "
           "back. checkfree+: the first and the last too, by a copy of the stage that odd "
           "micro-batches visit in their place (parallel.schedule = \"routes\", parallel.routes = "
           "\"swap\"); embedding and head are kept on a second rank. skip: as checkfree, but while "
           "no rank is there to take the place of the lost one, the others go on without its "
           "blocks, which the rank before it keeps room for; when one has come, they become the "
           "mean of the stages beside them as these are then. What is made so is not exact: "
           "moments begin at zero, and the stage learns 1.1 times as fast from then on.",
       .foreign = {"recovery_strategy"}},
      {.name = "recut",
       .field = field(s, &RecoverConfig::recut),
       .scope = Scope::launch,
       .help = "cut the stages of the pipeline again where ranks are not equally fast",
       .explanation =
           "By what blocks take ranks in the last steps, where steps get shorter by 5 % or more "
           "and ranks have the memory. Blocks go from rank to rank with their states; the run "
           "goes on behind the same step. Not with parallel.schedule = \"routes\", whose stages "
           "are equal."},
  };
}

std::vector<Key> observe_keys() {
  const auto s = &RunConfig::observe;
  return {
      {.name = "console_every",
       .field = field(s, &ObserveConfig::console_every),
       .scope = Scope::process,
       .unit = "steps",
       .minimum = 0,
       .maximum = kMaxCount,
       .help = "steps between progress lines; 0 prints none",
       .foreign = {"log_interval", "logging_steps", "log_freq", "steps_per_print", "log_every"}},
      {.name = "tensorboard",
       .field = field(s, &ObserveConfig::tensorboard),
       .scope = Scope::process,
       .help = "write TensorBoard events into the run folder",
       .foreign = {"tensorboard_dir", "enable_tensorboard", "report_to"}},
      {.name = "report",
       .field = field(s, &ObserveConfig::report),
       .scope = Scope::process,
       .help = "write report.json and report.html at the end"},
      {.name = "trace",
       .field = field(s, &ObserveConfig::trace),
       .scope = Scope::launch,
       .help = "record a timeline of every step into the run folder's trace/",
       .foreign = {"profile", "enable_profiling", "use_pytorch_profiler"}},
      {.name = "trace_limit",
       .field = bytes(s, &ObserveConfig::trace_limit),
       .scope = Scope::process,
       .unit = "bytes",
       .minimum = 0,
       .maximum = 9e18,
       .help = "size of trace/ beyond which its oldest parts are removed; 0 is no limit",
       .explanation = "An integer, or text with a unit: \"1 GiB\"."},
      {.name = "system",
       .field = field(s, &ObserveConfig::system),
       .scope = Scope::process,
       .help = "machine file by which the time of a step is predicted and shown beside the "
               "measured one",
       .explanation = "heddle doctor --calibrate writes one for the machine it runs on; others "
                      "are in configs/systems.",
       .when_absent = "no time is predicted"},
  };
}

std::vector<Key> run_keys() {
  const auto s = &RunConfig::run;
  return {
      {.name = "name",
       .field = field(s, &RunSection::name),
       .scope = Scope::process,
       .help = "what reports call the run",
       .when_absent = "the run file's name without .toml",
       .foreign = {"run_name", "exp_name", "wandb_exp_name", "experiment_name", "job_name"}},
      {.name = "dir",
       .field = field(s, &RunSection::dir),
       .scope = Scope::process,
       .help = "the run folder: log, metrics, checkpoints, report",
       .when_absent = "runs/NAME",
       .foreign = {"save", "output_dir", "dump_folder", "out_dir", "folder"}},
      {.name = "seed",
       .field = field(s, &RunSection::seed),
       .scope = Scope::launch,
       .minimum = 0,
       .maximum = kMaxSeed,
       .help = "seed of everything random that has no seed of its own"},
      {.name = "device",
       .field = choice(s, &RunSection::device, {"cpu", "cuda"}),
       .scope = Scope::launch,
       .help = "where the model is computed",
       .meant_by = device_meant_by},
      {.name = "dtype",
       .field = choice(s, &RunSection::dtype, {"f32", "bf16"}),
       .scope = Scope::launch,
       .help = "type of the computation; the optimizer always updates float32 weights",
       .foreign = {"bf16", "fp16", "precision", "torch_dtype", "mixed_precision",
                   "mixed_precision_param"}},
      {.name = "threads",
       .field = field(s, &RunSection::threads),
       .scope = Scope::process,
       .unit = "threads",
       .minimum = 0,
       .maximum = 4096,
       .help = "CPU threads of one rank; 0 uses all cores it may run on",
       .foreign = {"num_threads", "omp_num_threads"}},
      {.name = "deterministic",
       .field = field(s, &RunSection::deterministic),
       .scope = Scope::launch,
       .help = "on a GPU too the same run gives the same bits: no kernel that cannot (on CPU it "
               "always does)",
       .foreign = {"deterministic_mode", "full_determinism"}},
      {.name = "memory_limit",
       .field = bytes(s, &RunSection::memory_limit),
       .scope = Scope::process,
       .unit = "bytes",
       .minimum = 0,
       .maximum = 9e18,
       .help = "refuse to start when the prediction for one rank exceeds this; 0 is no limit",
       .explanation = "An integer, or text with a unit: \"3 GiB\"."},
      {.name = "timeout",
       .field = field(s, &RunSection::timeout),
       .scope = Scope::process,
       .unit = "seconds",
       .minimum = 0,
       .maximum = 1e6,
       .help = "how long a rank may wait for others before the run ends, naming the guilty; 0: for "
               "ever",
       .explanation =
           "Joining at the start counts too. The last calls of every rank are then in the run "
           "folder's flight/.",
       .foreign = {"comm_timeout", "distributed_timeout_minutes", "init_timeout_seconds"}},
  };
}

}  // namespace

const std::vector<Key>& keys() {
  static const std::vector<Key> all = [] {
    std::vector<Key> result;
    const auto add = [&](const char* section, std::vector<Key> part) {
      for (auto& key : part) {
        key.section = section;
        result.push_back(std::move(key));
      }
    };
    add("model", model_keys());
    add("data", data_keys());
    add("train", train_keys());
    add("lora", lora_keys());
    add("optim", optim_keys());
    add("parallel", parallel_keys());
    add("outer", outer_keys());
    add("compress", compress_keys());
    add("checkpoint", checkpoint_keys());
    add("recover", recover_keys());
    add("observe", observe_keys());
    add("run", run_keys());
    return result;
  }();
  return all;
}

const std::vector<Section>& sections() {
  static const std::vector<Section> all = {
      {"model", "what is trained", {"job_config", "architecture", "network"}},
      {"data", "what it is trained on", {"dataset", "dataloader", "datasets", "tokenizer"}},
      {"train",
       "how long, in which portions, and what happens on the way",
       {"training", "trainer"}},
      {"lora", "low-rank adapters that are trained in place of the model", {"peft", "adapter"}},
      {"optim", "the optimizer and its learning rate", {"optimizer", "lr_scheduler", "scheduler"}},
      {"parallel", "how the work is split over ranks", {"parallelism", "distributed"}},
      {"outer", "how sites that train apart bring their weights together", {"diloco", "hv"}},
      {"compress",
       "what travels between ranks as fewer bytes",
       {"compression", "quantization", "communication"}},
      {"checkpoint", "what is saved, when, and for how long", {"checkpointing", "save"}},
      {"recover",
       "how a run goes on when ranks are lost, or come",
       {"elastic", "fault_tolerance", "ft"}},
      {"observe",
       "what is shown and recorded",
       {"logging", "metrics", "profiling", "tensorboard", "wandb"}},
      {"run", "where and under which name it runs", {"job", "experiment", "system", "general"}},
  };
  return all;
}

}  // namespace heddle::config
