// The natural logarithm in plain arithmetic: the same bits everywhere, which a library's does not promise.
#pragma once

#include <cstdint>
#include <cstring>

namespace forerun {

// Of a positive normal number, to about 1 ulp (also close to 1).
// x = 2^e m, 1/sqrt 2 <= m < sqrt 2; log m = 2 artanh s = 2 (s + s^3 / 3 + ... + s^19 / 19), s = (m - 1) / (m + 1): the
// terms left out are below 3e-17 of the sum.
inline double natural_log(double x) {
  uint64_t bits;
  std::memcpy(&bits, &x, 8);
  const uint64_t shifted = bits - 0x3FE6A09E667F3BCD;  // 1 / sqrt 2
  const int64_t exponent = int64_t(shifted) >> 52;
  bits -= uint64_t(exponent) << 52;
  double m;
  std::memcpy(&m, &bits, 8);
  const double f = m - 1.0, s = f / (f + 2.0), z = s * s;
  double series = 1.0 / 19;
  for (int odd = 17; odd >= 3; odd -= 2) series = series * z + 1.0 / odd;
  // 2 s = f - s f, and f is exact: what is rounded is a small correction to it.
  const double correction = s * (f - 2.0 * z * series);
  const double e = double(exponent);
  return e * 0.6931471805601177 + (f - (correction - e * -1.7239444525614835e-13));
}

}  // namespace forerun
