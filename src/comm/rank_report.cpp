#include "comm/rank_report.h"

#include "base/json.h"

namespace heddle {

std::string to_text(const RankReport& report) {
  Json open = Json::array(), begun = Json::array();
  for (const auto& call : report.open) {
    open.push_back({static_cast<int>(call.op), call.sequence, call.group, call.ranks, call.peer,
                    call.message_tag, call.text, call.holds_rank, call.is_on_device, call.seconds});
  }
  for (const auto& [line, sequence] : report.begun) {
    begun.push_back({line.group, static_cast<int>(line.op), line.peer, line.message_tag, sequence});
  }
  const Json json = {
      {"rank", report.rank}, {"ended", report.has_ended}, {"open", open},
      {"begun", begun},      {"last", report.last_call},  {"idle", report.idle_seconds},
      {"made", report.made}, {"recent", report.recent},   {"place", report.place}};
  return json.dump();
}

RankReport rank_report_from(std::string_view text) {
  const Json json = parse_json(text, "report of a rank");
  RankReport report{.rank = json.at("rank"),
                    .place = json.at("place"),
                    .has_ended = json.at("ended"),
                    .last_call = json.at("last"),
                    .idle_seconds = json.at("idle"),
                    .made = json.at("made"),
                    .recent = json.at("recent")};
  for (const Json& call : json.at("open")) {
    report.open.push_back({.op = static_cast<CommOp>(call.at(0).get<int>()),
                           .sequence = call.at(1),
                           .group = call.at(2),
                           .ranks = call.at(3),
                           .peer = call.at(4),
                           .message_tag = call.at(5),
                           .text = call.at(6),
                           .holds_rank = call.at(7),
                           .is_on_device = call.at(8),
                           .seconds = call.at(9)});
  }
  for (const Json& line : json.at("begun")) {
    report.begun[{.group = line.at(0),
                  .op = static_cast<CommOp>(line.at(1).get<int>()),
                  .peer = line.at(2),
                  .message_tag = line.at(3)}] = line.at(4);
  }
  return report;
}

}  // namespace heddle
