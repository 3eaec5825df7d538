#include "model/families.h"

namespace heddle {

// Phi-3 and Phi-4 are Llama's block with q, k and v in one tensor, and gate and up in one.
ModelSpec phi3_spec(const ConfigReader& config) {
  ModelSpec spec = llama_spec(config);
  spec.dropout = config.dropout_asked({"attention_dropout", "embd_pdrop", "resid_pdrop"});
  spec.names.query = spec.names.key = spec.names.value = {};
  spec.names.fused_qkv = "model.layers.{}.self_attn.qkv_proj";
  spec.names.gate = spec.names.up = {};
  spec.names.fused_gate_up = "model.layers.{}.mlp.gate_up_proj";
  return spec;
}

}  // namespace heddle
