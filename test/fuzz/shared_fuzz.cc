// The header of a shared-memory file of versions.

#include "server/publish/shared_layout.h"
#include "test/fuzz/fuzz_list.h"

namespace psd::fuzz {
namespace {
namespace shared_fuzz {

constexpr uint64_t kCapacity = 3 * SharedHeader::kGrain, kFileBytes = SharedHeader::kGrain + 2 * kCapacity;

void run(Bytes input) {
  const auto header = readSharedHeader(input, kFileBytes);
  if (!header.ok()) return;
  for (const uint64_t at : header->slotAt) {
    require(at >= sizeof(SharedHeader) && at + header->capacity <= kFileBytes, "a slot is in the file");
  }
  require(header->slotAt[0] + header->capacity <= header->slotAt[1], "slots do not overlap");
  require(header->generation == 0 || header->active().bytes <= header->capacity, "an image is in its slot");
}

std::vector<std::string> seeds() {
  SharedHeader header = SharedHeader::ofCapacity(kCapacity);
  const auto text = [&] {
    const auto bytes = std::as_bytes(std::span(&header, 1));
    return std::string(textOf(bytes));
  };
  std::vector<std::string> all{text()};
  header.generation = 5;
  header.slots[1] = {5, 12, 7, 1000, {}};
  all.push_back(text());
  return all;
}

}  // namespace shared_fuzz
}  // namespace

const FuzzTarget kSharedTarget{"shared", "the header of a shared-memory file", shared_fuzz::run,
                               shared_fuzz::seeds};

}  // namespace psd::fuzz
