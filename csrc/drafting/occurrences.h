// Where the last tokens of a text occurred before, and what followed: the index behind suffix and lookup drafts.
//
// For each of a few sizes, every place whose `size` tokens before it have a next token is in a chain of places with the
// same hash, latest first (the structure of deflate's matcher, RFC 1951 section 4, over tokens). So a token costs one
// entry for each size whatever came before, a question looks at a bounded number of places, old tokens leave a window by
// themselves, and counts are taken of the latest occurrences instead of being kept for all of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace forerun {

// What followed the longest match. `votes[i]` of the `voters[i]` occurrences that agree with `tokens` up to i go on with
// token i. `size` is how many tokens matched; 0: none, and nothing follows.
struct Continuation {
  size_t size = 0;
  std::vector<uint32_t> tokens, votes, voters;
};

class Occurrences {
 public:
  // `sizes` ascend, from 1 up; `window` is how many of the latest tokens count, 0 for all of them.
  Occurrences(std::vector<size_t> sizes, size_t window);

  // Room for so many tokens, so that a long text is not indexed again as it grows.
  void reserve(size_t num_tokens);

  // The text goes on. Ids below 2^32 - 1.
  void append(const uint32_t* tokens, size_t n);

  // The text ends here and another begins: nothing matches or continues across.
  void end_text();

  // What follows the text's own last tokens. The latest `most_voters` occurrences of the longest size that occurred vote
  // on each token; ties go to the latest. One that runs into the end of the text goes on periodically.
  Continuation follow(size_t most, size_t most_voters);

  // What follows the last of `tail` [n], tokens of a text that is elsewhere.
  Continuation follow(const uint32_t* tail, size_t n, size_t most, size_t most_voters);

  size_t num_tokens() const { return length_ - oldest(); }  // within the window
  uint64_t num_entries() const { return num_entries_; }     // entries made since the beginning: the work of append
  uint64_t num_looked_at() const { return num_looked_at_; }  // places looked at: the work of follow
  size_t num_bytes() const { return (tokens_.size() + heads_.size() + before_.size()) * sizeof(uint32_t); }

 private:
  size_t oldest() const { return window_ && length_ > window_ ? length_ - window_ : 0; }
  uint32_t token(size_t place) const { return tokens_[place & mask_]; }
  uint32_t& head(size_t which, uint64_t hash);
  void rebuild(size_t capacity);
  void push(uint32_t token);
  bool matches(size_t place, const uint32_t* tail, size_t n, size_t size) const;
  Continuation vote(const uint32_t* tail, size_t n, const std::vector<uint64_t>& hashes, size_t most,
                    size_t most_voters);
  void count(Continuation& found, std::vector<size_t> places, size_t most, bool is_own) const;

  std::vector<size_t> sizes_;
  std::vector<uint64_t> powers_;  // of the base, one for each size
  std::vector<uint64_t> hashes_;  // of the last tokens of each size
  size_t window_, length_ = 0, capacity_ = 0, mask_ = 0;
  unsigned shift_ = 0;
  std::vector<uint32_t> tokens_;  // [capacity], token i at i modulo capacity
  std::vector<uint32_t> heads_;   // [sizes, capacity], the latest place of each bucket
  std::vector<uint32_t> before_;  // [capacity, sizes], the place before it in its bucket
  uint64_t num_entries_ = 0, num_looked_at_ = 0;
};

}  // namespace forerun
