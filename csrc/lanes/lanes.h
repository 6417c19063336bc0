// Sixteen virtual lanes: the vocabulary in which every kernel is written once.
//
// Each instruction set gives the same types and functions, in its own namespace (FORERUN_ISA), with the same results
// bit for bit: every operation is exact (integers) or correctly rounded (IEEE 754 +, -, *, /, sqrt, fma), nothing is
// contracted behind our backs (-ffp-contract=off), and where lanes meet, they meet in one fixed order. A kernel that
// uses only these functions therefore computes the same numbers on every machine.
//
// A kernel's translation unit is compiled once per instruction set. Everything in it must have internal linkage or live
// in FORERUN_ISA: a standard library template that the linker merges could carry AVX-512 code to a machine without.
//
// Types       F32 (16 float), I32 (16 int32), Bytes (64 int8 or uint8, lane i owning bytes 4i .. 4i + 3)
// Memory      load, store, load_i32, store_i32, load_bytes, load_half, load_bf16, widen_u8, widen_i8, prefetch;
//             all unaligned
// Arithmetic  + - * / (F32), + - (I32), fma(a, b, c) = a * b + c, fnma(a, b, c) = c - a * b, min, max, abs,
//             zero_where_below
// Integers    shift_left(I32, count)
// Products    of weights' codes with activations (products_*.h): Sums and its functions for codes below 64, kWideSums,
//             Factors, load_factors and add_scaled for sums that fit 16 bits, Codes8 for codes of 8 bits, Table,
//             load_table and look_up, dot_pairs, widen_pairs, shift_left_each, bits, move_bit, move_two_bits, |,
//             store_bytes, store_i8
// Conversion  to_f32(I32), round_to_i32(F32) to nearest even, from_bits(I32)
// Across      sum(F32), largest(F32): a fixed tree, halves added to halves; pair_totals(I32)
#pragma once

#include <cstddef>
#include <cstdint>

#if defined(FORERUN_LANES_AVX512) || defined(FORERUN_LANES_AVX2) || defined(FORERUN_LANES_NEON)
#define FORERUN_INLINE_MEMBER inline __attribute__((always_inline))
#else  // the compiler's choice: lanes are loops here
#define FORERUN_INLINE_MEMBER inline
#endif
#define FORERUN_INLINE static FORERUN_INLINE_MEMBER
#if defined(__clang__)
#define FORERUN_UNROLL _Pragma("clang loop unroll(full)")
#else
#define FORERUN_UNROLL _Pragma("GCC unroll 8")
#endif
// Some instructions are written out, where gcc 12 allocates registers badly and clang does not. SIMDe, which stands in
// for AVX-512 on machines without it, needs them as intrinsics: it is compiled with FORERUN_NO_ASSEMBLY.
#if !defined(__clang__) && !defined(FORERUN_NO_ASSEMBLY)
#define FORERUN_ASSEMBLY
#endif

#if defined(FORERUN_LANES_AVX512)
#include "lanes/avx512.h"
#include "lanes/products_avx512.h"
#elif defined(FORERUN_LANES_AVX2)
#include "lanes/avx2.h"
#if defined(FORERUN_LANES_AVX2VNNI)
#include "lanes/products_avx2vnni.h"
#else
#include "lanes/products_avx2.h"
#endif
#elif defined(FORERUN_LANES_NEON)
#include "lanes/neon.h"
#include "lanes/products_neon.h"
#else
#include "lanes/portable.h"
#include "lanes/products_portable.h"
#endif

#include "lanes/math.h"
