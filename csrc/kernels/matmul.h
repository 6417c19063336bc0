#pragma once

namespace forerun::FORERUN_ISA {
namespace {

void multiply_panel(const MatrixView&, size_t, const RowsView&, float*, size_t) {}

}  // namespace
}  // namespace forerun::FORERUN_ISA
