#include "server/store/rows/row_index.h"

#include <bit>
#include <cmath>
#include <new>
#include <utility>

#include "common/os/huge_pages.h"

namespace psd {
namespace {

constexpr uint64_t kBlockBytesMax = uint64_t{64} << 20;

uint32_t shiftOf(HashRange range) {
  return std::min(63u, static_cast<uint32_t>(std::countl_zero(range.last - range.first)));
}

}  // namespace

RowIndex::Directory::Directory(uint32_t bits)
    : depth(bits), segments(std::make_unique<SegmentPointer[]>(size())) {}

RowIndex::RowIndex(HashRange range, std::shared_ptr<Epochs> epochs)
    : range_(range),
      shift_(shiftOf(range)),
      epochs_(std::move(epochs)),
      directory_(nullptr),
      owned_(std::make_unique<Directory>(0)) {
  directory_.store(owned_.get(), std::memory_order_release);
  bytes_.store(owned_->bytes(), std::memory_order_relaxed);
}

RowIndex::~RowIndex() = default;

uint32_t RowIndex::find(uint64_t id) const {
  const uint64_t hash = rowHash(id);
  const RowSegment* const segment = segmentAt(placeOf(hash));
  return segment == nullptr ? kNoRow : segment->find(hash, id);
}

void RowIndex::lookUp(std::span<const uint64_t> later, Probes& laterProbes, std::span<const uint64_t> ids,
                      Probes& probes) const {
  const Directory& directory = *directory_.load(std::memory_order_acquire);
  laterProbes.count = static_cast<uint32_t>(later.size());
  for (size_t i = 0; i < std::max(later.size(), ids.size()); ++i) {
    if (i < later.size()) {
      const uint64_t hash = rowHash(later[i]);
      const RowSegment* const segment =
          directory.segments[directory.indexOf(placeOf(hash))].load(std::memory_order_acquire);
      laterProbes.hashes[i] = hash;
      laterProbes.segments[i] = segment;
      if (segment != nullptr) __builtin_prefetch(&segment->lines[RowSegment::lineOf(hash)]);
    }
    if (i < ids.size()) {
      const RowSegment* const segment = probes.segments[i];
      probes.rows[i] = segment == nullptr ? kNoRow : segment->find(probes.hashes[i], ids[i]);
    }
  }
}

uint64_t RowIndex::findBatch(std::span<const uint64_t> ids, std::span<uint32_t> rows) const {
  uint64_t known = 0;
  pipeline(ids, [&](uint64_t first, std::span<const uint32_t> found, std::span<const uint32_t>) {
    for (size_t i = 0; i < found.size(); ++i) {
      rows[first + i] = found[i];
      known += found[i] != kNoRow ? 1 : 0;
    }
  });
  return known;
}

uint32_t RowIndex::insert(uint64_t id, uint32_t row) {
  const uint64_t hash = rowHash(id), place = placeOf(hash);
  while (true) {
    RowSegment* const segment = segmentAt(place);
    if (segment == nullptr) {
      RowSegment* const first = newSegment(0);
      if (first == nullptr) return kNoRow;
      owned_->segments[0].store(first, std::memory_order_release);
      continue;
    }
    if (const uint32_t known = segment->find(hash, id); known != kNoRow) return known;
    if (segment->entries < RowSegment::kEntriesMax) {
      segment->add(hash, id, row);
      entries_.fetch_add(1, std::memory_order_relaxed);
      return row;
    }
    if (!split(place)) return kNoRow;
  }
}

bool RowIndex::split(uint64_t place) {
  RowSegment* const segment = segmentAt(place);
  const uint32_t depth = segment->depth;
  if (depth == kDepthMax) return false;
  RowSegment* const low = newSegment(depth + 1);
  RowSegment* const high = low == nullptr ? nullptr : newSegment(depth + 1);
  if (high == nullptr) {
    if (low != nullptr) freeSegment(low);
    return false;
  }
  segment->forEach([&](uint64_t id, uint32_t row) {
    const uint64_t hash = rowHash(id);
    const bool upper = (placeOf(hash) >> (63 - depth) & 1) != 0;
    (upper ? high : low)->add(hash, id, row);
  });
  if (depth == owned_->depth) doubleDirectory();
  replace(place, low, high);
  retire(segment);
  splits_.fetch_add(1, std::memory_order_relaxed);
  return true;
}

void RowIndex::doubleDirectory() {
  auto doubled = std::make_unique<Directory>(owned_->depth + 1);
  for (uint64_t i = 0; i < doubled->size(); ++i) {
    doubled->segments[i].store(owned_->segments[i / 2].load(std::memory_order_relaxed),
                               std::memory_order_relaxed);
  }
  bytes_.fetch_add(doubled->bytes(), std::memory_order_relaxed);
  directory_.store(doubled.get(), std::memory_order_release);
  retiredDirectories_.add(*epochs_, std::exchange(owned_, std::move(doubled)));
}

void RowIndex::replace(uint64_t place, RowSegment* low, RowSegment* high) {
  // The directory entries of the previous segment: those that agree with `place` in its bits.
  const uint32_t depth = low == high ? low->depth : low->depth - 1;
  const uint64_t count = uint64_t{1} << (owned_->depth - depth);
  const uint64_t begin = owned_->indexOf(place) / count * count;
  for (uint64_t i = 0; i < count; ++i) {
    owned_->segments[begin + i].store(i < count / 2 ? low : high, std::memory_order_release);
  }
}

bool RowIndex::erase(std::span<const uint64_t> ids, std::vector<uint32_t>& rows) {
  std::vector<RowEntry> wanted;
  for (const uint64_t id : ids) {
    const uint32_t row = find(id);
    if (row != kNoRow) wanted.push_back({rowHash(id), id, row});
  }
  const auto before = [](const RowEntry& a, const RowEntry& b) { return a.hash < b.hash; };
  std::sort(wanted.begin(), wanted.end(), before);
  wanted.erase(std::unique(wanted.begin(), wanted.end()), wanted.end());
  for (size_t first = 0; first < wanted.size();) {
    const uint64_t place = placeOf(wanted[first].hash);
    const std::optional<uint64_t> behind = hashAfter(place, segmentAt(place)->depth);
    size_t end = first + 1;
    while (end < wanted.size() && (!behind || wanted[end].hash < *behind)) ++end;
    if (!eraseFrom(place, std::span(wanted).subspan(first, end - first), rows)) return false;
    first = end;
  }
  return true;
}

bool RowIndex::eraseFrom(uint64_t place, std::span<const RowEntry> entries, std::vector<uint32_t>& rows) {
  RowSegment* const segment = segmentAt(place);
  RowSegment* const rest = newSegment(segment->depth);
  if (rest == nullptr) return false;
  segment->forEach([&](uint64_t id, uint32_t row) {
    const uint64_t hash = rowHash(id);
    const auto found = std::lower_bound(entries.begin(), entries.end(), hash,
                                        [](const RowEntry& entry, uint64_t h) { return entry.hash < h; });
    if (found == entries.end() || found->hash != hash) rest->add(hash, id, row);
  });
  replace(place, rest, rest);
  retire(segment);
  for (const RowEntry& entry : entries) rows.push_back(entry.row);
  entries_.fetch_sub(entries.size(), std::memory_order_relaxed);
  return true;
}

std::optional<uint64_t> RowIndex::hashAfter(uint64_t place, uint32_t depth) const {
  if (depth == 0) return std::nullopt;
  const uint64_t behind = ((place >> (64 - depth)) + 1) << (64 - depth);
  if (behind == 0) return std::nullopt;
  const uint64_t roundUp = shift_ == 0 ? 0 : (uint64_t{1} << shift_) - 1;
  const uint64_t distance = (behind >> shift_) + ((behind & roundUp) != 0 ? 1 : 0);
  if (distance > range_.last - range_.first) return std::nullopt;
  return range_.first + distance;
}

void RowIndex::next(RowCursor& cursor, std::vector<RowEntry>& out) const {
  do {
    next(cursor, out, {});
  } while (out.empty() && !cursor.ended);
}

void RowIndex::next(RowCursor& cursor, std::vector<RowEntry>& out, const RowFilter& keep) const {
  nextUnsorted(cursor, out);
  if (keep) std::erase_if(out, [&](const RowEntry& entry) { return !keep(entry); });
  std::sort(out.begin(), out.end(), [](const RowEntry& a, const RowEntry& b) { return a.hash < b.hash; });
}

void RowIndex::nextUnsorted(RowCursor& cursor, std::vector<RowEntry>& out) const {
  out.clear();
  if (cursor.ended) return;
  cursor.hash = std::max(cursor.hash, range_.first);
  const uint64_t place = placeOf(cursor.hash);
  const RowSegment* const segment = segmentAt(place);
  if (segment == nullptr) {
    cursor.ended = true;
    return;
  }
  segment->forEach([&](uint64_t id, uint32_t row) {
    const RowEntry entry{rowHash(id), id, row};
    if (entry.hash >= cursor.hash) out.push_back(entry);
  });
  const std::optional<uint64_t> behind = hashAfter(place, segment->depth);
  cursor.ended = !behind;
  if (behind) cursor.hash = *behind;
}

bool RowIndex::reserve(uint64_t entries) {
  // Hashes fill segments evenly, within a few percent: hardly any splits before most are nearly full.
  constexpr double kMostlyFull = 0.94 * RowSegment::kEntriesMax;
  const double covered = std::ldexp(static_cast<double>(range_.last - range_.first) + 1, shift_ - 64);
  const double least = static_cast<double>(entries) / kMostlyFull;
  double wanted = covered;
  while (wanted < least) wanted *= 2;
  const uint64_t inSplit = 2;
  const auto needed = static_cast<uint64_t>(std::ceil(wanted)) + inSplit;
  const uint64_t there = segments() + free_.size();
  return needed <= there || mapSegments(needed - there, true);
}

RowSegment* RowIndex::newSegment(uint32_t depth) {
  collect();
  if (free_.empty() && !mapSegments(1, false)) return nullptr;
  auto* const segment = new (free_.back()) RowSegment;
  free_.pop_back();
  segment->depth = depth;
  segments_.fetch_add(1, std::memory_order_relaxed);
  bytes_.fetch_add(sizeof(RowSegment), std::memory_order_relaxed);
  return segment;
}

void RowIndex::freeSegment(RowSegment* segment) {
  free_.push_back(reinterpret_cast<std::byte*>(segment));
  segments_.fetch_sub(1, std::memory_order_relaxed);
  bytes_.fetch_sub(sizeof(RowSegment), std::memory_order_relaxed);
}

void RowIndex::retire(RowSegment* segment) { retiredSegments_.add(*epochs_, segment); }

void RowIndex::collect() {
  while (const auto segment = retiredSegments_.take(*epochs_)) freeSegment(*segment);
  while (const auto directory = retiredDirectories_.take(*epochs_)) {
    bytes_.fetch_sub((*directory)->bytes(), std::memory_order_relaxed);
  }
}

uint64_t RowIndex::mappedBytes() const {
  uint64_t bytes = 0;
  for (const MappedBlock& block : blocks_) bytes += block.bytes();
  return bytes;
}

bool RowIndex::mapSegments(uint64_t count, bool touched) {
  const uint64_t bytes =
      std::max(count * sizeof(RowSegment), std::clamp(this->bytes() / 8, kHugePageBytes, kBlockBytesMax));
  auto block =
      MappedBlock::map(bytes, blocks_.empty() ? MappedBlock::Pages::smallAtFirst : MappedBlock::Pages::huge);
  if (!block) return false;
  if (touched) block->touch(block->bytes());
  const uint64_t places = block->bytes() / sizeof(RowSegment);
  for (uint64_t i = places; i-- > 0;) free_.push_back(block->data() + i * sizeof(RowSegment));
  blocks_.push_back(std::move(*block));
  return true;
}

}  // namespace psd
