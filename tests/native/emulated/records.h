// What the harness computes is written down as records: a name and bytes, in an order that is the same everywhere.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/pool.h"
#include "weights/stored.h"

namespace emulated {

// Random numbers in plain arithmetic. `restart` begins anew, so that each part has the same inputs whatever ran before.
void restart();
uint64_t bits64();
size_t below(size_t n);
float uniform();
float normal();                 // about normal: no library, whose rounding differs from system to system
float any_float(bool with_nans);  // of random bits
std::vector<float> normals(size_t n, float scale = 1.0f);

// NaNs are written as one and the same: their payloads are the processor's affair.
void put(const std::string& name, const void* data, size_t size);
void put_floats(const std::string& name, const float* data, size_t n);
void put_doubles(const std::string& name, const double* data, size_t n);
inline void put_double(const std::string& name, double x) { put_doubles(name, &x, 1); }

struct Format {
  const char* name;
  forerun::Stored stored;
  size_t inputs, bytes;        // of a block
  std::vector<size_t> halves;  // where a block has float16 scales
};
const std::vector<Format>& formats();
// [outputs, inputs] stored weights. Kinds: 0 all codes alike, 1 codes at the ends of their range, 2 extreme scales.
std::vector<uint8_t> random_stored(const Format& format, size_t outputs, size_t inputs, int kind);

// The parts.
void products(forerun::Pool& pool);
void layers(forerun::Pool& pool);
void attention(forerun::Pool& pool);
void rows(forerun::Pool& pool);
void decoders(forerun::Pool& pool);

}  // namespace emulated
