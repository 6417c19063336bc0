#include "drafting/occurrences.h"

#include <algorithm>
#include <stdexcept>

namespace forerun {

namespace {

constexpr uint64_t kBase = 0x5851F42D4C957F2D;  // odd: its powers are units modulo 2^64
constexpr uint64_t kGolden = 0x9E3779B97F4A7C15;
constexpr uint32_t kBreak = UINT32_MAX;  // between texts; no token has this id
constexpr uint32_t kNone = UINT32_MAX;
constexpr size_t kLeastCapacity = 256;
constexpr size_t kMostPlaces = size_t(1) << 31;  // places are numbered anew before they outgrow 32 bits
constexpr size_t kMostLookedAt = 256;  // places of one question, other tokens of the same bucket included

size_t power_of_two(size_t least) {
  size_t capacity = kLeastCapacity;
  while (capacity < least) capacity *= 2;
  return capacity;
}

}  // namespace

Occurrences::Occurrences(std::vector<size_t> sizes, size_t window) : sizes_(std::move(sizes)), window_(window) {
  size_t before = 0;
  for (const size_t size : sizes_) {
    if (size <= before) throw std::invalid_argument("sizes must ascend, from 1 up");
    before = size;
  }
  if (sizes_.empty()) throw std::invalid_argument("at least one size is needed");
  for (const size_t size : sizes_) {
    uint64_t power = 1;
    for (uint64_t left = size, square = kBase; left > 0; left /= 2, square *= square)
      if (left % 2) power *= square;
    powers_.push_back(power);
  }
  rebuild(kLeastCapacity);
}

void Occurrences::reserve(size_t num_tokens) {
  const size_t most = window_ ? std::max(window_, sizes_.back()) + 1 : num_tokens;
  const size_t capacity = power_of_two(std::min(num_tokens, most));
  if (capacity > capacity_) rebuild(capacity);
}

void Occurrences::append(const uint32_t* tokens, size_t n) {
  for (size_t i = 0; i < n; ++i)
    if (tokens[i] == kBreak) throw std::invalid_argument("a token id beyond 2^32 - 2");
  for (size_t i = 0; i < n; ++i) push(tokens[i]);
}

void Occurrences::end_text() { push(kBreak); }

void Occurrences::push(uint32_t next) {
  if (length_ == capacity_ && (!window_ || capacity_ <= std::max(window_, sizes_.back()))) rebuild(2 * capacity_);
  if (length_ == kMostPlaces) {
    if (!window_) throw std::length_error("a text of 2^31 tokens");
    rebuild(capacity_);
  }
  const size_t place = length_;
  uint32_t* const before = &before_[(place & mask_) * sizes_.size()];
  for (size_t which = 0; which < sizes_.size(); ++which) {
    const size_t size = sizes_[which];
    before[which] = kNone;
    uint64_t gone = 0;
    if (size <= place) {
      uint32_t& latest = head(which, hashes_[which]);
      before[which] = latest;
      latest = uint32_t(place);
      ++num_entries_;
      gone = powers_[which] * (uint64_t(token(place - size)) + 1);
    }
    hashes_[which] = hashes_[which] * kBase + uint64_t(next) + 1 - gone;
  }
  tokens_[place & mask_] = next;
  ++length_;
}

uint32_t& Occurrences::head(size_t which, uint64_t hash) {
  const uint64_t mixed = (hash ^ (hash >> 32)) * kGolden;
  return heads_[which * capacity_ + size_t(mixed >> shift_)];
}

// Index what is within the window again, in arrays of this capacity (a power of two), its places numbered from 0.
void Occurrences::rebuild(size_t capacity) {
  std::vector<uint32_t> kept;
  for (size_t place = oldest(); place < length_; ++place) kept.push_back(token(place));
  capacity_ = capacity;
  mask_ = capacity - 1;
  shift_ = 64;
  for (size_t left = capacity; left > 1; left /= 2) --shift_;
  tokens_.assign(capacity, 0);
  heads_.assign(capacity * sizes_.size(), kNone);
  before_.assign(capacity * sizes_.size(), kNone);
  hashes_.assign(sizes_.size(), 0);
  length_ = 0;
  const uint64_t num_entries = num_entries_;
  for (const uint32_t next : kept) push(next);
  num_entries_ = num_entries;
}

Continuation Occurrences::follow(size_t most, size_t most_voters) {
  return vote(nullptr, length_ - oldest(), hashes_, most, most_voters);
}

Continuation Occurrences::follow(const uint32_t* tail, size_t n, size_t most, size_t most_voters) {
  std::vector<uint64_t> hashes;
  uint64_t hash = 0, power = 1;
  size_t num = 0;
  for (const size_t size : sizes_) {
    for (; num < std::min(size, n); ++num, power *= kBase) hash += power * (uint64_t(tail[n - 1 - num]) + 1);
    hashes.push_back(hash);
  }
  return vote(tail, n, hashes, most, most_voters);
}

// Whether the `size` tokens before `place` are the last of the tail, or of the text itself if there is none.
bool Occurrences::matches(size_t place, const uint32_t* tail, size_t n, size_t size) const {
  for (size_t i = 1; i <= size; ++i)
    if (token(place - i) != (tail ? tail[n - i] : token(length_ - i))) return false;
  return true;
}

Continuation Occurrences::vote(const uint32_t* tail, size_t n, const std::vector<uint64_t>& hashes, size_t most,
                               size_t most_voters) {
  Continuation found;
  size_t num_looked_at = 0;
  for (size_t which = sizes_.size(); which-- > 0;) {
    const size_t size = sizes_[which];
    if (size > n) continue;
    std::vector<size_t> places;
    uint32_t place = head(which, hashes[which]);
    while (place != kNone && place >= oldest() + size && places.size() < most_voters &&
           num_looked_at < kMostLookedAt) {
      ++num_looked_at;
      if (matches(place, tail, n, size)) places.push_back(place);
      place = before_[(place & mask_) * sizes_.size() + which];
    }
    if (places.empty()) continue;
    found.size = size;
    count(found, std::move(places), most, tail == nullptr);
    break;
  }
  num_looked_at_ += num_looked_at;
  return found;
}

// The vote on each token, of the places (latest first) that agreed so far.
void Occurrences::count(Continuation& found, std::vector<size_t> places, size_t most, bool is_own) const {
  struct Choice {
    uint32_t token, votes;
  };
  std::vector<Choice> choices;
  std::vector<uint32_t> next;
  for (size_t i = 0; i < most; ++i) {
    choices.clear();
    next.clear();
    for (const size_t place : places) {
      size_t at = place + i;
      if (at >= length_) {
        if (!is_own) {
          next.push_back(kBreak);
          continue;
        }
        at = place + i % (length_ - place);
      }
      next.push_back(token(at));
      if (next.back() == kBreak) continue;
      const auto same = [&](const Choice& choice) { return choice.token == next.back(); };
      const auto known = std::find_if(choices.begin(), choices.end(), same);
      if (known == choices.end()) choices.push_back({next.back(), 1});
      else ++known->votes;
    }
    if (choices.empty()) return;
    const auto fewer = [](const Choice& a, const Choice& b) { return a.votes < b.votes; };
    const Choice best = *std::max_element(choices.begin(), choices.end(), fewer);  // the first of equals: the latest
    found.tokens.push_back(best.token);
    found.votes.push_back(best.votes);
    found.voters.push_back(uint32_t(places.size()));
    size_t num_left = 0;
    for (size_t j = 0; j < places.size(); ++j)
      if (next[j] == best.token) places[num_left++] = places[j];
    places.resize(num_left);
  }
}

}  // namespace forerun
