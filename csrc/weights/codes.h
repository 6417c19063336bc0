// One row's block of up to 256 weights as codes and scales: the form between what a file stores and what a tile holds.
#pragma once

#include "weights/packed.h"
#include "weights/stored.h"

namespace forerun {

// Which fields count depends on the layout (packed.h has the formulas).
struct Codes {
  uint8_t code[kBlock];                   // unsigned, offset included
  uint16_t d[kGroupsOfBlock];             // float16; K layouts and kIQ4XS: d[0]; kMXFP4: e
  uint16_t minimum[kGroupsOfBlock];       // m; K layouts: dmin in minimum[0]
  uint8_t scale[2 * kGroupsOfBlock];      // sc by group or by 16 inputs
  uint8_t min_scale[2 * kGroupsOfBlock];  // mn likewise
};

Layout layout_of(Stored stored);
const char* name_of(Layout layout);
// Bytes of `num_groups` groups of a row in a file; the K formats only know whole blocks.
size_t stored_bytes(Layout layout, size_t num_groups);

void read_stored(Layout layout, const uint8_t* stored, size_t num_groups, Codes& to);         // blocks.cpp
void decode(Layout layout, const Codes& codes, size_t num_groups, float* to);                 // decode.cpp
void write_tile(Layout layout, const Codes& codes, size_t num_groups, size_t lane, uint8_t* tile);  // tiles.cpp
void read_tile(Layout layout, const uint8_t* tile, size_t num_groups, size_t lane, Codes& to);      // tiles.cpp
// Weights as codes of Q8_0 (a group with a NaN or an infinity has NaN for its scale). rounding.cpp
void round_to_q8_0(const float* weights, size_t num_groups, Codes& to);
// [up to 256 inputs][16 lanes] weights, which are overwritten, as a tile of kQ4K, the last block of a row cut where it
// must be. requantise.cpp
void requantise_block(float* weights, size_t num_groups, size_t lanes, uint8_t* tile);

}  // namespace forerun
