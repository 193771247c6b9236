// libFuzzer's entry into the target that PSD_FUZZ_TARGET names.

#include <spdlog/spdlog.h>

#include "test/fuzz/fuzz_list.h"

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  spdlog::set_level(spdlog::level::off);
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  psd::fuzz::PSD_FUZZ_TARGET.run(std::as_bytes(std::span(data, size)));
  return 0;
}
