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
       .help = "a model that Heddle knows by name, with random weights",
       .explanation = "Exactly one of model.preset, model.path and model.config is given. The "
                      "presets are the files of configs/models, built into the program.",
       .foreign = {"model", "flavor", "model_name", "model_type"}},
      {.name = "path",
       .field = field(s, &ModelConfig::path),
       .help = "a Hugging Face model folder to start from, weights included",
       .explanation = "The folder's tokenizer.json is used unless data.tokenizer names another.",
       .foreign = {"model_name_or_path", "pretrained", "pretrained_checkpoint", "load",
                   "initial_load_path"}},
      {.name = "config",
       .field = field(s, &ModelConfig::config),
       .help = "a config.json in Hugging Face form to start from with random weights",
       .foreign = {"config_name", "model_config", "hf_config"}},
      {.name = "vocab_size",
       .field = field(s, &ModelConfig::vocab_size),
       .unit = "tokens",
       .minimum = 0,
       .maximum = 16777216,
       .help = "overrides the vocabulary size of the preset or config.json",
       .explanation =
           "0 takes the size the model's config names. Not allowed with model.path, whose "
           "weights have their own size.",
       .foreign = {"padded_vocab_size", "make_vocab_size_divisible_by"}},
      {.name = "seed",
       .field = field(s, &ModelConfig::seed),
       .minimum = 0,
       .maximum = kMaxSeed,
       .help = "seed of the random weights",
       .when_absent = "run.seed"},
      {.name = "init_std",
       .field = field(s, &ModelConfig::init_std),
       .minimum = 0,
       .maximum = 10,
       .help = "standard deviation of the random weights",
       .when_absent = "initializer_range of the model's config",
       .foreign = {"init_method_std", "initializer_range"}},
      {.name = "scale_residual_init",
       .field = field(s, &ModelConfig::scale_residual_init),
       .help =
           "divide the initial weights of the projections into the residual by sqrt(2 x layers)",
       .explanation =
           "The Hugging Face definition does so for GPT-2 and not for Llama; many trainers do "
           "it for every model.",
       .when_absent = "as the model's family does",
       .foreign = {"depth_init", "use_scaled_init_method"}},
      {.name = "ignore_dropout",
       .field = field(s, &ModelConfig::ignore_dropout),
       .help = "train without the dropout that the model's config asks for",
       .explanation =
           "Heddle has no dropout. A config with a dropout probability is refused for training "
           "unless this says that leaving it out is meant. Evaluation and generation never "
           "have dropout."},
  };
}

