#include "checkpoint/hf_config.h"

#include "base/json.h"
#include "support.h"

namespace heddle {
namespace {

using namespace testing_support;

Json with_dtype(const std::string& config, DType dtype) {
  return parse_json(config_with_dtype(config, dtype, "config.json"), "config.json");
}

TEST(ConfigDtype, IsSetUnderWhicheverKeyIsThere) {
  EXPECT_EQ(with_dtype(R"({"torch_dtype":"bfloat16"})", DType::f32),
            (Json{{"torch_dtype", "float32"}}));
  EXPECT_EQ(with_dtype(R"({"dtype":"float32","a":1})", DType::bf16),
            (Json{{"dtype", "bfloat16"}, {"a", 1}}));
  EXPECT_EQ(with_dtype(R"({"dtype":"float16","torch_dtype":null})", DType::f32),
            (Json{{"dtype", "float32"}, {"torch_dtype", "float32"}}));
  EXPECT_EQ(with_dtype("{}", DType::f16), (Json{{"torch_dtype", "float16"}}));
}

TEST(ConfigDtype, LeavesATextThatIsRightAlone) {
  const std::string text = "{ \"dtype\" :  \"float32\" }";
  EXPECT_EQ(config_with_dtype(text, DType::f32, "config.json"), text);
}

TEST(ConfigDtype, OfWhatIsNoObjectIsRefusedByName) {
  expect_error([] { config_with_dtype("[1]", DType::f32, "dir/config.json"); }, ErrorCode::data,
               "dir/config.json: not a JSON object");
}

TEST(Quantization, IsNamedByItsMethod) {
  EXPECT_EQ(quantization_of(R"({"quantization_config":{"quant_method":"fp8"}})", "c"), "fp8");
  EXPECT_EQ(quantization_of(R"({"quantization_config":{"bits":4}})", "c"), "quantization_config");
  EXPECT_EQ(quantization_of(R"({"quantization_config":null})", "c"), std::nullopt);
  EXPECT_EQ(quantization_of("{}", "c"), std::nullopt);
}

}  // namespace
}  // namespace heddle
