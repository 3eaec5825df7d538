#include "model/gelu_config.h"

#include <fmt/core.h>

#include "base/strings.h"

namespace heddle {

ops::Gelu read_gelu(const ConfigReader& config, const std::string& key,
                    const std::string& by_default) {
  const std::string activation = config.text_or(key, by_default);
  for (const char* name : {"gelu", "gelu_python"}) {
    if (activation == name) return ops::Gelu::exact;
  }
  for (const char* name :
       {"gelu_new", "gelu_fast", "gelu_pytorch_tanh", "gelu_python_tanh", "gelu_accurate"}) {
    if (activation == name) return ops::Gelu::tanh;
  }
  config.refuse(
      fmt::format("asks for {} \"{}\", which heddle does not do", key, shortened(activation)),
      "supported: gelu, gelu_new, gelu_fast, gelu_pytorch_tanh, gelu_accurate");
}

}  // namespace heddle
