// What the shared library exports: plain C functions, checked and called by library.py.
//
// Every function that can run out of memory returns 0, or kOutOfMemory. Shapes, strides and types are the caller's to
// check. Pointers to numbers are unaligned unless said otherwise.
#pragma once

#include <cstdint>

#define CL_EXPORT extern "C" __attribute__((visibility("default")))

namespace cl {

constexpr int32_t kOutOfMemory = -1;

// Types of numbers, as `library.py` has them.
enum DType : int32_t { kBFloat16 = 0, kFloat32 = 1 };

}  // namespace cl
