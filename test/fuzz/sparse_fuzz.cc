// Files of sparse examples, plain and compressed.

#include <numeric>

#include "test/fuzz/fuzz_list.h"
#include "test/support/gzip.h"
#include "test/support/temp_dir.h"
#include "trainer/dataset/dataset_list.h"

namespace psd::fuzz {
namespace {
namespace sparse_fuzz {

void checkSamples(const Dataset& data) {
  std::vector<uint32_t> all(data.sampleCount());
  std::iota(all.begin(), all.end(), 0u);
  Batch batch;
  require(data.fill(all, batch).ok(), "what was checked can be read");
  require(batch.size() == all.size(), "the batch has every example");
  for (const int64_t label : batch.values<int64_t>("label"))
    require(label == 0 || label == 1, "labels are 0 or 1");
  const auto values = batch.values<float>("values");
  const auto finite = [](float value) { return value - value == 0; };
  for (const float value : values) require(finite(value), "values are finite");
  require(batch.values<int64_t>("ids").size() == values.size(), "each value has an id");
}

/// Input: the format (1 byte: l, L, c or C; capitals for compressed files), the file.
void run(Bytes input) {
  if (input.empty()) return;
  const char kind = static_cast<char>(input[0]);
  const testing::TempDir folder;
  const std::string file = folder.file(kind == 'L' || kind == 'C' ? "a.gz" : "a");
  testing::writeFile(file, std::string(reinterpret_cast<const char*>(input.data()) + 1, input.size() - 1));
  const std::string format = kind == 'l' || kind == 'L' ? "libsvm:" : "criteo:";
  const auto data = openDataset(format + file + ":test=" + file, Split::train, {.badLines = 10});
  if (data.ok()) checkSamples(**data);
}

std::vector<std::string> seeds() {
  const std::string libsvm =
      "+1 1:0.5 18446744073709551615:-2e3\n-1 # none\n0 7:.25 8:12345678901234567890\n";
  std::string criteo = "1\t5\t-2";
  for (int i = 0; i < 11; ++i) criteo += "\t12345678901";
  for (int i = 0; i < 26; ++i)
    criteo += i % 3 == 0 ? "\t" : i % 3 == 1 ? "\t68fd1e64" : "\tlonger than eight";
  criteo += "\n";
  return {"l" + libsvm, "c" + criteo, "L" + testing::gzip(libsvm) + testing::gzip("1 1:1"),
          "C" + testing::gzip(criteo + criteo)};
}

}  // namespace sparse_fuzz
}  // namespace

const FuzzTarget kSparseTarget{"sparse", "files of sparse examples: libsvm, Criteo's logs, compressed ones",
                               sparse_fuzz::run, sparse_fuzz::seeds};

}  // namespace psd::fuzz
