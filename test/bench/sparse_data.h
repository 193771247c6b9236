#pragma once

#include <cstdint>
#include <cstdio>
#include <fstream>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

#include "trainer/dataset/dataset_list.h"
#include "trainer/dataset/random.h"
#include "trainer/dataset/zipf.h"

namespace psd::bench {

/// Lines of Criteo's form: 13 numbers, of which about one in five is missing, and 26 categories, of which one
/// in ten is. Numbers and categories have Zipf's distribution.
inline std::string criteoText(uint64_t bytes) {
  std::string text;
  Random random(1);
  const Zipf numbers(100'000), categories(1'000'000);
  while (text.size() < bytes) {
    text += random.below(4) == 0 ? '1' : '0';
    for (int i = 0; i < 13; ++i) {
      text += '\t';
      if (random.below(5) != 0) text += std::to_string(numbers.draw(random));
    }
    for (uint32_t i = 0; i < 26; ++i) {
      text += '\t';
      if (random.below(10) == 0) continue;
      char hex[9];
      std::snprintf(hex, sizeof hex, "%08x",
                    static_cast<uint32_t>(splitMix(categories.draw(random) * 26 + i)));
      text += hex;
    }
    text += '\n';
  }
  return text;
}

/// Lines of libsvm with 39 features.
inline std::string libsvmText(uint64_t bytes) {
  std::string text;
  Random random(1);
  const Zipf ids(100'000'000);
  while (text.size() < bytes) {
    text += random.below(4) == 0 ? "1" : "-1";
    for (int i = 0; i < 39; ++i) {
      text += " " + std::to_string(ids.draw(random)) + ":0." + std::to_string(1000 + random.below(9000));
    }
    text += '\n';
  }
  return text;
}

inline void check(const Status& status) {
  if (!status.ok()) throw std::runtime_error(status.message());
}

/// The examples of a file, none held out.
inline std::unique_ptr<Dataset> openExamples(const std::string& format, const std::string& path) {
  auto opened = openDataset(format + ":" + path + ":test=" + path, Split::train, {});
  check(opened.status());
  return std::move(*opened);
}

inline void writeText(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file.write(text.data(), static_cast<std::streamsize>(text.size()));
  if (!file.flush()) throw std::runtime_error(path + ": cannot be written");
}

}  // namespace psd::bench
