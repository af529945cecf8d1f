// Stands in for libcuda: the driver's entry points over emulated kernels, so that the launcher's loading, look-up,
// packing of arguments and choice of grid are what is tested. The kernel's source is KERNEL_SOURCE.
#define CUDA_EMULATION
#include "shim.h"

#include KERNEL_SOURCE

#include <map>
#include <string>
#include <utility>

namespace {
using Launcher = std::function<void(void**)>;

template <class... Arguments, size_t... I>
void call(void (*kernel)(Arguments...), void** packed, std::index_sequence<I...>) {
  kernel(*reinterpret_cast<std::decay_t<Arguments>*>(packed[I])...);
}

template <class... Arguments>
Launcher wrap(void (*kernel)(Arguments...)) {
  return [kernel](void** packed) { call(kernel, packed, std::index_sequence_for<Arguments...>{}); };
}

std::map<std::string, Launcher>& kernels() {
  static std::map<std::string, Launcher> held = {{"paged_decode", wrap(paged_decode)},
                                                 {"reduce_splits", wrap(reduce_splits)}};
  return held;
}
constexpr int kInvalidValue = 1, kInvalidImage = 200, kNotFound = 500;
}  // namespace

extern "C" {
int cuModuleLoadData(void** module, const void* image) {
  if (image == nullptr || memcmp(image, "\x7f" "ELF", 4) != 0) return kInvalidImage;
  *module = &kernels();
  return 0;
}

int cuModuleGetFunction(void** function, void* module, const char* name) {
  if (module != &kernels()) return kInvalidValue;
  auto found = kernels().find(name);
  if (found == kernels().end()) return kNotFound;
  *function = &found->second;
  return 0;
}

int cuGetErrorString(int, const char** text) {
  *text = "told by the stand-in";
  return 0;
}

int cuLaunchKernel(void* function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                   unsigned shared_bytes, void* stream, void** arguments, void** extra) {
  if (!gx || !gy || !gz || !bx || by != 1 || bz != 1 || bx > 1024 || shared_bytes || stream || extra)
    return kInvalidValue;
  Launcher& kernel = *static_cast<Launcher*>(function);
  emulation::launch({int(gx), int(gy), int(gz)}, int(bx), [&] { kernel(arguments); });
  return 0;
}
}
