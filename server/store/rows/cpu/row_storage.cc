#include "server/store/rows/row_storage.h"

#include <algorithm>

#include "server/store/rows/cpu/row_loops.h"
#include "server/store/rows/row_arena.h"

namespace psd {
namespace {

constexpr uint32_t kCpuBatchRows = 32;

/// Rows in host memory. Thread-safe as RowStorage requires.
class CpuRowStorage : public RowStorage {
 public:
  CpuRowStorage(uint32_t dim, const Optimizer& optimizer)
      : layout_(dim, optimizer.slots()), optimizer_(optimizer), arena_(layout_) {}

  const RowLayout& layout() const override { return layout_; }
  const Optimizer& optimizer() const override { return optimizer_; }
  void setOptimizer(const Optimizer& optimizer) override { optimizer_ = optimizer; }

  uint32_t batchRows() const override { return kCpuBatchRows; }

  Status open(uint32_t chunk, bool touched) override { return arena_.open(chunk, touched); }
  void close(uint32_t chunk) override { arena_.close(chunk); }

  void gather(Rows rows, std::span<float> out, Rows next) const override {
    racyGatherRows(arena_.places(), layout_.dim(), rows, out.data(), next);
  }

  void create(Rows rows, std::span<const uint64_t> ids, const RowInitial& initial) override {
    const uint32_t dim = layout_.dim();
    const RowArena::Places places = arena_.places();
    for (size_t i = 0; i < rows.size(); ++i) {
      initial.fill(ids[i], {places.row(rows[i]), dim});
      for (uint32_t plane = 1; plane < layout_.planeCount(); ++plane) {
        std::fill_n(planeOf(places, plane, rows[i]), layout_.width(plane),
                    layout_.slots()[plane - 1].initialValue);
      }
    }
  }

  void apply(Rows rows, std::span<const float> gradients, const RowUpdate& update, Rows next) override {
    racyApplyRows(optimizer_, update, layout_, arena_.places(), rows, gradients.data(), next);
  }

  void readPlane(uint32_t plane, Rows rows, std::span<float> out) const override {
    const uint32_t width = layout_.width(plane);
    const RowArena::Places places = arena_.places();
    for (size_t i = 0; i < rows.size(); ++i) {
      racyCopyRow(width, planeOf(places, plane, rows[i]), out.data() + i * width);
    }
  }

  void writePlane(uint32_t plane, Rows rows, std::span<const float> values) override {
    const uint32_t width = layout_.width(plane);
    const RowArena::Places places = arena_.places();
    for (size_t i = 0; i < rows.size(); ++i) {
      racyCopyRow(width, values.data() + i * width, planeOf(places, plane, rows[i]));
    }
  }

 private:
  float* planeOf(const RowArena::Places& places, uint32_t plane, uint32_t row) const {
    const uint64_t before = uint64_t{places.inChunk(row)} * layout_.planeStride(plane);
    return places.chunk(row) + layout_.planeBegin(plane) + before;
  }

  const RowLayout layout_;
  Optimizer optimizer_;
  RowArena arena_;
};

}  // namespace

std::unique_ptr<RowStorage> makeCpuRowStorage(uint32_t dim, const Optimizer& optimizer) {
  return std::make_unique<CpuRowStorage>(dim, optimizer);
}

}  // namespace psd
