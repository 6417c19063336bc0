#pragma once

namespace forerun::FORERUN_ISA {
namespace {

void attend(const AttentionJob&) {}

}  // namespace
}  // namespace forerun::FORERUN_ISA
