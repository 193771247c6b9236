// psd-bench-sparse-files: reading files of sparse examples, in one thread, beside what the machine does with
// the same bytes. Prints one JSON object.

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <sys/types.h>
#include <unistd.h>
#include <zlib.h>

#include "test/bench/bench_program.h"
#include "test/bench/sparse_data.h"
#include "test/support/cpu_time.h"
#include "trainer/dataset/dataset_list.h"
#include "trainer/dataset/epoch_samples.h"

namespace psd::bench {
namespace {

using Json = nlohmann::ordered_json;

/// The median processor time of this process for `work`, which is run once to warm up, then for `seconds`:
/// speeds are those of one core, whatever else the machine does.
template <class Work>
double processorSeconds(double seconds, const Work& work) {
  work();
  std::vector<double> times;
  double all = 0;
  do {
    times.push_back(testing::cpuSeconds(work));
    all += times.back();
  } while (all < seconds);
  std::ranges::sort(times);
  return std::max(times[times.size() / 2], 1e-9);
}

/// A file that is removed at the end.
class File {
 public:
  explicit File(std::string path) : path_(std::move(path)) {}
  ~File() { std::filesystem::remove(path_); }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  const std::string& path() const { return path_; }
  uint64_t bytes() const { return std::filesystem::file_size(path_); }

 private:
  const std::string path_;
};

void writeGzip(const std::string& path, const std::string& text) {
  gzFile file = gzopen(path.c_str(), "wb6");
  const bool written = file != nullptr && gzwrite(file, text.data(), static_cast<unsigned>(text.size())) > 0;
  if (gzclose(file) != Z_OK || !written) throw std::runtime_error(path + ": cannot be written");
}

/// Fills batches with all samples, in the order of an epoch.
void fillEpoch(const Dataset& data, uint64_t epoch) {
  constexpr uint64_t kBatch = 1024;
  EpochSamples samples(1, data, Rank{0}, 1);
  Batch batch;
  for (uint64_t begin = 0; begin < samples.partSize(); begin += kBatch) {
    check(data.fill(samples.take(epoch, begin, std::min(kBatch, samples.partSize() - begin)), batch));
  }
}

/// The bytes are read into a buffer and their lines counted, as wc -l does.
uint64_t countLines(const std::string& path) {
  std::vector<char> buffer(256 << 10);
  std::FILE* const file = std::fopen(path.c_str(), "rb");
  if (file == nullptr) throw std::runtime_error(path + ": cannot be read");
  uint64_t lines = 0;
  for (ssize_t got; (got = ::read(fileno(file), buffer.data(), buffer.size())) > 0;) {
    lines += static_cast<uint64_t>(std::count(buffer.data(), buffer.data() + got, '\n'));
  }
  std::fclose(file);
  return lines;
}

/// Sums the words of a text in memory.
uint64_t sumWords(const std::string& text) {
  uint64_t sum = 0;
  for (size_t at = 0; at + 8 <= text.size(); at += 8) {
    uint64_t word;
    std::memcpy(&word, text.data() + at, 8);
    sum += word;
  }
  return sum;
}

/// The compressed file, decompressed by zlib alone.
void inflateAll(const std::string& path) {
  std::vector<char> buffer(256 << 10);
  gzFile file = gzopen(path.c_str(), "rb");
  if (file == nullptr) throw std::runtime_error(path + ": cannot be read");
  gzbuffer(file, 128 << 10);
  while (gzread(file, buffer.data(), static_cast<unsigned>(buffer.size())) > 0) {
  }
  gzclose(file);
}

volatile uint64_t sink;

int run(int argc, char** argv) {
  uint64_t bytes = 256u << 20;
  double seconds = 1;
  std::string only;
  std::string folder = std::filesystem::temp_directory_path().string();
  CLI::App app("Reads files of sparse examples in one thread.", "psd-bench-sparse-files");
  app.add_option("--size", bytes, "bytes of each text")->check(CLI::Range(uint64_t{1000}, uint64_t{1} << 31));
  app.add_option("--seconds", seconds, "duration of each measurement");
  app.add_option("--folder", folder, "folder for the files");
  app.add_option("--only", only, "a figure to measure, such as criteo_fill; default: all");
  CLI11_PARSE(app, argc, argv);

  Json out;
  const auto add = [&](const std::string& name, uint64_t of, auto&& work) {
    if (!only.empty() && name != only) return;
    out[name + "_bytes_per_s"] = static_cast<double>(of) / processorSeconds(seconds, work);
  };
  const std::string prefix = folder + "/psd-bench-" + std::to_string(getpid()) + "-";
  const auto measure = [&](const std::string& format, const std::string& text) {
    const File plain(prefix + format), compressed(prefix + format + ".gz");
    writeText(plain.path(), text);
    writeGzip(compressed.path(), text);
    const uint64_t size = text.size();
    add(format + "_scan", size, [&] { sink = sumWords(text); });
    add(format + "_lines", size, [&] { sink = countLines(plain.path()); });
    add(format + "_check", size, [&] { openExamples(format, plain.path()); });
    const auto data = openExamples(format, plain.path());
    out[format + "_examples"] = data->sampleCount();
    uint64_t epoch = 0;
    add(format + "_fill", size, [&] { fillEpoch(*data, epoch++); });
    add(format + "_gz_zlib", size, [&] { inflateAll(compressed.path()); });
    add(format + "_gz_check", size, [&] { openExamples(format, compressed.path()); });
    const auto unpacked = openExamples(format, compressed.path());
    add(format + "_gz_fill", size, [&] { fillEpoch(*unpacked, epoch++); });
  };
  measure("criteo", criteoText(bytes));
  measure("libsvm", libsvmText(bytes));
  std::printf("%s\n", out.dump().c_str());
  return 0;
}

}  // namespace
}  // namespace psd::bench

int main(int argc, char** argv) {
  return psd::bench::runProgram("psd-bench-sparse-files", psd::bench::run, argc, argv);
}
