// Sites that share no file system: each keeps a run folder of its own.

#include <gtest/gtest.h>

#include "train/site_processes.h"

namespace heddle {
namespace {

namespace fs = std::filesystem;

/// EXPECTs the tensors of a checkpoint that every site has of its own to be those of the common
/// one.
void expect_same_by_site(const SiteProcesses& apart, const fs::path& common, int sites,
                         std::int64_t step) {
  const auto all = tensors_of(common);
  for (int site = 0; site < sites; ++site) {
    auto expected = all;
    std::erase_if(expected, [&](const auto& file) {
      const std::string& name = file.first;
      return name.find("/site") != std::string::npos &&
             name.find(fmt::format("/site{}.", site)) == std::string::npos;
    });
    EXPECT_GE(expected.size(), 5u);  // outer weights and velocity, own weights and two moments
    const auto found = tensors_of(apart.checkpoint(site, step));
    ASSERT_EQ(found.size(), expected.size()) << "site " << site;
    for (const auto& [name, bytes] : expected) {
      ASSERT_TRUE(found.contains(name)) << name;
      EXPECT_TRUE(bytes == found.at(name)) << "site " << site << ": " << name << " differs";
    }
  }
}

void expect_well(const std::vector<Outcome>& outcomes) {
  SCOPED_TRACE(all_text(outcomes));
  expect_statuses(outcomes, 0);
}

std::string log_of(const SiteProcesses& sites, int site) {
  return read_text_file(sites.folder(site) / "log.txt");
}

TEST(SitesApart, HaveTheBitsOfARunWithOneFolderAndTheirOwnRecords) {
  const SiteProcesses sites(2, 2);
  const Outcome common = sites.train_as_threads();
  ASSERT_EQ(common.status, 0) << common.err;
  EXPECT_NE(common.err.find("sites share the run folder"), std::string::npos) << common.err;
  const auto outcomes = sites.train();
  expect_well(outcomes);
  expect_same_by_site(sites, sites.run().checkpoint(12), 2, 12);
  for (int site = 0; site < 2; ++site) {
    const Outcome& first = outcomes[static_cast<std::size_t>(2 * site)];
    EXPECT_TRUE(
        says(first, fmt::format("{} is that of site {}", sites.folder(site).string(), site)))
        << first.err;
    EXPECT_TRUE(says(first, fmt::format("step 12/12 | site {}: loss", site))) << first.err;
    for (const char* file :
         {"log.txt", "metrics.jsonl", "report.json", "report.html", "run.toml"}) {
      EXPECT_TRUE(fs::exists(sites.folder(site) / file)) << site << " " << file;
    }
    EXPECT_FALSE(fs::exists(sites.folder(site) / "heddle.lock"));
  }
  // Evaluation is of all sites together.
  const auto evaluation = [](const std::string& text) {
    const auto at = text.rfind("\"eval_loss\"");
    return text.substr(at, text.find(',', at) - at);
  };
  const std::string first = evaluation(read_text_file(sites.folder(0) / "metrics.jsonl"));
  EXPECT_EQ(first, evaluation(read_text_file(sites.folder(1) / "metrics.jsonl")));
  EXPECT_EQ(first, evaluation(read_text_file(sites.run().run_folder() / "metrics.jsonl")));
}

TEST(SitesApart, GoOnFromTheNewestStepThatAllHave) {
  const SiteProcesses sites(2);
  expect_well(sites.train());
  const auto whole = tensors_of(sites.checkpoint(1, 12));
  sites.forget_after(0, 10);
  sites.forget_after(1, 6);
  const auto outcomes = sites.train({"checkpoint.every=0", "checkpoint.keep=1"});
  expect_well(outcomes);
  EXPECT_TRUE(
      says(outcomes[0], "site 0 goes back from step 10 to 6, the newest that all sites have"))
      << outcomes[0].err;
  EXPECT_FALSE(says(outcomes[1], "goes back")) << outcomes[1].err;
  EXPECT_TRUE(tensors_of(sites.checkpoint(1, 12)) == whole) << "other bits than before";
  EXPECT_FALSE(fs::exists(sites.checkpoint(0, 10))) << "replaced by a newer one";
  EXPECT_TRUE(fs::exists(sites.checkpoint(0, 6))) << "kept until all are known to have the next";
}

TEST(SitesApart, KeepNewerCheckpointsUntilANewOneIsThere) {
  const SiteProcesses sites(2);
  expect_well(sites.train());
  sites.forget_after(1, 6);
  // Stopped before it saves anything.
  const auto outcomes = sites.train({"checkpoint.every=0", "checkpoint.on_exit=true"}, {},
                                    [](int rank, SiteProcesses::Start& start) {
                                      if (rank > 0) return;
                                      start.options.signal = SIGKILL;
                                      start.options.signal_at = "step 7/12";
                                    });
  EXPECT_EQ(outcomes[0].signal, SIGKILL) << all_text(outcomes);
  EXPECT_TRUE(fs::exists(sites.checkpoint(0, 12)));
  EXPECT_TRUE(fs::exists(sites.checkpoint(0, 10)));
}

TEST(SitesApart, RefuseASiteWithoutCheckpointsAndTakeACopyOfAnother) {
  const SiteProcesses sites(2);
  expect_well(sites.train());
  sites.forget_after(0, 8);
  fs::remove_all(sites.folder(1));
  const auto refused = sites.train();
  {
    SCOPED_TRACE(all_text(refused));
    expect_statuses(refused, 2);
    EXPECT_TRUE(says(refused[0], "site 1 has no checkpoint in its run folder, others have"));
    EXPECT_TRUE(says(refused[0], "copy the run folder of another site"));
  }
  fs::remove_all(sites.folder(1));
  fs::copy(sites.folder(0), sites.folder(1), fs::copy_options::recursive);
  const auto outcomes = sites.train();
  expect_well(outcomes);
  EXPECT_TRUE(says(outcomes[1],
                   "has nothing of site 1: that goes on with the weights and states of "
                   "site 0"))
      << outcomes[1].err;
  EXPECT_FALSE(says(outcomes[0], "has nothing of")) << outcomes[0].err;
  EXPECT_TRUE(tensors_of(sites.checkpoint(0, 12)).contains("optimizer/site0.weights.safetensors"));
  EXPECT_TRUE(tensors_of(sites.checkpoint(1, 12)).contains("optimizer/site1.weights.safetensors"));
  EXPECT_NE(log_of(sites, 1).find("has nothing of site 1"), std::string::npos);
}

TEST(SitesApart, WithoutACommonStepAreRefusedByName) {
  const SiteProcesses sites(2);
  expect_well(sites.train({"checkpoint.every=6", "checkpoint.keep=9"}));
  fs::remove_all(sites.checkpoint(0, 12));
  fs::remove_all(sites.checkpoint(1, 6));
  const auto refused = sites.train();
  SCOPED_TRACE(all_text(refused));
  expect_statuses(refused, 2);
  EXPECT_TRUE(says(refused[0], "no step of which all sites have a whole checkpoint"));
  EXPECT_TRUE(says(refused[0], "site 0 has step 6, site 1 has step 12"));
}

TEST(SitesApart, AreRefusedWhereRanksOfASiteOrSomeSitesOnlyShareAFolder) {
  const auto refused = [](const SiteProcesses& sites, int rank, const fs::path& folder,
                          const std::string& text) {
    const auto outcomes = sites.train({}, {}, [&](int r, SiteProcesses::Start& start) {
      if (r == rank) start.settings.push_back("run.dir=" + folder.string());
    });
    SCOPED_TRACE(all_text(outcomes));
    expect_statuses(outcomes, 2);
    EXPECT_NE(all_text(outcomes).find(text), std::string::npos);
  };
  const SiteProcesses pairs(2, 2), three(3);
  refused(pairs, 3, pairs.run().path() / "other",
          "rank 3 does not see what rank 2 has in the run folder");
  refused(pairs, 3, pairs.folder(0), "some ranks of site 1 see the run folder of rank 0");
  refused(three, 1, three.folder(0), "site 1 sees the run folder of rank 0, site 2 does not");
}

}  // namespace
}  // namespace heddle
