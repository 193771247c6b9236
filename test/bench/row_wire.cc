#include <algorithm>
#include <memory>
#include <random>
#include <stdexcept>
#include <vector>

#include "common/types/split_mix.h"
#include "server/store/rows/row_table.h"
#include "test/bench/references.h"
#include "trainer/bench/zipf.h"

namespace psd::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint64_t kPieceRows = 2048;  // gathered, then sent, while they are in the cache

/// A request of the near end, followed by the ids, and for a push by the gradients. The answer to a push is
/// one byte.
struct RowsAsked {
  uint64_t direction;
  uint64_t ids;
};

/// Memory shared by both processes: ids, then values.
class Shared {
 public:
  Shared(uint64_t ids, uint32_t dim) : ids_((ids + 15) / 16 * 16), bytes_(ids_ * (8 + dim * sizeof(float))) {
    data_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (data_ == MAP_FAILED) throw std::bad_alloc();
    std::fill_n(static_cast<char*>(data_), bytes_, 0);
  }
  ~Shared() { munmap(data_, bytes_); }
  Shared(const Shared&) = delete;
  Shared& operator=(const Shared&) = delete;

  uint64_t* ids() const { return static_cast<uint64_t*>(data_); }
  float* values() const { return reinterpret_cast<float*>(ids() + ids_); }

 private:
  uint64_t ids_, bytes_;
  void* data_;
};

uint64_t idOf(uint64_t row) { return splitMix(row * kSplitMixStep); }

std::span<char> bytesOf(float* values, uint64_t count) {
  return {reinterpret_cast<char*>(values), count * sizeof(float)};
}

/// The far end: holds a table and serves until the stream ends.
class RowServer {
 public:
  RowServer(const RowWireOptions& options, const Shared& shared, int fd)
      : options_(options), shared_(shared), fd_(fd), piece_(kPieceRows * options.dim * sizeof(float)) {
    Optimizer optimizer;
    optimizer.algorithm = Sgd();
    table_ = std::make_unique<RowTable>(RowTable::Options{}, makeCpuRowStorage(options.dim, optimizer),
                                        std::make_shared<Epochs>());
    std::vector<uint64_t> ids;
    for (uint64_t row = 0; row < options.rows; ++row) ids.push_back(idOf(row));
    if (!table_->insertMissing(ids, Version{1}).ok()) throw std::bad_alloc();
    sendValue(fd, char{1});
  }

  void serve() {
    RowsAsked request{};
    while (receiveValue(fd_, request)) {
      const bool pulls = request.direction == static_cast<uint64_t>(Direction::pull);
      if (options_.ring) {
        const std::span<const uint64_t> ids(shared_.ids(), request.ids);
        const std::span<float> values(shared_.values(), request.ids * options_.dim);
        pulls ? static_cast<void>(table_->gather(ids, values)) : apply(ids, values);
        sendValue(fd_, char{1});
      } else if (!serveStream(request.ids, pulls)) {
        return;
      }
    }
  }

 private:
  void apply(std::span<const uint64_t> ids, std::span<const float> gradients) {
    table_->apply(ids, gradients, {}, {.number = ++updates_, .learningRate = 1e-2}, true, Version{updates_});
  }
  bool serveStream(uint64_t count, bool pulls) {
    ids_.resize(count);
    if (!receiveAll(fd_, {reinterpret_cast<char*>(ids_.data()), count * sizeof(uint64_t)})) return false;
    for (uint64_t first = 0; first < count; first += kPieceRows) {
      const auto ids = std::span<const uint64_t>(ids_).subspan(first, std::min(kPieceRows, count - first));
      const uint64_t values = ids.size() * options_.dim;
      if (pulls) {
        table_->gather(ids, {piece_.data(), values});
        sendAll(fd_, bytesOf(piece_.data(), values));
      } else {
        if (!receiveAll(fd_, bytesOf(piece_.data(), values))) return false;
        apply(ids, {piece_.data(), values});
      }
    }
    if (!pulls) sendValue(fd_, char{1});
    return true;
  }

