#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "base/json.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/safetensors_writer.h"
#include "cli/run_program.h"
#include "support/source_dir.h"
#include "support/temporary_folder.h"

namespace heddle {

/// EXPECTs that the program refuses: with this status, nothing on standard output, and one message
/// that mentions all of `mentions`.
inline void expect_refusal(const std::vector<std::string>& arguments, int status,
                           const std::vector<std::string>& mentions,
                           const RunOptions& options = {}) {
  const Outcome outcome = run_heddle(arguments, options);
  std::string command;
  for (const auto& word : arguments) command += " " + word;
  SCOPED_TRACE("heddle" + command + "\n" + outcome.err);
  EXPECT_EQ(outcome.signal, 0);
  EXPECT_EQ(outcome.status, status);
  EXPECT_EQ(outcome.out, "");
  const auto at = outcome.err.find("error: ");
  ASSERT_NE(at, std::string::npos);
  EXPECT_EQ(outcome.err.find("error: ", at + 1), std::string::npos) << "one message, not two";
  for (const auto& text : mentions) {
    EXPECT_NE(outcome.err.find(text, at), std::string::npos) << "does not mention " << text;
  }
}

/// A folder of files for one test.
class TestFiles {
 public:
  const std::filesystem::path& path() const { return folder_.path(); }
  std::string at(const std::string& name) const { return (path() / name).string(); }
  std::string write(const std::string& name, const std::string& content) const {
    std::filesystem::create_directories((path() / name).parent_path());
    write_file_atomically(real_file_system(), path() / name, content);
    return at(name);
  }

 private:
  TemporaryFolder folder_;
};

inline std::string reference_model(const std::string& name = "llama") {
  return source_dir() + "/tests/reference/models/" + name;
}
inline std::string reference_tokenizer() {
  return source_dir() + "/tests/reference/tokenizer/tokenizer.json";
}

/// A safetensors file from any header text and data, however wrong.
inline std::string safetensors_text(const std::string& header, const std::string& data = "") {
  const std::uint64_t length = header.size();
  std::string text(sizeof length, '\0');
  std::memcpy(text.data(), &length, sizeof length);
  return text + header + data;
}

/// A stored tensor that may be changed before it is written again.
struct LooseTensor {
  TensorSpec spec;
  std::string bytes;
};

/// Copies the reference model `llama` to `folder` with its tensors changed by `edit`.
inline void write_edited_model(const std::filesystem::path& folder,
                               const std::function<void(std::vector<LooseTensor>&)>& edit) {
  std::filesystem::create_directories(folder);
  std::filesystem::copy_file(reference_model() + "/config.json", folder / "config.json");
  const SafetensorsFile original(reference_model() + "/model.safetensors");
  std::vector<LooseTensor> tensors;
  for (const SafetensorsEntry& entry : original.entries()) {
    const auto bytes = original.bytes(entry);
    tensors.push_back({entry, {reinterpret_cast<const char*>(bytes.data()), bytes.size()}});
  }
  edit(tensors);
  std::vector<TensorSpec> specs;
  for (const auto& tensor : tensors) specs.push_back(tensor.spec);
  SafetensorsWriter writer(real_file_system(), folder / "model.safetensors", specs);
  for (const auto& tensor : tensors) {
    writer.append(tensor.spec.name, std::as_bytes(std::span(tensor.bytes)));
  }
  writer.finish();
}

}  // namespace heddle
