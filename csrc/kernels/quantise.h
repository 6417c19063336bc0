#pragma once

namespace forerun::FORERUN_ISA {
namespace {

void quantise_rows(const float*, size_t, const RowsView&, size_t, size_t) {}

}  // namespace
}  // namespace forerun::FORERUN_ISA
