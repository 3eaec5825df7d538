#include "data/tokenize_line.h"

namespace heddle {

void TokenizeLine::show(const TokenizeProgress& now) {
  if (!line_) {
    line_.emplace(observe::ProgressOptions{
        .label = "tokenizing", .total = now.total_bytes, .terminal = terminal_});
  }
  line_->skip(now.reused_bytes - reused_);
  line_->add(now.done_bytes - now.reused_bytes - fresh_);
  reused_ = now.reused_bytes;
  fresh_ = now.done_bytes - now.reused_bytes;
}

void TokenizeLine::finish() {
  if (line_) line_->finish();
}

}  // namespace heddle