std::vector<Key> data_keys() {
  const auto s = &RunConfig::data;
  return {
      {.name = "train",
       .field = field(s, &DataConfig::train),
       .help = "what to train on: a token file, or text or JSON lines to be tokenized first",
       .explanation = "Exactly one of data.train and [[data.sources]] is given. A relative path is "
                      "relative to the folder in which heddle is started, as are all paths here.",
       .foreign = {"data_path", "train_data_path", "dataset", "dataset_path", "dataset_name",
                   "train_file"}},
      {.name = "sources",
       .field = field(s, &DataConfig::sources),
       .help = "a mixture: one [[data.sources]] table per source with path, weight and name",
       .explanation =
           "weight (default 1) is the source's share of the training tokens, relative to the "
           "other weights; name (default: the path) is what reports call it.",
       .foreign = {"blend", "data_blend", "datasets", "mixture"}},
      {.name = "eval",
       .field = field(s, &DataConfig::eval),
       .help = "a separate file for evaluation",
       .explanation = "When given, nothing of the training data is held out.",
       .foreign = {"valid_data_path", "eval_data_path", "validation_file", "validation"}},
      {.name = "holdout",
       .field = field(s, &DataConfig::holdout),
       .unit = "fraction",
       .minimum = 0,
       .maximum = 0.5,
       .help = "share of the training data kept for evaluation when data.eval is absent",
       .explanation = "The end of each source is held out; 0 trains on everything and evaluates on "
                      "nothing.",
       .foreign = {"split", "validation_split", "validation_split_percentage"}},
      {.name = "tokenizer",
       .field = field(s, &DataConfig::tokenizer),
       .help = "a tokenizer.json, or a folder that holds one",
       .when_absent = "the one in model.path, or the one the token file names",
       .foreign = {"tokenizer_model", "tokenizer_path", "tokenizer_name", "hf_assets_path"}},
      {.name = "eos",
       .field = field(s, &DataConfig::eos),
       .help = "the token put after each document when text is tokenized",
       .when_absent = "the tokenizer's own end-of-text token",
       .foreign = {"append_eod", "eod", "eos_token"}},
      {.name = "seq_len",
       .field = field(s, &DataConfig::seq_len),
       .unit = "tokens",
       .minimum = 1,
       .maximum = 16777216,
       .help = "length of a training sequence",
       .foreign = {"seq_length", "sequence_length", "block_size", "max_seq_length", "max_seq_len",
                   "n_ctx", "context_length"}},
      {.name = "documents",
       .field = choice(s, &DataConfig::documents, {"mask", "ignore"}),
       .help = "mask: attention stays inside a document; ignore: it crosses document boundaries",
       .foreign = {"reset_attention_mask", "document_mask", "attn_mask_type"}},
      {.name = "seed",
       .field = field(s, &DataConfig::seed),
       .minimum = 0,
       .maximum = kMaxSeed,
       .help = "seed of the order of samples",
       .explanation = "The order is a pure function of this seed, the tokens and the step.",
       .when_absent = "run.seed",
       .foreign = {"data_seed", "shuffle_seed"}},
      {.name = "prefetch",
       .field = field(s, &DataConfig::prefetch),
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
       .unit = "steps",
       .minimum = 0,
       .maximum = kMaxCount,
       .help = "optimizer steps of the whole run",
       .explanation = "Exactly one of train.steps and train.tokens is given (0 means not given).",
       .foreign = {"train_iters", "max_steps", "num_steps", "iterations", "max_iters"}},
      {.name = "tokens",
       .field = field(s, &TrainConfig::tokens),
       .unit = "tokens",
       .minimum = 0,
       .maximum = kMaxCount,
       .help = "tokens of the whole run, rounded up to whole steps",
       .foreign = {"train_tokens", "max_tokens", "total_tokens", "train_samples"}},
      {.name = "tokens_per_step",
       .field = field(s, &TrainConfig::tokens_per_step),
       .unit = "tokens",
       .minimum = 0,
       .maximum = kMaxCount,
       .help = "tokens whose gradients make one optimizer step, over all ranks",
       .explanation = "A multiple of train.microbatch x data.seq_len x parallel.dp; how many "
                      "micro-batches are accumulated follows and is shown. 0 is one micro-batch.",
       .foreign = {"global_batch_size", "train_batch_size", "batch_size", "total_batch_size",
                   "num_tokens_per_train_step", "tokens_per_batch"}},
      {.name = "microbatch",
       .field = field(s, &TrainConfig::microbatch),
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
       .help =
           "block: keep only each block's input and compute the rest again in the backward pass",
       .explanation = "Costs about a third more time and saves most of the activation memory.",
       .foreign = {"recompute_granularity", "recompute_activations", "activation_checkpointing",
                   "activation_checkpoint", "gradient_checkpointing", "selective_ac"}},
      {.name = "loss_chunk",
       .field = field(s, &TrainConfig::loss_chunk),
       .unit = "tokens",
       .minimum = 0,
       .maximum = 16777216,
       .help = "tokens per piece of the output projection and its loss; 0 is what suits the device",
       .explanation = "Logits are held for one piece only: loss_chunk x vocabulary values. On CPU "
                      "1024 suits, on a GPU as many as make 1024M values."},
      {.name = "eval_every",
       .field = field(s, &TrainConfig::eval_every),
       .unit = "steps",
       .minimum = 0,
       .maximum = kMaxCount,
       .help = "steps between evaluations; 0 evaluates only at the end",
       .foreign = {"eval_interval", "eval_steps", "validation_interval", "val_check_interval"}},
      {.name = "eval_tokens",
       .field = field(s, &TrainConfig::eval_tokens),
       .unit = "tokens",
       .minimum = 0,
       .maximum = kMaxCount,
       .help = "tokens of one evaluation; 0 takes all that are held out",
       .foreign = {"eval_iters", "max_eval_samples"}},
      {.name = "sample_every",
       .field = field(s, &TrainConfig::sample_every),
       .unit = "steps",
       .minimum = 0,
       .maximum = kMaxCount,
       .help = "steps between samples of generated text; 0 takes none",
       .explanation = "Needs a tokenizer to print text."},
      {.name = "sample_prompt",
       .field = field(s, &TrainConfig::sample_prompt),
       .help = "what the samples continue",
       .when_absent = "the first words of held-out text"},
      {.name = "sample_tokens",
       .field = field(s, &TrainConfig::sample_tokens),
       .unit = "tokens",
       .minimum = 1,
       .maximum = 1048576,
       .help = "length of a sample"},
      {.name = "nonfinite",
       .field = choice(s, &TrainConfig::nonfinite, {"skip", "stop"}),
       .help = "a loss or gradient that is not finite: skip that update, or stop the run",
       .foreign = {"check_for_nan_in_loss_and_grad", "skip_nan"}},
      {.name = "nonfinite_limit",
       .field = field(s, &TrainConfig::nonfinite_limit),
       .unit = "updates",
       .minimum = 1,
       .maximum = kMaxCount,
       .help = "skipped updates after which the run stops all the same"},
  };
}

