#include "base/file_system.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "support/temporary_folder.h"

namespace heddle {
namespace {

TEST(WriteFileAtomically, MakesTheFolderThatIsMissing) {
  const TemporaryFolder folder;
  const auto file = folder.path() / "a" / "b" / "file";
  write_file_atomically(real_file_system(), file, "text");
  EXPECT_EQ(read_text_file(file), "text");
}

TEST(WriteFileAtomically, NamesTheFileThatIsWhereAFolderShouldBe) {
  const TemporaryFolder folder;
  const auto file = folder.path() / "file";
  write_file_atomically(real_file_system(), file, "text");
  try {
    write_file_atomically(real_file_system(), file / "below", "text");
    FAIL() << "a file was written below a file";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::resources);
    EXPECT_NE(error.message().find("cannot create folder " + file.string()), std::string::npos)
        << error.message();
  }
  EXPECT_EQ(read_text_file(file), "text");
}

}  // namespace
}  // namespace heddle
