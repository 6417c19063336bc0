#include "decoder/spans.h"

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <string>
#include <unordered_set>

namespace forerun {

namespace {

[[noreturn]] void refuse(const SpanOf& span, const std::string& fact) {
  throw std::invalid_argument(fact + " (span of sequence " + std::to_string(span.sequence_id) + ")");
}

std::string text(int64_t value) { return std::to_string(value); }

int64_t parent_of(const SpanOf& span, int64_t i) { return span.parents ? span.parents[i] : i - 1; }

void check(const SpanOf& span, const Sequence& sequence, const Description& description) {
  if (span.start != sequence.length)
    refuse(span, "a span starts at " + text(span.start) + " where " + text(sequence.length) + " tokens are cached");
  if (!sequence.parents.empty()) refuse(span, "the last span was a tree: keep one of its paths before feeding more");
  if (span.num_tokens < 1) refuse(span, "a span has no tokens");
  if (span.num_rows < 0 || span.num_rows > span.num_tokens)
    refuse(span, text(span.num_rows) + " rows were asked for of " + text(span.num_tokens) + " tokens");
  if (span.num_tokens > std::numeric_limits<int32_t>::max() - span.start)
    refuse(span, text(span.num_tokens) + " tokens are too many");
  for (int64_t i = 0; i < span.num_tokens; ++i) {
    if (span.tokens[i] < 0 || span.tokens[i] >= description.num_embeddings)
      refuse(span, "token id " + text(span.tokens[i]) + " is outside 0.." + text(description.num_embeddings - 1));
    if (parent_of(span, i) < -1 || parent_of(span, i) >= i)
      refuse(span, "token " + text(i) + " has parent " + text(parent_of(span, i)) + ", which is not before it");
  }
}

}  // namespace

FedSpans lay_out(const std::vector<SpanOf>& spans, Cache& cache, const Description& description) {
  FedSpans fed;
  std::unordered_set<int64_t> seen;
  size_t num_tokens = 0;
  for (const SpanOf& span : spans) {
    Sequence& sequence = cache.at(span.sequence_id);
    if (!seen.insert(span.sequence_id).second) refuse(span, "a sequence appears twice in one pass");
    check(span, sequence, description);
    fed.sequences.push_back(&sequence);
    num_tokens += size_t(span.num_tokens);
  }
  fed.tokens.reserve(num_tokens);
  std::vector<size_t> tail_starts;  // tails move while they grow, so that pointers are set at the end
  tail_starts.reserve(num_tokens);
  for (size_t s = 0; s < spans.size(); ++s) {
    const SpanOf& span = spans[s];
    const size_t first = fed.tokens.size();
    for (int64_t i = 0; i < span.num_tokens; ++i) {
      const int64_t slot = span.start + i, parent = parent_of(span, i);
      AttentionRow sees = {size_t(span.start), size_t(span.start), nullptr};
      size_t tail_start = fed.tails.size();
      if (parent >= 0) sees = fed.tokens[first + size_t(parent)].sees;
      const size_t parents_tail = sees.num_positions - sees.num_shared;
      if (parents_tail == 0 && sees.num_positions == size_t(slot)) {
        ++sees.num_shared;  // it follows the text that is cached in order
      } else {
        for (size_t j = 0; j < parents_tail; ++j)
          fed.tails.push_back(fed.tails[tail_starts[first + size_t(parent)] + j]);
        fed.tails.push_back(uint32_t(slot));
      }
      ++sees.num_positions;
      if (int64_t(sees.num_positions) > description.context_length)
        refuse(span, text(int64_t(sees.num_positions)) + " tokens do not fit a context of " +
                         text(description.context_length));
      fed.num_positions = std::max(fed.num_positions, int64_t(sees.num_positions));
      tail_starts.push_back(tail_start);
      fed.tokens.push_back({span.tokens[i], i >= span.num_tokens - span.num_rows, slot, s, sees});
    }
  }
  for (size_t i = 0; i < fed.tokens.size(); ++i) fed.tokens[i].sees.tail = fed.tails.data() + tail_starts[i];
  return fed;
}

LastSpan last_span(const SpanOf& span) {
  LastSpan last{0, {}};
  while (last.trunk < span.num_tokens && parent_of(span, last.trunk) == last.trunk - 1) ++last.trunk;
  if (last.trunk < span.num_tokens) last.parents.assign(span.parents, span.parents + span.num_tokens);
  return last;
}

}  // namespace forerun