std::vector<Key> optim_keys() {
  const auto s = &RunConfig::optim;
  return {
      {.name = "name",
       .field = choice(s, &OptimConfig::name, {"adamw"}),
       .help = "the optimizer",
       .foreign = {"optimizer", "optim"}},
      {.name = "lr",
       .field = field(s, &OptimConfig::lr),
       .minimum = 0,
       .maximum = 100,
       .help = "highest learning rate, reached after the warm-up",
       .foreign = {"learning_rate", "max_lr"}},
      {.name = "min_lr",
       .field = field(s, &OptimConfig::min_lr),
       .minimum = 0,
       .maximum = 100,
       .help = "learning rate at the last step",
       .explanation = "Not used by the constant schedule.",
       .foreign = {"min_lr_factor", "min_lr_ratio", "end_learning_rate"}},
      {.name = "schedule",
       .field = choice(s, &OptimConfig::schedule, {"constant", "linear", "cosine", "wsd"}),
       .help = "how the learning rate falls from lr to min_lr",
       .explanation =
           "constant: it does not; linear and cosine: from the end of the warm-up to the "
           "last step; wsd (warm-up, stable, decay): linearly over the last "
           "optim.decay_steps.",
       .foreign = {"lr_decay_style", "lr_scheduler_type", "lr_scheduler", "decay_type"}},
      {.name = "warmup_steps",
       .field = field(s, &OptimConfig::warmup_steps),
       .unit = "steps",
       .minimum = 0,
       .maximum = kMaxCount,
       .help = "steps over which the learning rate rises linearly from 0",
       .foreign = {"lr_warmup_iters", "lr_warmup_fraction", "warmup_ratio", "warmup_num_steps",
                   "warmup_iters", "warmup"}},
      {.name = "decay_steps",
       .field = field(s, &OptimConfig::decay_steps),
       .unit = "steps",
       .minimum = 0,
       .maximum = kMaxCount,
       .help = "length of the final decay of the wsd schedule",
       .foreign = {"lr_wsd_decay_iters", "lr_decay_iters", "decay_ratio", "num_decay_steps"}},
      {.name = "beta1",
       .field = field(s, &OptimConfig::beta1),
       .minimum = 0,
       .maximum = 0.999999999,
       .help = "decay of the gradient's running mean",
       .foreign = {"adam_beta1", "betas"}},
      {.name = "beta2",
       .field = field(s, &OptimConfig::beta2),
       .minimum = 0,
       .maximum = 0.999999999,
       .help = "decay of the squared gradient's running mean",
       .foreign = {"adam_beta2"}},
      {.name = "eps",
       .field = field(s, &OptimConfig::eps),
       .minimum = 1e-30,
       .maximum = 1,
       .help = "added to the root of the squared mean before dividing by it",
       .foreign = {"adam_eps", "adam_epsilon", "epsilon"}},
      {.name = "weight_decay",
       .field = field(s, &OptimConfig::weight_decay),
       .minimum = 0,
       .maximum = 100,
       .help = "decoupled weight decay, applied to matrices only",
       .explanation = "Norms and biases (tensors of one dimension) are not decayed.",
       .foreign = {"wd", "adam_w_mode"}},
      {.name = "clip",
       .field = field(s, &OptimConfig::clip),
       .minimum = 0,
       .maximum = 1e30,
       .help = "largest global norm of the gradient; 0 does not clip",
       .foreign = {"clip_grad", "gradient_clipping", "max_norm", "max_grad_norm", "grad_clip",
                   "gradient_clip_val"}},
  };
}

