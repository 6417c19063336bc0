// What GGUF files store, and its values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace forerun {

// Names as GGML has them ("Q4_K").
enum class Stored : uint8_t {
  kF32, kF16, kBF16, kQ4_0, kQ4_1, kQ5_0, kQ5_1, kQ8_0, kQ2_K, kQ3_K, kQ4_K, kQ5_K, kQ6_K, kIQ4_NL, kIQ4_XS, kMXFP4
};

// Throws std::invalid_argument for a name that is none.
Stored stored_named(const std::string& name);
// Throws std::invalid_argument where a row of `num_inputs` weights cannot be stored so.
size_t stored_row_bytes(Stored stored, size_t num_inputs);
// One row of stored weights as float32, bit for bit as the gguf package has it.
void decode_row(Stored stored, const uint8_t* row, size_t num_inputs, float* to);

}  // namespace forerun
