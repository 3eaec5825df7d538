// Sites that stay in step, from one epoch to the next.

#include "base/json.h"
#include "comm/agree.h"
#include "train/open_exchanges.h"
#include "train/run.h"

namespace heddle {

void Run::settle_exchanges() {
  Stream own_stream(1, basis_.options.device);
  const bool has_outer = carried_.has_state && carried_.session_is_whole;
  OpenExchanges own;
  if (has_outer) {
    own = {.outer = session_->outer.get(),
           .site = site(),
           .sites = setup_->sites.all(setup_->plan.sites),
           .step = state_.step};
  }
  heddle::settle_exchanges(epochs_->all(), has_outer ? &own : nullptr,
                           has_outer ? session_->stream : own_stream);
}

void Run::keep_numbers_of_site(const RunState& own) {
  if (!epochs_->has_sites()) return;
  state_.skipped_updates = own.skipped_updates;
  state_.optimizer = own.optimizer;
}

void Run::take_whole_sites(std::vector<recover::HeldBox>& wanted) {
  const std::vector<int>& whole = epochs_->recovery().whole_sites;
  Json told;
  if (carried_.has_state && carried_.place) {
    told = {{"site", carried_.place->site()},
            {"skipped_updates", state_.skipped_updates},
            {"optimizer", state_.optimizer}};
  }
  const std::vector<std::string> texts = texts_of_all(epochs_->all(), told.dump());
  // What a site had that goes on as another one is would stand beside what it takes.
  for (const int site : SiteNumbers().all(config_.parallel.sites)) {
    if (recover::site_taken(site, whole) == site) continue;
    std::erase_if(carried_.boxes, [own = own_kind(site, "")](const recover::HeldBox& box) {
      return box.kind.starts_with(own);
    });
  }
  if (epochs_->is_spare()) return;
  const int taken = recover::site_taken(site(), whole);
  const std::string own = own_kind(site(), "");
  for (recover::HeldBox& box : wanted) {
    if (box.kind.starts_with(own)) box.kind = own_kind(taken, box.kind.substr(own.size()));
  }
  for (const std::string& text : texts) {
    const Json json = parse_json(text, "a member's numbers");
    if (json.is_null() || json.at("site") != taken) continue;
    state_.skipped_updates = json.at("skipped_updates");
    state_.optimizer = json.at("optimizer").get<Optimizer::Numbers>();
    return;
  }
}

}  // namespace heddle