std::vector<Key> parallel_keys() {
  const auto s = &RunConfig::parallel;
  constexpr double kMaxRanks = 1048576;
  return {
      {.name = "dp",
       .field = field(s, &ParallelConfig::dp),
       .unit = "ranks",
       .minimum = 0,
       .maximum = kMaxRanks,
       .help = "data-parallel replicas; 0 derives it from the number of ranks",
       .foreign = {"data", "data_parallel_size", "data_parallel_replicate_degree",
                   "data_parallel_degree", "dp_size"}},
      {.name = "tp",
       .field = field(s, &ParallelConfig::tp),
       .unit = "ranks",
       .minimum = 1,
       .maximum = kMaxRanks,
       .help = "ranks that share each matrix (tensor parallelism)",
       .foreign = {"tensor", "tensor_model_parallel_size", "tensor_parallel",
                   "tensor_parallel_degree", "tensor_parallel_size", "tp_size", "autotp_size"}},
      {.name = "pp",
       .field = field(s, &ParallelConfig::pp),
       .unit = "ranks",
       .minimum = 1,
       .maximum = kMaxRanks,
       .help = "pipeline ranks: each holds some of the layers",
       .foreign = {"pipeline", "pipeline_model_parallel_size", "pipeline_stages", "num_stages",
                   "pipeline_parallel_degree", "pipeline_parallel_size", "pp_size"}},
      {.name = "cp",
       .field = field(s, &ParallelConfig::cp),
       .unit = "ranks",
       .minimum = 1,
       .maximum = kMaxRanks,
       .help = "ranks that share each sequence in attention (context parallelism)",
       .foreign = {"context", "context_parallel_size", "sequence_parallel_size",
                   "context_parallel_degree", "ulysses", "cp_size"}},
      {.name = "ep",
       .field = field(s, &ParallelConfig::ep),
       .unit = "ranks",
       .minimum = 1,
       .maximum = kMaxRanks,
       .help = "ranks that share the experts of a mixture-of-experts layer",
       .foreign = {"expert", "expert_model_parallel_size", "ep_size", "expert_parallel_degree"}},
      {.name = "zero",
       .field = field(s, &ParallelConfig::zero),
       .minimum = 0,
       .maximum = 3,
       .help = "what data-parallel ranks split: 1 optimizer state, 2 gradients too, 3 weights too",
       .foreign = {"use_distributed_optimizer", "zero_optimization", "zero_stage", "stage",
                   "data_parallel_shard_degree", "fsdp", "fsdp_config"}},
      {.name = "sequence",
       .field = field(s, &ParallelConfig::sequence),
       .help = "split the norm regions along the sequence over the tp ranks",
       .explanation = "Has no effect with tp = 1.",
       .foreign = {"sequence_parallel", "enable_sequence_parallel"}},
      {.name = "schedule",
       .field =
           choice(s, &ParallelConfig::schedule,
                  {"gpipe", "1f1b", "interleaved", "zb-h1", "zb-h2", "zb-v", "v-min", "v-half"}),
       .help = "order of forward and backward passes in the pipeline",
       .explanation = "Has no effect with pp = 1.",
       .foreign = {"pipeline_parallel_schedule", "pipeline_schedule"}},
      {.name = "chunks",
       .field = field(s, &ParallelConfig::chunks),
       .minimum = 1,
       .maximum = 1024,
       .help = "model chunks per pipeline rank",
       .foreign = {"num_layers_per_virtual_pipeline_stage", "num_virtual_stages_per_pipeline_rank",
                   "virtual_pipeline_model_parallel_size", "num_model_chunks"}},
      {.name = "vocabulary",
       .field = choice(s, &ParallelConfig::vocabulary, {"replicated", "tensor", "pipeline"}),
       .help = "over which ranks the embedding and the output projection are split",
       .explanation =
           "tensor has no effect with tp = 1. pipeline gives every pipeline rank its rows "
           "(schedules 1f1b and v-half).",
       .foreign = {"enable_vocab_parallel", "vocab_parallel", "disable_loss_parallel"}},
      {.name = "vocabulary_algorithm",
       .field = field(s, &ParallelConfig::vocabulary_algorithm),
       .minimum = 1,
       .maximum = 2,
       .help = "how a vocabulary split over the pipeline is computed: 1 or 2",
       .explanation = "2 holds a micro-batch less in flight, 1 multiplies once less. Has no effect "
                      "unless vocabulary = \"pipeline\"."},
      {.name = "overlap",
       .field = field(s, &ParallelConfig::overlap),
       .help = "reduce gradients and fetch weights over dp while computing",
       .explanation = "The results are the same bit for bit with and without.",
       .foreign = {"overlap_comm", "overlap_grad_reduce", "overlap_param_gather"}},
  };
}