  const RowWireOptions& options_;
  const Shared& shared_;
  const int fd_;
  const Floats piece_;
  std::unique_ptr<RowTable> table_;
  std::vector<uint64_t> ids_;
  uint64_t updates_ = 1;
};

/// Ids of one transfer, different each time and without repetition, as a trainer sends them.
class Ids {
 public:
  explicit Ids(const RowWireOptions& options)
      : options_(options), zipf_(options.rows, options.skew > 0 ? options.skew : 1) {}

  const std::vector<uint64_t>& draw() {
    std::uniform_int_distribution<uint64_t> uniform(0, options_.rows - 1);
    ids_.resize(options_.ids);
    for (uint64_t& id : ids_) id = idOf(options_.skew > 0 ? zipf_(engine_) - 1 : uniform(engine_));
    std::sort(ids_.begin(), ids_.end());
    ids_.erase(std::unique(ids_.begin(), ids_.end()), ids_.end());
    return ids_;
  }

 private:
  const RowWireOptions& options_;
  const Zipf zipf_;
  std::mt19937_64 engine_{1};
  std::vector<uint64_t> ids_;
};

/// The near end.
class RowTransfer {
 public:
  RowTransfer(const RowWireOptions& options, const Shared& shared, int fd)
      : options_(options),
        shared_(shared),
        fd_(fd),
        values_(options.ring ? 1 : options.ids * options.dim * sizeof(float)) {}

  void run(std::span<const uint64_t> ids) {
    if (options_.ring) return runInRing(ids);
    const uint64_t values = ids.size() * options_.dim;
    sendValue(fd_, RowsAsked{static_cast<uint64_t>(options_.direction), ids.size()});
    char done = 0;
    sendAll(fd_, {reinterpret_cast<const char*>(ids.data()), ids.size_bytes()});
    if (options_.direction == Direction::push) sendAll(fd_, bytesOf(values_.data(), values));
    const bool whole = options_.direction == Direction::pull
                           ? receiveAll(fd_, bytesOf(values_.data(), values))
                           : receiveValue(fd_, done);
    if (!whole) throw std::runtime_error("the peer ended early");
  }

 private:
  void runInRing(std::span<const uint64_t> ids) {
    std::copy(ids.begin(), ids.end(), shared_.ids());
    sendValue(fd_, RowsAsked{static_cast<uint64_t>(options_.direction), ids.size()});
    char done = 0;
    if (!receiveValue(fd_, done)) throw std::runtime_error("the peer ended early");
  }

  const RowWireOptions& options_;
  const Shared& shared_;
  const int fd_;
  const Floats values_;
};

}  // namespace

RowWireTiming measureRowWire(const RowWireOptions& options, double seconds) {
  const Shared shared(options.ids, options.dim);
  const PeerProcess peer(options.kind, 0, [&](int fd) { RowServer(options, shared, fd).serve(); });
  RowTransfer transfer(options, shared, peer.fd());
  char ready = 0;
  if (!receiveValue(peer.fd(), ready)) throw std::runtime_error("the peer ended early");
  Ids ids(options);
  std::vector<double> times, rates;
  const auto since = [](Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
  };
  const Clock::time_point begin = Clock::now();
  for (uint64_t round = 0; round < 3 || since(begin) < seconds; ++round) {
    const std::vector<uint64_t>& drawn = ids.draw();
    const Clock::time_point start = Clock::now();
    transfer.run(drawn);
    if (round < 2) continue;  // warms pages and caches
    times.push_back(since(start));
    rates.push_back(static_cast<double>(drawn.size()) / times.back());
  }
  std::sort(times.begin(), times.end());
  std::sort(rates.begin(), rates.end());
  return {{times[times.size() / 2], times.front(), times.size()}, rates[rates.size() / 2]};
}

}  // namespace psd::bench
