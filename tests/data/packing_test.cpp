#include "data/packing.h"

#include <gtest/gtest.h>

#include "data/test_files.h"

namespace heddle {
namespace {

using Row = std::vector<std::int32_t>;
constexpr std::int32_t kNone = kIgnoredTarget;

struct Packed {
  Row ids, targets, positions, first_key;
  std::int64_t counted;
};

class PackWindow : public testing::Test {
 protected:
  Packed pack(std::int64_t begin, std::int64_t end, DocumentMode mode, std::size_t seq_len = 6) {
    Packed p{Row(seq_len, -1), Row(seq_len, -1), Row(seq_len, -1), Row(seq_len, -1), 0};
    p.counted = pack_window(file_, begin, end, mode, {p.ids, p.targets, p.positions, p.first_key});
    return p;
  }

  TemporaryFolder folder_;
  TokenFile file_ = TokenFile::open(write_counting_file(folder_ / "a.tok", {5, 1, 4, 10}));
};

TEST_F(PackWindow, KeepsAttentionPositionsAndTargetsInsideDocuments) {
  const Packed p = pack(3, 10, DocumentMode::mask);
  EXPECT_EQ(p.ids, (Row{3, 4, 5, 6, 7, 8}));
  EXPECT_EQ(p.targets, (Row{4, kNone, kNone, 7, 8, 9}));
  EXPECT_EQ(p.positions, (Row{0, 1, 0, 0, 1, 2}));
  EXPECT_EQ(p.first_key, (Row{0, 0, 2, 3, 3, 3}));
  EXPECT_EQ(p.counted, 4);
}

TEST_F(PackWindow, TreatsAWindowAsOneTextWhenDocumentsAreIgnored) {
  const Packed p = pack(3, 10, DocumentMode::ignore);
  EXPECT_EQ(p.targets, (Row{4, 5, 6, 7, 8, 9}));
  EXPECT_EQ(p.positions, (Row{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(p.first_key, Row(6, 0));
  EXPECT_EQ(p.counted, 6);
}

TEST_F(PackWindow, MasksTheTargetWhenADocumentEndsWithTheWindow) {
  EXPECT_EQ(pack(4, 11, DocumentMode::mask).targets, (Row{kNone, kNone, 7, 8, 9, kNone}));
  EXPECT_EQ(pack(5, 12, DocumentMode::mask).targets, (Row{kNone, 7, 8, 9, kNone, 11}));
}

TEST_F(PackWindow, PadsAShortWindowWithADocumentOfItsOwn) {
  const Packed p = pack(17, 20, DocumentMode::mask);
  EXPECT_EQ(p.ids, (Row{17, 18, 19, 0, 0, 0}));
  EXPECT_EQ(p.targets, (Row{18, 19, kNone, kNone, kNone, kNone}));
  EXPECT_EQ(p.first_key, (Row{0, 0, 0, 3, 3, 3}));
  EXPECT_EQ(p.counted, 2);
}

TEST_F(PackWindow, ReadsNothingBehindItsEnd) {
  const Packed p = pack(0, 3, DocumentMode::ignore);
  EXPECT_EQ(p.ids, (Row{0, 1, 2, 0, 0, 0}));
  EXPECT_EQ(p.counted, 2);
}

}  // namespace
}  // namespace heddle
