// Spans, checked and laid out token by token.
#pragma once

#include <cstdint>
#include <vector>

#include "decoder/cache.h"
#include "decoder/decoder.h"

namespace forerun {

// One token of a pass: what is fed, where its keys and values go, and what it sees.
struct FedToken {
  int32_t token;
  bool is_wanted;  // its logits were asked for
  int64_t slot;
  size_t span;
  AttentionRow sees;  // its position is sees.num_positions - 1
};

struct FedSpans {
  std::vector<Sequence*> sequences;  // span by span
  std::vector<FedToken> tokens;      // span after span
  std::vector<uint32_t> tails;       // what the tokens' `tail` point into
  int64_t num_positions = 0;         // of the longest text
};

// Throws std::invalid_argument, before anything is changed, where a span breaks the protocol.
FedSpans lay_out(const std::vector<SpanOf>& spans, Cache& cache, const Description& description);

// What `keep` may choose from once a span is cached: how many tokens follow one another from its first on, and its
// parents (empty: a chain).
struct LastSpan {
  int64_t trunk;
  std::vector<int32_t> parents;
};
LastSpan last_span(const SpanOf& span);

}  // namespace forerun
