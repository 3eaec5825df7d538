#include "base/json.h"
#include "model/families.h"
#include "model/gelu_config.h"

namespace heddle {

// StarCoder2 is Llama's attention and GPT-2's MLP, between norms with means, all with biases.
ModelSpec starcoder2_spec(const ConfigReader& config) {
  ModelSpec spec = llama_spec(config);
  spec.norm = ModelSpec::Norm::layer;
  spec.norm_eps = config.number_or("norm_epsilon", 1e-5);
  spec.mlp = ModelSpec::Mlp::gelu;
  spec.gelu = read_gelu(config, "hidden_act", "gelu_pytorch_tanh");
  // attention_bias and mlp_bias say nothing to transformers in models of this family.
  spec.qkv_bias = spec.attention_out_bias = spec.mlp_bias = config.flag_or("use_bias", true);
  spec.init_stddev = config.number_or("initializer_range", 0.018042);
  spec.dropout =
      config.dropout_asked({"attention_dropout", "embedding_dropout", "residual_dropout"});
  spec.names.gate = {};
  spec.names.up = "model.layers.{}.mlp.c_fc";
  spec.names.down = "model.layers.{}.mlp.c_proj";
  return spec;
}

}  // namespace heddle
