// psd-fuzz-seeds DIR: writes the seeds of every target into DIR/TARGET, as libFuzzer's initial corpus.

#include <cstdio>
#include <filesystem>
#include <fstream>

#include <spdlog/spdlog.h>

#include "test/fuzz/fuzz_list.h"

int main(int count, char** words) {
  if (count != 2) {
    std::fputs("psd-fuzz-seeds DIR\n", stderr);
    return 2;
  }
  spdlog::set_level(spdlog::level::off);
  for (const psd::fuzz::FuzzTarget* target : psd::fuzz::kFuzzTargets) {
    const std::filesystem::path folder = std::filesystem::path(words[1]) / target->name;
    std::filesystem::create_directories(folder);
    size_t number = 0;
    for (const std::string& seed : target->seeds()) {
      std::ofstream file(folder / ("seed-" + std::to_string(number++)), std::ios::binary);
      if (!file.write(seed.data(), static_cast<std::streamsize>(seed.size()))) {
        std::fprintf(stderr, "psd-fuzz-seeds: cannot write to %s\n", folder.c_str());
        return 1;
      }
    }
  }
  return 0;
}