std::vector<Key> checkpoint_keys() {
  const auto s = &RunConfig::checkpoint;
  return {
      {.name = "every",
       .field = field(s, &CheckpointConfig::every),
       .unit = "steps",
       .minimum = 0,
       .maximum = kMaxCount,
       .help = "steps between checkpoints; 0 saves none on the way",
       .foreign = {"save_interval", "save_steps", "interval", "save_every", "checkpoint_every"}},
      {.name = "keep",
       .field = field(s, &CheckpointConfig::keep),
       .unit = "checkpoints",
       .minimum = 1,
       .maximum = 1e9,
       .help = "how many of the newest checkpoints stay on disk",
       .foreign = {"keep_latest_k", "save_total_limit", "most_recent_k", "save_top_k"}},
      {.name = "keep_every",
       .field = field(s, &CheckpointConfig::keep_every),
       .unit = "steps",
       .minimum = 0,
       .maximum = kMaxCount,
       .help = "checkpoints at multiples of this stay for good; 0 keeps none beyond the newest",
       .foreign = {"save_retain_interval", "retain_interval"}},
      {.name = "best",
       .field = field(s, &CheckpointConfig::best),
       .help = "also keep the checkpoint with the lowest evaluation loss",
       .foreign = {"load_best_model_at_end", "save_best"}},
      {.name = "dtype",
       .field = choice(s, &CheckpointConfig::dtype, {"f32", "bf16"}),
       .help = "type of the model weights in the Hugging Face files",
       .explanation = "Resuming is exact either way: the optimizer's files keep float32 weights.",
       .foreign = {"export_dtype", "save_dtype"}},
      {.name = "on_exit",
       .field = field(s, &CheckpointConfig::on_exit),
       .help = "save when the run ends or is stopped by a signal",
       .foreign = {"exit_signal_handler", "save_on_exit", "last_save_model_only"}},
      {.name = "resume",
       .field = field(s, &CheckpointConfig::resume),
       .help = "continue from the newest whole checkpoint of the run folder when there is one",
       .foreign = {"resume_from_checkpoint", "enable_checkpoint", "auto_resume"}},
  };
}

