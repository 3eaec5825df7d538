#include "checkpoint/hf_folder.h"

#include "base/json.h"
#include "checkpoint/hf_folder_writer.h"
#include "support.h"

namespace heddle {
namespace {

using namespace testing_support;

const char* const kIndex = "model.safetensors.index.json";

std::string one_tensor(const std::string& name) {
  return safetensors_text(R"({")" + name + R"(":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})",
                          "xy");
}

TEST(HfFolder, OpensASingleFileAFolderAndShards) {
  const TemporaryFolder folder;
  write_file(folder / "model.safetensors", one_tensor("a"));
  EXPECT_TRUE(HfFolder(folder.path()).contains("a"));
  EXPECT_TRUE(HfFolder(folder / "model.safetensors").contains("a"));

  write_file(folder / "x-1.safetensors", one_tensor("a"));
  write_file(folder / "x-2.safetensors", one_tensor("b"));
  write_file(folder / kIndex, R"({"metadata":{"total_size":4,"more":[1,{"k":null}]},)"
                              R"("weight_map":{"b":"x-2.safetensors","a":"x-1.safetensors"}})");
  const HfFolder sharded(folder.path());
  EXPECT_EQ(sharded.names().size(), 2U);
  EXPECT_EQ(sharded.total_bytes(), 4U);
  Memory memory;
  const Tensor out = memory.alloc({2}, DType::u8, MemoryTag::data);
  sharded.read("b", out);
  EXPECT_EQ(out.host<std::uint8_t>()[1], 'y');
  expect_error([&] { sharded.read("c", out); }, ErrorCode::data, "there is no tensor \"c\"");
}

TEST(HfFolder, RefusesBrokenIndexesByName) {
  const TemporaryFolder folder;
  write_file(folder / "x-1.safetensors", one_tensor("a"));
  write_file(folder / "x-2.safetensors", one_tensor("a"));
  const auto says = [&](const std::string& index, const std::string& part) {
    write_file(folder / kIndex, index);
    expect_error([&] { HfFolder opened(folder.path()); }, ErrorCode::data, part);
  };
  says(R"({"weight_map":{"a":"x-3.safetensors"}})", "shard x-3.safetensors is missing");
  says(R"({"weight_map":{"a":"../x-1.safetensors"}})", "\"../x-1.safetensors\", outside");
  says(R"({"weight_map":{"a":"/x-1.safetensors"}})", "outside the folder");
  says(R"({"weight_map":{"a":"sub/../../x"}})", "outside the folder");
  says(R"({"weight_map":{"b":"x-1.safetensors"}})", "\"b\" is said to be in x-1.safetensors, but");
  says(R"({"weight_map":{"a":"x-1.safetensors","b":"x-2.safetensors"}})",
       "\"a\" is in x-1.safetensors and in x-2.safetensors");
  says(R"({"weight_map":{"a":"x-1.safetensors","a":"x-2.safetensors"}})", "\"a\" twice");
  says(R"({"weight_map":{"a":1}})", "\"weight_map\" holds a number");
  says(R"({"weight_map":{"a":{}}})", "\"weight_map\" holds an object");
  says(R"({"weight_map":["a"]})", "\"weight_map\" holds an array");
  says(R"({"metadata":{}})", "there is no \"weight_map\"");
  says(R"(["a"])", "the index holds an array");
  says(R"({"weight_map":)", "not valid JSON");
  says("", "not valid JSON");
}

TEST(HfFolder, SaysWhatAFolderWithoutWeightsLacks) {
  const TemporaryFolder folder;
  expect_error([&] { HfFolder opened(folder.path()); }, ErrorCode::data, "not a model folder");
  write_file(folder / "pytorch_model.bin", "x");
  expect_error([&] { HfFolder opened(folder.path()); }, ErrorCode::data, "as safetensors first");
  expect_error([&] { HfFolder opened(folder / "none"); }, ErrorCode::data, "no such model folder");
}

TEST(HfFolderWriter, SplitsIntoShardsThatReadBack) {
  const TemporaryFolder folder;
  Memory memory;
  std::vector<TensorSpec> specs;
  for (int i = 0; i < 5; ++i) {
    specs.push_back(tensor_spec("t" + std::to_string(i), DType::f32, {10}));
  }
  specs.insert(specs.begin(), tensor_spec("odd", DType::u8, {3}));
  specs.push_back(tensor_spec("large", DType::f32, {100}));
  HfFolderWriter writer(real_file_system(), folder.path(), specs, 100);
  for (const auto& spec : writer.order()) {
    if (spec.name == "odd") {
      writer.append("odd", std::as_bytes(std::span("abc", 3)));
    } else {
      writer.append(spec.name, counting(memory, spec.shape(), static_cast<float>(spec.name[1])));
    }
  }
  writer.write_companions({{"config.json", "{}"}});
  EXPECT_EQ(writer.finish().size(), 6U);  // 2 + 2 + 1 tensors, the large one; config; index

  const Json index = read_json_file(folder / kIndex);
  EXPECT_EQ(index["metadata"]["total_size"], 603);
  EXPECT_EQ(index["weight_map"]["large"], "model-00004-of-00004.safetensors");
  const HfFolder read(folder.path());
  EXPECT_EQ(read.names().size(), 7U);
  EXPECT_EQ(read.entry("t0").begin % 4, 0U) << "smaller elements must follow larger ones";
  const Tensor out = memory.alloc({10}, DType::f32, MemoryTag::data);
  read.read("t4", out);
  EXPECT_EQ(out.host<float>()[9], static_cast<float>('4') + 9);
}

TEST(HfFolderWriter, WritesOneFileWithoutIndexWhenAllFits) {
  const TemporaryFolder folder;
  HfFolderWriter writer(real_file_system(), folder.path(), {tensor_spec("a", DType::u8, {2})});
  writer.append("a", std::as_bytes(std::span("xy", 2)));
  EXPECT_EQ(writer.finish().size(), 1U);
  EXPECT_TRUE(std::filesystem::exists(folder / "model.safetensors"));
  EXPECT_FALSE(std::filesystem::exists(folder / kIndex));
}

TEST(HfFolder, ReadsTheCompanionsThatAreThere) {
  const TemporaryFolder folder;
  write_file(folder / "config.json", "{\"a\":1}");
  write_file(folder / "tokenizer.json", "{}");
  write_file(folder / "README.md", "no");
  for (const char* name : {"tool_use.jinja", "rag.jinja", "notes.txt"}) {
    std::filesystem::create_directories(folder / "additional_chat_templates");
    write_file(folder / "additional_chat_templates" / name, name);
  }
  const auto companions = read_companions(folder.path());
  ASSERT_EQ(companions.size(), 4U);
  EXPECT_EQ(companions[0].content, "{\"a\":1}");
  EXPECT_EQ(companions[2].name, "additional_chat_templates/rag.jinja");
  EXPECT_EQ(companions[3].content, "tool_use.jinja");
}

TEST(HfFolder, OpensEveryFixture) {
  const auto fixtures = shared_fixtures();
  if (!fixtures) GTEST_SKIP() << "the shared fixtures are absent";
  for (const auto& item : std::filesystem::directory_iterator(*fixtures / "models")) {
    EXPECT_GT(HfFolder(item.path()).names().size(), 10U) << item.path();
  }
}

}  // namespace
}  // namespace heddle
