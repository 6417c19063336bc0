#include "decoder/rotary.h"

#include <algorithm>

namespace forerun {

namespace {

// Taylor series on |r| <= pi / 4, far enough that the next term is below 2^-55 of the result.
double series(double square, const double* terms, int count) {
  double sum = terms[0];
  for (int i = 1; i < count; ++i) sum = sum * square + terms[i];
  return sum;
}

constexpr double kSines[] = {-7.647163731819816e-13, 1.6059043836821613e-10, -2.505210838544172e-08,
                             2.7557319223985893e-06, -1.984126984126984e-04, 8.333333333333333e-03,
                             -1.6666666666666666e-01};
constexpr double kCosines[] = {4.779477332387385e-14,  -1.1470745597729725e-11, 2.08767569878681e-09,
                               -2.755731922398589e-07, 2.48015873015873e-05,    -1.388888888888889e-03,
                               4.1666666666666664e-02};

}  // namespace

void cos_sin(double x, double* cos, double* sin) {
  // Cody and Waite: pi / 2 in three parts, the first two with so few bits that their products with `quarter` are exact.
  const double nearest = x * 0.6366197723675814 + 6755399441055744.0;  // 1.5 * 2^52 rounds to an integer
  const double quarter = nearest - 6755399441055744.0;
  const int64_t turn = int64_t(quarter);
  const double first = x - quarter * 1.570796251296997;
  const double r = (first - quarter * 7.549789415861596e-08) - quarter * 5.390302858158119e-15;
  const double square = r * r;
  const double s = r + r * square * series(square, kSines, 7);
  const double c = 1.0 - (0.5 * square - square * square * series(square, kCosines, 7));
  switch (turn & 3) {
    case 0: *cos = c, *sin = s; break;
    case 1: *cos = -s, *sin = c; break;
    case 2: *cos = -c, *sin = -s; break;
    default: *cos = s, *sin = -c; break;
  }
}

void Rotary::reach(int64_t num_positions) {
  const size_t half = frequencies_.size();
  if (half == 0 || num_positions <= 0) return;
  const size_t have = values_.size() / (2 * half);
  if (size_t(num_positions) <= have) return;
  const size_t wanted = std::max(size_t(num_positions), have + have / 2);
  values_.resize(wanted * 2 * half);
  for (size_t position = have; position < wanted; ++position)
    for (size_t i = 0; i < half; ++i) {
      double cos, sin;
      cos_sin(double(position) * frequencies_[i], &cos, &sin);
      float* to = values_.data() + position * 2 * half + i;
      to[0] = float(cos) * scale_;
      to[half] = float(sin) * scale_;
    }
}

}  // namespace forerun