std::vector<Key> observe_keys() {
  const auto s = &RunConfig::observe;
  return {
      {.name = "console_every",
       .field = field(s, &ObserveConfig::console_every),
       .unit = "steps",
       .minimum = 0,
       .maximum = kMaxCount,
       .help = "steps between progress lines; 0 prints none",
       .foreign = {"log_interval", "logging_steps", "log_freq", "steps_per_print", "log_every"}},
      {.name = "tensorboard",
       .field = field(s, &ObserveConfig::tensorboard),
       .help = "write TensorBoard events into the run folder",
       .foreign = {"tensorboard_dir", "enable_tensorboard", "report_to"}},
      {.name = "report",
       .field = field(s, &ObserveConfig::report),
       .help = "write report.json and report.html at the end"},
      {.name = "trace",
       .field = field(s, &ObserveConfig::trace),
       .help = "record a timeline of every step into the run folder's trace/",
       .foreign = {"profile", "enable_profiling", "use_pytorch_profiler"}},
      {.name = "system",
       .field = field(s, &ObserveConfig::system),
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
       .help = "what reports call the run",
       .when_absent = "the run file's name without .toml",
       .foreign = {"run_name", "exp_name", "wandb_exp_name", "experiment_name", "job_name"}},
      {.name = "dir",
       .field = field(s, &RunSection::dir),
       .help = "the run folder: log, metrics, checkpoints, report",
       .when_absent = "runs/NAME",
       .foreign = {"save", "output_dir", "dump_folder", "out_dir", "folder"}},
      {.name = "seed",
       .field = field(s, &RunSection::seed),
       .minimum = 0,
       .maximum = kMaxSeed,
       .help = "seed of everything random that has no seed of its own"},
      {.name = "device",
       .field = choice(s, &RunSection::device, {"cpu", "cuda"}),
       .help = "where the model is computed"},
      {.name = "dtype",
       .field = choice(s, &RunSection::dtype, {"f32", "bf16"}),
       .help = "type of the computation; the optimizer always updates float32 weights",
       .foreign = {"bf16", "fp16", "precision", "torch_dtype", "mixed_precision",
                   "mixed_precision_param"}},
      {.name = "threads",
       .field = field(s, &RunSection::threads),
       .unit = "threads",
       .minimum = 0,
       .maximum = 4096,
       .help = "CPU threads of one rank; 0 uses all cores it may run on",
       .foreign = {"num_threads", "omp_num_threads"}},
      {.name = "deterministic",
       .field = field(s, &RunSection::deterministic),
       .help = "on a GPU too the same run gives the same bits: no kernel that cannot (on CPU it "
               "always does)",
       .foreign = {"deterministic_mode", "full_determinism"}},
      {.name = "memory_limit",
       .field = bytes(s, &RunSection::memory_limit),
       .unit = "bytes",
       .minimum = 0,
       .maximum = 9e18,
       .help = "refuse to start when the prediction for one rank exceeds this; 0 is no limit",
       .explanation = "An integer, or text with a unit: \"3 GiB\"."},
      {.name = "timeout",
       .field = field(s, &RunSection::timeout),
       .unit = "seconds",
       .minimum = 0,
       .maximum = 1e6,
       .help = "how long a rank may wait for others before the run ends, naming the guilty; 0: for "
               "ever",
       .explanation = "The last calls of every rank are then in the run folder's flight/.",
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
    add("optim", optim_keys());
    add("parallel", parallel_keys());
    add("checkpoint", checkpoint_keys());
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
      {"optim", "the optimizer and its learning rate", {"optimizer", "lr_scheduler", "scheduler"}},
      {"parallel", "how the work is split over ranks", {"parallelism", "distributed"}},
      {"checkpoint", "what is saved, when, and for how long", {"checkpointing", "save"}},
      {"observe",
       "what is shown and recorded",
       {"logging", "metrics", "profiling", "tensorboard", "wandb"}},
      {"run", "where and under which name it runs", {"job", "experiment", "system", "general"}},
  };
  return all;
}

}  // namespace heddle::config
