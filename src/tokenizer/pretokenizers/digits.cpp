#include "tokenizer/pretokenizers/kinds.h"

namespace heddle {

void add_digits(const Section& step, PreTokenizerChain& chain) {
  chain.add(step.flag("individual_digits", false) ? scan_single_numbers : scan_number_runs);
}

}  // namespace heddle
