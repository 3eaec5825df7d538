#include "train/epoch_meeting.h"

#include <algorithm>
#include <array>
#include <bit>

#include "base/json.h"
#include "comm/agree.h"

namespace heddle {
namespace {

/// To the last bit, also of what is no number.
std::vector<std::uint64_t> bits_of(const std::vector<double>& values) {
  std::vector<std::uint64_t> bits;
  for (const double value : values) bits.push_back(std::bit_cast<std::uint64_t>(value));
  return bits;
}
std::vector<double> values_of(const std::vector<std::uint64_t>& bits) {
  std::vector<double> values;
  for (const std::uint64_t value : bits) values.push_back(std::bit_cast<double>(value));
  return values;
}

Json to_json(const RunState& state) {
  Json json = {{"step", state.step},
               {"tokens", state.tokens},
               {"skipped_updates", state.skipped_updates},
               {"seconds", state.seconds},
               {"evaluations_since_best", state.evaluations_since_best},
               {"optimizer", state.optimizer},
               {"made_anew", state.made_anew},
               {"left_out", left_out_json(state.left_out)}};
  if (state.eval_loss) json["eval_loss"] = bits_of({*state.eval_loss});
  if (state.best_eval_loss) json["best_eval_loss"] = bits_of({*state.best_eval_loss});
  if (!state.expert_load.empty()) json["expert_load"] = bits_of(state.expert_load);
  return json;
}

RunState state_from(const Json& json) {
  RunState state{.step = json.at("step"),
                 .tokens = json.at("tokens"),
                 .skipped_updates = json.at("skipped_updates"),
                 .seconds = json.at("seconds"),
                 .evaluations_since_best = json.at("evaluations_since_best"),
                 .optimizer = json.at("optimizer"),
                 .made_anew = json.at("made_anew"),
                 .left_out = left_out_from(json.at("left_out"))};
  if (json.contains("eval_loss")) state.eval_loss = values_of(json.at("eval_loss")).front();
  if (json.contains("best_eval_loss")) {
    state.best_eval_loss = values_of(json.at("best_eval_loss")).front();
  }
  if (json.contains("expert_load")) state.expert_load = values_of(json.at("expert_load"));
  return state;
}

constexpr std::array kPlaceAxes = {Axis::tp, Axis::cp,  Axis::dp,  Axis::pp,
                                   Axis::ep, Axis::etp, Axis::site};

Json to_json(const recover::FormerPlace& place) {
  Json sizes = Json::array();
  for (const Axis axis : kPlaceAxes) sizes.push_back(place.mesh.size(axis));
  return {{"mesh", sizes},
          {"rank", place.rank},
          {"zero", place.zero},
          {"copies", static_cast<int>(place.copies)},
          {"blocks", place.blocks.begins},
          {"left_out", left_out_json(place.left_out)},
          {"sites", place.sites}};
}

recover::FormerPlace place_from(const Json& json) {
  recover::FormerPlace place{.rank = json.at("rank"),
                             .zero = json.at("zero"),
                             .copies = static_cast<KeptCopies>(json.at("copies").get<int>()),
                             .blocks = {json.at("blocks").get<std::vector<int>>()},
                             .left_out = left_out_from(json.at("left_out")),
                             .sites = json.at("sites").get<std::vector<int>>()};
  for (std::size_t i = 0; i < kPlaceAxes.size(); ++i) {
    place.mesh = place.mesh.with(kPlaceAxes[i], json.at("mesh").at(i));
  }
  return place;
}

std::string text_of(const MemberNews& news) {
  Json json = {{"checkpoint", news.checkpoint}, {"lost_save", news.lost_save}, {"lock", news.lock}};
  if (news.state) {
    json["state"] = to_json(*news.state);
    json["totals"] = bits_of(news.totals);
    json["cut"] = news.cut;
    for (const KeptErrors& kept : news.errors) {
      json["errors"].push_back(Json::array({kept.epoch, kept.ranks}));
    }
  }
  if (news.place) json["place"] = to_json(*news.place);
  return json.dump();
}

MemberNews news_from(const std::string& text) {
  const Json json = parse_json(text, "a member's news");
  MemberNews news{.checkpoint = json.at("checkpoint"),
                  .lost_save = json.at("lost_save"),
                  .lock = json.at("lock")};
  if (json.contains("state")) {
    news.state = state_from(json.at("state"));
    news.totals = values_of(json.at("totals"));
    news.cut = json.at("cut");
    for (const Json& kept : json.value("errors", Json::array())) {
      news.errors.push_back({.epoch = kept.at(0), .ranks = kept.at(1)});
    }
  }
  if (json.contains("place")) news.place = place_from(json.at("place"));
  return news;
}

/// Of two who have decided the same step, one may have evaluated it.
bool knows_more(const RunState& a, const RunState& b) {
  return a.step != b.step ? a.step > b.step : a.eval_loss && !b.eval_loss;
}

}  // namespace

EpochMeeting::EpochMeeting(World& world, const MemberNews& own) {
  for (const std::string& text : texts_of_all(world, text_of(own))) {
    members_.push_back(news_from(text));
  }
  for (std::size_t rank = 0; rank < members_.size(); ++rank) {
    if (!members_[rank].state) continue;
    if (teller_ < 0 || knows_more(*members_[rank].state, *teller().state)) {
      teller_ = static_cast<int>(rank);
    }
  }
}

std::vector<std::optional<recover::FormerPlace>> EpochMeeting::places() const {
  std::vector<std::optional<recover::FormerPlace>> places;
  for (std::size_t rank = 0; rank < members_.size(); ++rank) {
    places.push_back(has_state_of_step(rank) ? members_[rank].place : std::nullopt);
  }
  return places;
}

std::optional<KeptErrors> EpochMeeting::errors() const {
  std::optional<KeptErrors> oldest;
  for (std::size_t rank = 0; rank < members_.size(); ++rank) {
    if (!has_state_of_step(rank) || members_[rank].errors.empty()) continue;
    const KeptErrors& newest = members_[rank].errors.back();
    if (!oldest || newest.epoch < oldest->epoch) oldest = newest;
  }
  return oldest;
}

std::int64_t EpochMeeting::checkpoint() const {
  return std::ranges::max(members_, {}, &MemberNews::checkpoint).checkpoint;
}

bool EpochMeeting::lost_save() const {
  return std::ranges::any_of(members_, &MemberNews::lost_save);
}

}  // namespace heddle
